"""Losses of tuples: an anchor, one positive, several negatives.

za, zp: (B, D), zn: (B, n, D) descriptors, unit norm; psi: (B, 1 + n) similarity of the anchor with the positive and
with each negative, needed by the losses that say so. D is the squared Euclidean distance, [x]₊ = max(x, 0).
Losses with a `second_negative` take the last of the n as an image that overlaps neither the anchor nor the others.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from covis.core.errors import InputError
from covis.losses.pairs import LOSSES, Loss, cosine, distance, squared_distance

if TYPE_CHECKING:
    from torch import Tensor


class TupleLoss(Loss):
    """A loss of tuples."""

    shape: ClassVar[str] = "tuples"
    second_negative: ClassVar[bool] = False
    """Whether the last negative is compared with the other negatives instead of with the anchor."""
    graded: ClassVar[bool] = False
    """Whether psi is needed."""

    @abstractmethod
    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses, unreduced."""


@LOSSES.register("triplet")
@dataclass(frozen=True)
class Triplet(TupleLoss):
    """Σₙ [D(a, p) − D(a, n) + m]₊."""

    margin: float = 0.1

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        return _violations(za, zp, zn, self.margin).sum(-1)


@LOSSES.register("lazy_triplet")
@dataclass(frozen=True)
class LazyTriplet(TupleLoss):
    """maxₙ [D(a, p) − D(a, n) + m]₊: only the hardest negative of a tuple counts."""

    margin: float = 0.5

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        return _violations(za, zp, zn, self.margin).amax(-1)


@LOSSES.register("quadruplet")
@dataclass(frozen=True)
class Quadruplet(TupleLoss):
    """Σₙ [D(a, p) − D(a, n) + m₁]₊ + Σₙ [D(a, p) − D(n*, n) + m₂]₊, n* the second negative."""

    second_negative: ClassVar[bool] = True
    margin: float = 0.5
    second_margin: float = 0.2

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        first, second = _quadruple(za, zp, zn, self.margin, self.second_margin)
        return first.sum(-1) + second.sum(-1)


@LOSSES.register("lazy_quadruplet")
@dataclass(frozen=True)
class LazyQuadruplet(Quadruplet):
    """maxₙ [D(a, p) − D(a, n) + m₁]₊ + maxₙ [D(a, p) − D(n*, n) + m₂]₊, n* the second negative."""

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        first, second = _quadruple(za, zp, zn, self.margin, self.second_margin)
        return first.amax(-1) + second.amax(-1)


@LOSSES.register("triplet_huber")
@dataclass(frozen=True)
class TripletHuber(TupleLoss):
    """Triplet, plus a Huber penalty that maps the positive's distance onto its missing overlap.

    Σₙ [D(a, p) − D(a, n) + m]₊ + w·Huber(D(a, p)/D_max − (1−ψₚ)²).
    """

    graded: ClassVar[bool] = True
    from_zero: ClassVar[tuple[str, ...]] = ("huber_weight",)
    margin: float = 0.1
    huber_weight: float = 0.5
    delta: float = 1.0
    """Where the penalty turns from quadratic to linear."""
    largest_squared: float = 2.0
    """D_max, the squared distance that means no overlap: 2 for unrelated unit descriptors."""

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        from torch.nn.functional import huber_loss

        scaled = squared_distance(za, zp) / self.largest_squared
        missing = (1 - _graded(self, psi)[:, 0].to(scaled.dtype)).square()
        penalty = huber_loss(scaled, missing, reduction="none", delta=self.delta)
        return _violations(za, zp, zn, self.margin).sum(-1) + self.huber_weight * penalty


@LOSSES.register("log_ratio")
@dataclass(frozen=True)
class LogRatio(TupleLoss):
    """Meanₙ (log D(a, p)/D(a, n) − log L(p)/L(n))²: ratios of distances follow ratios of label distances.

    L = (1−ψ)² is the label distance. ε is added to each D and L: a ψ of 1 then demands a small distance, not
    minus infinity, and identical descriptors have a finite gradient.
    """

    graded: ClassVar[bool] = True
    epsilon: float = 1e-3

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        import torch

        squared = squared_distance(za.unsqueeze(1), torch.cat([zp.unsqueeze(1), zn], 1))
        label = (1 - _graded(self, psi).to(squared.dtype)).square()
        gap = (squared + self.epsilon).log() - (label + self.epsilon).log()
        return (gap[:, :1] - gap[:, 1:]).square().mean(-1)


