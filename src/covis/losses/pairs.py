"""The base of every loss, the distances that losses use, and losses of graded pairs: (za, zb, psi) → one loss per pair.

A new loss is a frozen dataclass with defaults for all its fields and `@LOSSES.register("name")` above it, in any module
of this package that `covis.losses` imports.

za, zb: (B, D) descriptors, unit norm. psi: (B,) similarity in [0, 1]. d is the Euclidean distance of a pair, τ the
margin. Half-precision descriptors are compared in float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from covis.core.registry import Registry
from covis.core.settings import above, at_least, check_types
from covis.graph import POSITIVE

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Loss(ABC):
    """A loss; its base class says what it is called on."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    shape: ClassVar[str]
    """What it is called on: pairs, tuples, …; batches say which shapes they offer."""
    from_zero: ClassVar[tuple[str, ...]] = ()
    """Fields that may be 0; other numbers are above it."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                (at_least if name in self.from_zero else above)(0, **{name: value})


LOSSES: Registry[type[Loss]] = Registry("loss")
"""Names of losses in recipes and on the command line; every one has defaults for all its fields."""


def common_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """The type that both fit into, at least float32."""
    import torch

    return torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)


def descriptor_difference(za: Tensor, zb: Tensor) -> Tensor:
    """za − zb, at least in float32."""
    dtype = common_dtype(za, zb)
    return za.to(dtype) - zb.to(dtype)


def distance(za: Tensor, zb: Tensor) -> Tensor:
    """(…,) Euclidean distance over the last axis, at least in float32; where both are equal, its gradient is 0."""
    import torch

    norm: Tensor = torch.linalg.vector_norm(descriptor_difference(za, zb), dim=-1)
    return norm


def squared_distance(za: Tensor, zb: Tensor) -> Tensor:
    """(…,) squared Euclidean distance over the last axis, at least in float32."""
    return descriptor_difference(za, zb).square().sum(-1)


def cosine(za: Tensor, zb: Tensor) -> Tensor:
    """(…,) similarity of unit descriptors over the last axis, at least in float32."""
    dtype = common_dtype(za, zb)
    return (za.to(dtype) * zb.to(dtype)).sum(-1)


class PairLoss(Loss):
    """A loss of pairs."""

    shape: ClassVar[str] = "pairs"

    @abstractmethod
    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor) -> Tensor:
        """(B,) losses, unreduced."""


def _margin_loss(za: Tensor, zb: Tensor, psi: Tensor, margin: float) -> Tensor:
    """½·ψ·d² + ½·(1−ψ)·max(τ−d, 0)²."""
    d = distance(za, zb)
    gap = (margin - d).relu()
    return (gap * gap).lerp(d * d, psi.to(d.dtype)) * 0.5


@LOSSES.register("contrastive")
@dataclass(frozen=True)
class Contrastive(PairLoss):
    """CL = ½·y·d² + ½·(1−y)·max(τ−d, 0)², with y = 1 where ψ is positive (at least 0.5), else 0."""

    margin: float = 0.5

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor) -> Tensor:
        """(B,) losses."""
        return _margin_loss(za, zb, psi >= POSITIVE, self.margin)


@LOSSES.register("generalized_contrastive")
@dataclass(frozen=True)
class GeneralizedContrastive(PairLoss):
    """GCL = ½·ψ·d² + ½·(1−ψ)·max(τ−d, 0)²; for 0 < ψ < 1 its minimum is at d = τ(1−ψ)."""

    margin: float = 0.5

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor) -> Tensor:
        """(B,) losses."""
        return _margin_loss(za, zb, psi, self.margin)


@LOSSES.register("soft_contrastive")
@dataclass(frozen=True)
class SoftContrastive(PairLoss):
    """Pulls by ψ and pushes by 1−ψ, both through a soft plus of the similarity s = max(cos, 0).

    1/α · log(1 + e^(−α(ψ·s − λ))) + 1/β · log(1 + e^(β((1−ψ)·s − λ))), each term only where its weight is above 0:
    multi-similarity with soft assignments, for an anchor with one partner.
    """

    from_zero: ClassVar[tuple[str, ...]] = ("base",)
    alpha: float = 2.0
    beta: float = 50.0
    base: float = 1.0

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor) -> Tensor:
        """(B,) losses."""
        from torch.nn.functional import softplus

        similarity = cosine(za, zb).clamp_min(0)
        psi = psi.to(similarity.dtype)
        pull = softplus(-self.alpha * (psi * similarity - self.base)) / self.alpha
        push = softplus(self.beta * ((1 - psi) * similarity - self.base)) / self.beta
        return pull * (psi > 0) + push * (psi < 1)


@LOSSES.register("overlap_regression")
@dataclass(frozen=True)
class OverlapRegression(PairLoss):
    """(d/d₀ − (1−ψ))²: the distance itself is the missing overlap (Leyva-Vallina et al. 2024)."""

    scale: float = 1.0
    """d₀, the distance that means no overlap."""

    def __call__(self, za: Tensor, zb: Tensor, psi: Tensor) -> Tensor:
        """(B,) losses."""
        d = distance(za, zb)
        return (d / self.scale - (1 - psi.to(d.dtype))).square()
