"""What a pooling is: feature maps → one vector; and the registry of poolings.

Every pooling is a module made as `(channels, grid)`, where `grid()` works out the map's (rows, columns) at the model's
image size for those that need it. It turns the map (B, C, h, w) and the backbone's summary (B, C) into (B, dim), and
has the attribute `dim`; the model normalises the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from covis.core.registry import Registry

GridSize = Callable[[], tuple[int, int]]


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


POOLS: Registry[Callable[[int, GridSize], Pool]] = Registry("pooling")