@LOSSES.register("multi_similarity")
@dataclass(frozen=True)
class MultiSimilarity(TupleLoss):
    """1/α · log(1 + e^(−α(s(p) − λ))) + 1/β · log(1 + Σₙ e^(β(s(n) − λ))), s the cosine with the anchor.

    With a `mining_gap` ε only informative pairs count: negatives with s(n) > s(p) − ε, and the positive if
    s(p) < maxₙ s(n) + ε.
    """

    from_zero: ClassVar[tuple[str, ...]] = ("base", "mining_gap")
    alpha: float = 2.0
    beta: float = 50.0
    base: float = 0.5
    mining_gap: float | None = 0.1

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        positive, negative = cosine(za, zp), cosine(za.unsqueeze(1), zn)
        pull, push = -self.alpha * (positive.unsqueeze(1) - self.base), self.beta * (negative - self.base)
        if self.mining_gap is not None:
            easy = negative <= positive.unsqueeze(1) - self.mining_gap
            push = push.masked_fill(easy, -math.inf)
            pull = pull.masked_fill((positive >= negative.amax(-1) + self.mining_gap).unsqueeze(1), -math.inf)
        return _log_one_plus(pull) / self.alpha + _log_one_plus(push) / self.beta


@LOSSES.register("sare")
@dataclass(frozen=True)
class Sare(TupleLoss):
    """−log of the probability that the anchor is drawn to its positive, not to a negative (Liu et al. 2019).

    joint: −log k(p) / (k(p) + Σₙ k(n)); independent: Σₙ −log k(p) / (k(p) + k(n)). The kernel k of a distance d is
    e^(−d²) (gaussian), 1 / (1 + d²) (cauchy) or e^(−d) (exponential).
    """

    kernel: Literal["gaussian", "cauchy", "exponential"] = "gaussian"
    negatives: Literal["joint", "independent"] = "joint"
    scale: float = 1.0
    """Factor on log k, an inverse temperature."""

    def __call__(self, za: Tensor, zp: Tensor, zn: Tensor, psi: Tensor | None = None) -> Tensor:
        """(B,) losses."""
        positive, negative = self._log_kernel(za, zp).unsqueeze(1), self._log_kernel(za.unsqueeze(1), zn)
        if self.negatives == "joint":
            return _log_one_plus(negative - positive)
        from torch.nn.functional import softplus

        each: Tensor = softplus(negative - positive)
        return each.sum(-1)

    def _log_kernel(self, za: Tensor, zb: Tensor) -> Tensor:
        if self.kernel == "exponential":
            return -self.scale * distance(za, zb)
        squared = squared_distance(za, zb)
        return -self.scale * (squared if self.kernel == "gaussian" else squared.log1p())


def _log_one_plus(exponents: Tensor) -> Tensor:
    """(B, k) → (B,) log(1 + Σ eˣ) without overflow; −inf leaves a term out."""
    import torch

    return torch.cat([exponents.new_zeros(len(exponents), 1), exponents], 1).logsumexp(-1)


def _violations(za: Tensor, zp: Tensor, zn: Tensor, margin: float) -> Tensor:
    """(B, n) by how much each negative is too near."""
    positive = squared_distance(za, zp).unsqueeze(1)
    return (positive - squared_distance(za.unsqueeze(1), zn) + margin).clamp_min(0)


def _quadruple(za: Tensor, zp: Tensor, zn: Tensor, first: float, second: float) -> tuple[Tensor, Tensor]:
    if zn.shape[1] < 2:
        raise InputError("a quadruplet needs at least two negatives, the last of them apart from the others; draw more")
    near, other = zn[:, :-1], zn[:, -1:]
    positive = squared_distance(za, zp).unsqueeze(1)
    between = (positive - squared_distance(other, near) + second).clamp_min(0)
    return _violations(za, zp, near, first), between


def _graded(loss: TupleLoss, psi: Tensor | None) -> Tensor:
    if psi is None:
        raise InputError(f"{type(loss).__name__} compares with graded similarities; give psi (B, 1 + negatives)")
    return psi
