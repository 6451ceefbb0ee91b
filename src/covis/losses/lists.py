"""Losses of lists: each query against all other images of a batch → one loss per query.

za: (N, D), zb: (M, D) descriptors, unit norm; psi: (N, M) similarity; known: (N, M) which pairs are labelled
(default: all); an image with itself is not, nor is a pair from two cities. s is the cosine, d the Euclidean distance.
A query without a positive or without any known pair has no loss.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from covis.core.settings import at_least
from covis.graph import POSITIVE
from covis.losses.pairs import LOSSES, Loss, common_dtype

if TYPE_CHECKING:
    from torch import Tensor


class ListLoss(Loss):
    """A loss of lists."""

    shape: ClassVar[str] = "lists"

    @abstractmethod
    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None = None) -> Tensor:
        """(N,) losses, unreduced."""


@LOSSES.register("listwise_softmax")
@dataclass(frozen=True)
class ListwiseSoftmax(ListLoss):
    """−Σⱼ tⱼ log softmaxⱼ(s/T) with targets t = ψᵖ / Σ ψᵖ: the order of a whole list follows its overlaps."""

    temperature: float = 0.05
    power: float = 1.0
    """p: above 1, larger overlaps take more of the target."""

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None = None) -> Tensor:
        """(N,) losses."""
        similarity, psi, known = _prepared(za, zb, psi, known)
        weight = psi.pow(self.power) * known
        share = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
        return -(share * _log_softmax(similarity / self.temperature, known)).sum(1)


@LOSSES.register("soft_supervised_contrastive")
@dataclass(frozen=True)
class SoftSupervisedContrastive(ListLoss):
    """−meanⱼ ψⱼ log softmaxⱼ(s/T) over the positives: supervised contrast whose pull is the overlap."""

    from_zero: ClassVar[tuple[str, ...]] = ("least",)
    temperature: float = 0.1
    least: float = 0.0
    """Pairs above this ψ are positives."""

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None = None) -> Tensor:
        """(N,) losses."""
        similarity, psi, known = _prepared(za, zb, psi, known)
        positive = known & (psi > self.least)
        weighted = (psi * _log_softmax(similarity / self.temperature, known)).masked_fill(~positive, 0.0)
        return -weighted.sum(1) / positive.sum(1).clamp_min(1)


@LOSSES.register("average_precision")
@dataclass(frozen=True)
class AveragePrecision(ListLoss):
    """1 − average precision of the list, with ranks by a histogram of similarities (Revaud et al. 2019).

    Similarities are softly assigned to `bins` from 1 down to −1; precision and recall accumulate bin by bin. Pairs with
    ψ of at least 0.5 are relevant.
    """

    bins: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, bins=self.bins)

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None = None) -> Tensor:
        """(N,) losses."""
        import torch

        similarity, psi, known = _prepared(za, zb, psi, known)
        relevant = known & (psi >= POSITIVE)
        centres = torch.linspace(1, -1, self.bins, dtype=similarity.dtype, device=similarity.device)
        width = 2 / (self.bins - 1)
        falls = (1 - (similarity.clamp(-1, 1).unsqueeze(-1) - centres).abs() / width).clamp_min(0)
        hits, all_ = (falls * relevant.unsqueeze(-1)).sum(1), (falls * known.unsqueeze(-1)).sum(1)
        precision = hits.cumsum(1) / all_.cumsum(1).clamp_min(1e-12)
        count = relevant.sum(1)
        loss = 1 - (precision * hits).sum(1) / count.clamp_min(1)
        return loss.clamp_min(0) * (count > 0)


@LOSSES.register("relaxed_contrastive")
@dataclass(frozen=True)
class RelaxedContrastive(ListLoss):
    """Meanⱼ ψ·r² + (1−ψ)·[m − r]₊² with r = d / mean d of the query's list (Kim et al. 2021, who sum).

    Distances count relative to the others of the same list, so that no scale is forced upon them.
    """

    margin: float = 1.0

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None = None) -> Tensor:
        """(N,) losses."""
        import torch

        similarity, psi, known = _prepared(za, zb, psi, known)
        squared = (2 - 2 * similarity).clamp_min(0)
        apart = squared > 1e-12  # the gradient of a square root is not finite at 0
        distance = torch.where(apart, squared, 1.0).sqrt() * apart
        count = known.sum(1, keepdim=True).clamp_min(1)
        relative = distance / ((distance * known).sum(1, keepdim=True) / count).clamp_min(1e-6)
        each = psi * relative.square() + (1 - psi) * (self.margin - relative).clamp_min(0).square()
        return (each * known).sum(1) / count.squeeze(1)


@LOSSES.register("batch_multi_similarity")
@dataclass(frozen=True)
class BatchMultiSimilarity(ListLoss):
    """1/α · log(1 + Σₚ e^(−α(s(p) − λ))) + 1/β · log(1 + Σₙ e^(β(s(n) − λ))) over the whole list (Wang et al. 2019).

    With a `mining_gap` ε only informative pairs count: negatives with s(n) > min s(p) − ε, and positives with
    s(p) < max s(n) + ε. As GSV-Cities, MixVPR, SALAD and BoQ train.
    """

    from_zero: ClassVar[tuple[str, ...]] = ("base", "mining_gap")
    alpha: float = 1.0
    beta: float = 50.0
    base: float = 0.0
    mining_gap: float | None = 0.1
    graded: bool = False
    """Whether a pair pulls by ψ and pushes by 1 − ψ, instead of one or the other by ψ ≥ 0.5."""

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None = None) -> Tensor:
        """(N,) losses."""
        import torch

        similarity, psi, known = _prepared(za, zb, psi, known)
        pull = (psi if self.graded else (psi >= POSITIVE).to(psi.dtype)) * known
        push = (1 - psi if self.graded else (psi < POSITIVE).to(psi.dtype)) * known
        if self.mining_gap is not None:
            with torch.no_grad():
                least = similarity.masked_fill(pull <= 0, torch.inf).amin(1, keepdim=True)
                most = similarity.masked_fill(push <= 0, -torch.inf).amax(1, keepdim=True)
                near, far = similarity > least - self.mining_gap, similarity < most + self.mining_gap
            # an anchor with positives alone, or negatives alone, has no informative pair
            pull, push = pull * (far & most.isfinite()), push * (near & least.isfinite())
        attraction = _log_one_plus_weighted(-self.alpha * (similarity - self.base), pull)
        return attraction / self.alpha + _log_one_plus_weighted(self.beta * (similarity - self.base), push) / self.beta


def _log_one_plus_weighted(exponent: Tensor, weight: Tensor) -> Tensor:
    """(N,) log(1 + Σⱼ wⱼ e^xⱼ), without overflow."""
    import torch

    terms = torch.where(weight > 0, exponent + weight.clamp_min(1e-12).log(), -torch.inf)
    return torch.cat([terms, terms.new_zeros(len(terms), 1)], 1).logsumexp(1)


def _prepared(za: Tensor, zb: Tensor, psi: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of all pairs and ψ, at least in float32, and which pairs count."""
    dtype = common_dtype(za, zb)
    every = psi.new_ones(psi.shape).bool() if known is None else known.bool()
    return za.to(dtype) @ zb.to(dtype).T, psi.to(dtype), every


def _log_softmax(logits: Tensor, known: Tensor) -> Tensor:
    """(N, M) log of the softmax over the known pairs of each row; 0 elsewhere."""
    import torch

    lowest = torch.finfo(logits.dtype).min
    whole = logits.masked_fill(~known, lowest).logsumexp(1, keepdim=True)
    return (logits - whole).masked_fill(~known, 0.0)
