"""Losses over a whole batch: lists of ranked images, and classes of places."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.fields import above, at_least
from covis.graph import POSITIVE
from covis.losses.pairs import LOSSES, Loss, common_dtype

if TYPE_CHECKING:
    from torch import Tensor, nn


class ClassLoss(Loss):
    """A loss of classes."""

    shape: ClassVar[str] = "classes"

    def head(self, sampler: Any, dim: int) -> nn.Module | None:
        """A descriptor for each class of the sampler, `weight` (classes, dim); no part of the model that is saved."""
        from torch import nn

        proxies: nn.Module = nn.utils.skip_init(nn.Linear, dim, sampler.classes, bias=False)  # type: ignore[no-untyped-call]
        weight = proxies.get_parameter("weight")
        nn.init.xavier_uniform_(weight)
        return proxies

    def bound(self, head: nn.Module | None) -> Callable[..., Tensor]:
        """The loss with the descriptors of its classes: (z, classes, target) → (B,)."""
        assert head is not None
        return functools.partial(self._among, head.get_parameter("weight"))

    def _among(self, proxies: Tensor, z: Tensor, classes: NDArray[np.int64], target: NDArray[np.int64]) -> Tensor:
        import torch

        at = torch.from_numpy(classes).to(z.device)
        return self(z, proxies[at], torch.from_numpy(target).to(z.device))

    @abstractmethod
    def __call__(self, z: Tensor, proxies: Tensor, target: Tensor) -> Tensor:
        """(B,) losses, unreduced; z (B, D), proxies (K, D), target (B,) of 0 … K − 1."""


@LOSSES.register("large_margin_cosine")
@dataclass(frozen=True)
class LargeMarginCosine(ClassLoss):
    """−log e^(σ(cos y − m)) / (e^(σ(cos y − m)) + Σ e^(σ cos j)), j over the other classes (CosPlace's loss)."""

    scale: float = 30.0
    margin: float = 0.4

    def __post_init__(self) -> None:
        above(0, scale=self.scale, margin=self.margin)

    def __call__(self, z: Tensor, proxies: Tensor, target: Tensor) -> Tensor:
        """(B,) losses."""
        from torch.nn.functional import cross_entropy, normalize, one_hot

        dtype = common_dtype(z, proxies)
        cosines = z.to(dtype) @ normalize(proxies.to(dtype), dim=1).T
        own = one_hot(target, len(proxies)).to(dtype)
        return cross_entropy(self.scale * (cosines - self.margin * own), target, reduction="none")


# Losses of lists: each query against all other images of a batch → one loss a query.
#
# za: (N, D), zb: (M, D) descriptors, unit norm; psi: (N, M) similarity; known: (N, M) which pairs are labelled at all (all,
# where it is not given): an image with itself, or pairs of two cities, are not. s is the cosine, d the Euclidean distance.
# A query without a positive or without any known pair has no loss.


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

    def __post_init__(self) -> None:
        above(0, temperature=self.temperature, power=self.power)

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

    temperature: float = 0.1
    least: float = 0.0
    """Pairs above this ψ are positives."""

    def __post_init__(self) -> None:
        above(0, temperature=self.temperature)
        at_least(0, least=self.least)

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

    Similarities fall softly into `bins` from 1 down to −1; precision and recall accumulate bin by bin. Pairs with ψ of at
    least 0.5 are relevant.
    """

    bins: int = 20

    def __post_init__(self) -> None:
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
        found = relevant.sum(1)
        loss = 1 - (precision * hits).sum(1) / found.clamp_min(1)
        return loss.clamp_min(0) * (found > 0)


@LOSSES.register("relaxed_contrastive")
@dataclass(frozen=True)
class RelaxedContrastive(ListLoss):
    """Σⱼ ψ·r² + (1−ψ)·[m − r]₊² with r = d / mean d of the query's list (Kim et al. 2021).

    Distances count relative to the others of the same list, so that no scale is forced upon them. Means, not sums, over
    the list.
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        above(0, margin=self.margin)

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
