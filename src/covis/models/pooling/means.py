"""Means and maxima of a map: average, maximum, generalised mean, class token, regional maxima."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from covis.models.pooling.base import POOLS, GridSize, Pool

GEM_START = 3.0
GEM_RANGE = (1.0, 16.0)
_GEM_FLOOR = 1e-6


@POOLS.register("avg")
class Average(Pool):
    """The mean of each channel."""

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return space.float().mean((-2, -1))


@POOLS.register("max")
class Maximum(Pool):
    """The largest value of each channel."""

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return space.float().amax((-2, -1))


@POOLS.register("gem")
class GeneralizedMean(Pool):
    """(mean of x^p)^(1/p) of each channel, one learned p for all.

    Worked out relative to each channel's largest value, so that no x and no p overflows; in float32 under autocast.
    """

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = channels
        self.p = nn.Parameter(torch.full((1,), GEM_START))

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        with torch.autocast(space.device.type, enabled=False):
            x = space.float().clamp(min=_GEM_FLOOR).flatten(2)
            means: Tensor = _PowerMean.apply(x, self.p.float().clamp(*GEM_RANGE))  # type: ignore[no-untyped-call]
            return means


class _PowerMean(torch.autograd.Function):
    """(mean of x^p)^(1/p) over the last dimension; the gradient reuses the powers, which are the costly part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Tensor) -> Tensor:
        largest = x.amax(-1, keepdim=True)
        shares = (x / largest).clamp_(min=torch.finfo(x.dtype).tiny)  # so that it has a logarithm
        powers = shares.pow(p)
        means = powers.mean(-1)
        ctx.save_for_backward(shares, powers, means, largest.squeeze(-1), p)
        return largest.squeeze(-1) * means.pow(1 / p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        shares, powers, means, largest, p = ctx.saved_tensors
        to_x = to_p = None
        if ctx.needs_input_grad[0]:
            to_x = (powers / shares).mul_((gradient * means.pow(1 / p - 1) / shares.shape[-1])[..., None])
        if ctx.needs_input_grad[1]:
            slope = torch.linalg.vecdot(powers, shares.log()) / (shares.shape[-1] * means) - means.log() / p
            to_p = (gradient * largest * means.pow(1 / p) * slope / p).sum()[None]
        return to_x, to_p


@POOLS.register("token")
class Token(Pool):
    """The backbone's own summary: a transformer's class token, the mean of a convolutional map."""

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return summary.float()


@POOLS.register("rmac")
class RegionalMaximum(Pool):
    """Maxima over the whole map and over overlapping squares of three sizes, each a unit vector, added up.

    Squares overlap by about 40 % along the longer side (Tolias et al., ICLR 2016).
    """

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        x = space.float()
        maxima = [x[:, :, top : top + side, left : left + side] for top, left, side in _squares(*x.shape[-2:])]
        vectors = torch.stack([part.amax((-2, -1)) for part in (x, *maxima)])
        return functional.normalize(vectors, dim=-1, eps=_GEM_FLOOR).sum(0)


def _squares(rows: int, columns: int, sizes: int = 3) -> list[tuple[int, int, int]]:
    """(top, left, side) of the squares of each size."""
    short, long = sorted((rows, columns))
    overlap = [abs(1 - (long - short) / (steps - 1) / short - 0.4) for steps in range(2, 8)]
    extra = overlap.index(min(overlap)) + 1
    squares = []
    for size in range(1, sizes + 1):
        side = 2 * short // (size + 1)
        more = [size + (extra if length == long and rows != columns else 0) for length in (rows, columns)]
        tops, lefts = (
            [math.floor(k * (length - side) / max(1, count - 1)) for k in range(count)]
            for length, count in zip((rows, columns), more, strict=True)
        )
        squares += [(top, left, side) for top in tops for left in lefts if side]
    return squares


class ProjectedQuarters(Pool):
    """Fewer channels, then the mean of each quarter of the map (Conv-AP)."""

    def __init__(self, channels: int, grid: GridSize, *, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.project = nn.Conv2d(channels, dim // 4, 1)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(self.project(space).float(), (2, 2)).flatten(1)


class ProjectedMean(Pool):
    """A generalised mean, then a linear layer: of unit local features (CosPlace), or on the unit mean (cirtorch)."""

    def __init__(self, channels: int, grid: GridSize, *, dim: int, unit: Literal["features", "mean"]) -> None:
        super().__init__()
        self.dim, self.unit = dim, unit
        self.mean = GeneralizedMean(channels, grid)
        self.linear = nn.Linear(channels, dim)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        features = functional.normalize(space.float(), dim=1) if self.unit == "features" else space
        mean = self.mean(features, summary)
        projected: Tensor = self.linear(functional.normalize(mean, dim=-1) if self.unit == "mean" else mean)
        return projected


class TransformedMean(ProjectedMean):
    """A linear layer on local features before a projected mean of them (SelaVPR++)."""

    def __init__(self, channels: int, grid: GridSize, *, dim: int) -> None:
        super().__init__(channels, grid, dim=dim, unit="features")
        self.first = nn.Linear(channels, channels)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return super().forward(self.first(space.movedim(1, -1)).movedim(-1, 1), summary)


POOLS.register("selavprpp2048")(functools.partial(TransformedMean, dim=2048))
POOLS.register("selavprpp4096")(functools.partial(TransformedMean, dim=4096))
POOLS.register("gemfc32")(functools.partial(ProjectedMean, dim=32, unit="features"))
POOLS.register("gemfc64")(functools.partial(ProjectedMean, dim=64, unit="features"))
POOLS.register("gemfc128")(functools.partial(ProjectedMean, dim=128, unit="features"))
POOLS.register("gemfc256")(functools.partial(ProjectedMean, dim=256, unit="features"))
POOLS.register("gemfc512")(functools.partial(ProjectedMean, dim=512, unit="features"))
POOLS.register("gemfc1024")(functools.partial(ProjectedMean, dim=1024, unit="features"))
POOLS.register("gemfc2048")(functools.partial(ProjectedMean, dim=2048, unit="features"))
POOLS.register("gemwhiten512")(functools.partial(ProjectedMean, dim=512, unit="mean"))
POOLS.register("gemwhiten1024")(functools.partial(ProjectedMean, dim=1024, unit="mean"))
POOLS.register("gemwhiten2048")(functools.partial(ProjectedMean, dim=2048, unit="mean"))
POOLS.register("convap512")(functools.partial(ProjectedQuarters, dim=512))
POOLS.register("convap2048")(functools.partial(ProjectedQuarters, dim=2048))
POOLS.register("convap4096")(functools.partial(ProjectedQuarters, dim=4096))
POOLS.register("convap8192")(functools.partial(ProjectedQuarters, dim=8192))
