"""Poolings of systems that also re-rank or encode regions: TransVPR, SelaVPR, CricaVPR."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from covis.models.pooling.base import POOLS, GridSize, Pool
from covis.models.pooling.means import GeneralizedMean


class AttendedLevels(Pool):
    """Each level of a map summed under its own attention mask, their unit vector projected: (B, dim)."""

    max_error = 0.03
    """How far matched patches may lie from where a homography puts them, as a share of the diagonal: 1.5 patches."""
    least_attention = 0.02

    def __init__(self, channels: int, grid: GridSize, *, levels: int = 3, dim: int = 256) -> None:
        super().__init__()
        self.dim, self.levels = dim, levels
        self.attention = nn.Linear(channels, levels)
        self.linear = nn.Linear(channels, dim)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        parts = space.float().flatten(2).chunk(self.levels, dim=1)
        sums = [torch.einsum("bcn,bn->bc", part, mask) for part, mask in zip(parts, self._masks(space), strict=True)]
        projected: Tensor = self.linear(functional.normalize(torch.cat(sums, 1), dim=-1))
        return projected

    def _masks(self, space: Tensor) -> Sequence[Tensor]:
        """The attention mask of each level, (B, h · w)."""
        scores: Tensor = self.attention(space.float().flatten(2).transpose(1, 2))
        return scores.softmax(1).unbind(-1)

    def patches(self, space: Tensor) -> tuple[Tensor, Tensor]:
        """Map → features to re-rank with (B, D, h, w), those of the middle level, and which of them count (B, h, w)."""
        masks = torch.stack([_stretched(mask) for mask in self._masks(space)]).sum(0)
        local = space.chunk(self.levels, dim=1)[self.levels // 2]
        return local, (_stretched(masks) > self.least_attention).view(-1, *space.shape[-2:])


def _stretched(mask: Tensor) -> Tensor:
    """(B, N), each row scaled to the range from 0 to 1."""
    low, high = mask.amin(-1, keepdim=True), mask.amax(-1, keepdim=True)
    return (mask - low) / (high - low).clamp(min=1e-12)


class MeanWithFinerMap(Pool):
    """A generalised mean of unit features; two transposed convolutions make the map finer, for re-ranking alone."""

    max_error = 0.01

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = channels
        self.mean = GeneralizedMean(channels, grid)
        self.finer = nn.Sequential(
            nn.ConvTranspose2d(channels, channels // 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels // 4, channels // 8, 3, stride=2, padding=1),
        )

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        mean: Tensor = self.mean(functional.normalize(space.float(), dim=1), summary)
        return mean

    def patches(self, space: Tensor) -> tuple[Tensor, Tensor]:
        """Map → unit features to re-rank with (B, D, 4h − 3, 4w − 3), all of which count."""
        local = functional.normalize(self.finer(space.float()), dim=1)
        return local, torch.ones_like(local[:, 0], dtype=torch.bool)


class EncodedRegions(Pool):
    """The summary and unit-feature means of 4 and 9 regions, each through an encoder of its own: (B, 14 · C).

    CricaVPR's encoder also looks at the same region of the other images of a batch; here each image is encoded alone, so
    that its descriptor does not depend on its neighbours.
    """

    def __init__(self, channels: int, grid: GridSize) -> None:
        super().__init__()
        self.dim = 14 * channels
        self.mean = GeneralizedMean(channels, grid)
        layer = nn.TransformerEncoderLayer(channels, 16, 2048, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        unit = functional.normalize(space.float(), dim=1)
        regions = [summary.float()]
        for shares in ((0, 8, 16), (0, 5, 11, 16)):
            rows, columns = (_cuts(side, shares) for side in space.shape[-2:])
            regions += [self.mean(unit[:, :, row, column], summary) for row in rows for column in columns]
        alone = torch.stack(regions, 1).flatten(0, 1).unsqueeze(1)
        return cast(Tensor, self.encoder(alone)).reshape(len(space), -1)


def _cuts(side: int, shares: Sequence[int]) -> list[slice]:
    """A side of the map cut at these sixteenths, each part of at least one cell."""
    borders = [round(side * share / 16) for share in shares]
    return [slice(min(low, side - 1), max(high, min(low, side - 1) + 1)) for low, high in itertools.pairwise(borders)]


POOLS.register("transvpr256")(AttendedLevels)
POOLS.register("selavpr")(MeanWithFinerMap)
POOLS.register("cricavpr")(EncodedRegions)
