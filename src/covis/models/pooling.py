"""From a map of local features to one vector: the plain ways.

Every pooling is a module made as `(channels, grid)`, where `grid()` works out the map's (rows, columns) at the model's
image size for those that need it. It takes the map (B, C, h, w) and the backbone's summary (B, C), gives (B, dim) and tells its `dim`; the model
normalises the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
