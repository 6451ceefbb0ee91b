"""From a map of local features to one vector: the plain ways.

Every pooling is a module made as `(channels, grid)`, where `grid()` works out the map's (rows, columns) at the model's
image size for those that need it. It takes the map (B, C, h, w) and the backbone's summary (B, C), gives (B, dim) and tells its `dim`; the model
normalises the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from covis.registry import Registry

Grid = Callable[[], tuple[int, int]]

GEM_START = 3.0
GEM_RANGE = (1.0, 16.0)
_GEM_FLOOR = 1e-6


class Pool(nn.Module):
    """What every pooling offers."""

    dim: int

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        """Map (B, C, h, w) and summary (B, C) → (B, dim)."""
        raise NotImplementedError

    def initialise(self, local_features: NDArray[np.float32], seed: int) -> None:
        """Starts from (N, C) local features of the data; most poolings have nothing to learn from them beforehand."""

    @property
    def has_start(self) -> bool:
        """Whether `initialise` does anything."""
        return type(self).initialise is not Pool.initialise


class PerLevel(Pool):
    """The channels of each level pooled by themselves, as unit vectors side by side."""

    def __init__(self, pools: Sequence[Pool], channels: Sequence[int]) -> None:
        super().__init__()
        self.levels = nn.ModuleList(pools)
        self.channels = list(channels)
        self.dim = sum(pool.dim for pool in pools)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        parts = zip(self.levels, *(torch.split(x, self.channels, 1) for x in (space, summary)), strict=True)
        return torch.cat([functional.normalize(pool(s, whole).float(), dim=-1) for pool, s, whole in parts], 1)

    def initialise(self, local_features: NDArray[np.float32], seed: int) -> None:
        """Starts each level from its own channels."""
        borders = np.cumsum(self.channels)[:-1]
        for pool, part in zip(self.levels, np.split(local_features, borders, axis=1), strict=True):
            cast(Pool, pool).initialise(part, seed)

    @property
    def has_start(self) -> bool:
        """Whether a level's pooling has one."""
        return any(cast(Pool, pool).has_start for pool in self.levels)


POOLS: Registry[Callable[[int, Grid], Pool]] = Registry("pooling")


@POOLS.register("avg")
class Average(Pool):
    """The mean of each channel."""

    def __init__(self, channels: int, grid: Grid) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return space.float().mean((-2, -1))


@POOLS.register("max")
class Maximum(Pool):
    """The largest value of each channel."""

    def __init__(self, channels: int, grid: Grid) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return space.float().amax((-2, -1))


@POOLS.register("gem")
class GeneralizedMean(Pool):
    """(mean of x^p)^(1/p) of each channel, one learned p for all.

    Worked out relative to each channel's largest value, so that no x and no p overflows; in float32 under autocast.
    """

    def __init__(self, channels: int, grid: Grid) -> None:
        super().__init__()
        self.dim = channels
        self.p = nn.Parameter(torch.full((1,), GEM_START))

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        with torch.autocast(space.device.type, enabled=False):
            x = space.float().clamp(min=_GEM_FLOOR).flatten(2)
            p = self.p.float().clamp(*GEM_RANGE)
            largest = x.detach().amax(-1, keepdim=True)
            return largest.squeeze(-1) * (x / largest).pow(p).mean(-1).pow(1 / p)


@POOLS.register("token")
class Token(Pool):
    """The backbone's own summary: a transformer's class token, the mean of a convolutional map."""

    def __init__(self, channels: int, grid: Grid) -> None:
        super().__init__()
        self.dim = channels

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        return summary.float()
