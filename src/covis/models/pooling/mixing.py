"""Layers that mix all places of the map, then fewer channels and rows (MixVPR's way)."""

from __future__ import annotations

import functools

from torch import Tensor, nn

from covis.core.errors import InputError
from covis.models.pooling.base import POOLS, GridSize, Pool


class MixedMap(Pool):
    """Residual layers over all places of a map, then projections to fewer channels and rows: (B, channels · rows)."""

    def __init__(self, channels: int, grid: GridSize, *, depth: int = 4, out_channels: int = 0, rows: int = 4) -> None:
        super().__init__()
        self.grid = grid()
        places = self.grid[0] * self.grid[1]
        out_channels = out_channels or min(512, channels)
        self.dim = out_channels * rows
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(places), nn.Linear(places, places), nn.ReLU(), nn.Linear(places, places))
            for _ in range(depth)
        )
        self.to_channels = nn.Linear(channels, out_channels)
        self.to_rows = nn.Linear(places, rows)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        if tuple(space.shape[-2:]) != self.grid:
            raise InputError(f"pooling 'mix' was made for maps of {self.grid}, not {tuple(space.shape[-2:])}")
        x = space.float().flatten(2)
        for layer in self.layers:
            x = x + layer(x)
        x = self.to_channels(x.transpose(1, 2)).transpose(1, 2)
        rows: Tensor = self.to_rows(x)
        return rows.flatten(1)


POOLS.register("mix")(MixedMap)
POOLS.register("dinomix4096")(functools.partial(MixedMap, depth=2, out_channels=1024))
POOLS.register("mixvpr4096")(functools.partial(MixedMap, out_channels=1024, rows=4))
POOLS.register("mixvpr512")(functools.partial(MixedMap, out_channels=256, rows=2))
POOLS.register("mixvpr128")(functools.partial(MixedMap, out_channels=64, rows=2))
