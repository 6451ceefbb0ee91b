"""Features carried to clusters by optimal transport, with a bin for the useless: SALAD's way, and MegaLoc's."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from covis.models.networks import PowerNorm
from covis.models.pooling.base import POOLS, GridSize, Pool

SINKHORN_ROUNDS = 3
SALAD_HIDDEN = 512
SALAD_DROPOUT = 0.3
"""Share of hidden channels that SALAD leaves out in training."""


class TransportedClusters(Pool):
    """Local features summed in clusters by optimal transport, beside a projected summary: (B, clusters · depth + extra).

    A learned score lets features go to a bin that is thrown away: sky, road, passers-by.
    """

    def __init__(
        self, channels: int, grid: GridSize, *, clusters: int, depth: int, extra: int, hidden: int = 0
    ) -> None:
        super().__init__()
        self.dim = clusters * depth + extra
        hidden = hidden or min(channels, SALAD_HIDDEN)
        self.content = nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, depth, 1))
        self.score = nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, clusters, 1))
        self.whole = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, extra))
        self.bin_score = nn.Parameter(torch.ones(()))

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        content = self.content(space).flatten(2).float()
        plan = transport(self.score(space).flatten(2).float(), self.bin_score.float())
        clusters = functional.normalize(torch.einsum("bkn,bdn->bkd", plan, content), dim=-1)
        whole = functional.normalize(self.whole(summary).float(), dim=-1)
        return torch.cat([whole, functional.normalize(clusters.flatten(1), dim=-1)], 1)


class Salad(TransportedClusters):
    """SALAD as published: unit clusters of `depth` channels beside a unit summary, channel by channel."""

    def __init__(
        self, channels: int, grid: GridSize, *, clusters: int = 64, depth: int = 128, extra: int = 256
    ) -> None:
        super().__init__(channels, grid, clusters=clusters, depth=depth, extra=extra, hidden=SALAD_HIDDEN)
        for part in (self.content, self.score):
            part[1] = nn.Sequential(nn.Dropout(SALAD_DROPOUT), nn.ReLU())  # in one place, so that names stay

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        content = self.content(space).flatten(2).float()
        plan = transport(self.score(space).flatten(2).float(), self.bin_score.float())
        clusters = functional.normalize(torch.einsum("bkn,bdn->bdk", plan, content), dim=1)
        whole = functional.normalize(self.whole(summary).float(), dim=-1)
        return functional.normalize(torch.cat([whole, clusters.flatten(1)], 1), dim=-1)


class ProjectedSalad(Salad):
    """SALAD with clusters of 256 channels behind a linear layer, as MegaLoc has it."""

    def __init__(self, channels: int, grid: GridSize, *, dim: int) -> None:
        super().__init__(channels, grid, depth=256)
        self.linear = nn.Linear(self.dim, dim)
        self.dim = dim

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        projected: Tensor = self.linear(super().forward(space, summary))
        return projected


class SoftProbes(TransportedClusters):
    """SAGE's pooling: features weighted by their size, less their mean, summed in clusters by softmax, then powers of them."""

    def __init__(
        self, channels: int, grid: GridSize, *, clusters: int = 64, depth: int = 128, extra: int = 256
    ) -> None:
        super().__init__(channels, grid, clusters=clusters, depth=depth, extra=extra, hidden=SALAD_HIDDEN)
        del self.bin_score
        self.weight = nn.Sequential(nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 1), nn.Sigmoid())
        self.powers = PowerNorm(clusters, clusters // 2)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        size = space.float().norm(dim=1).unsqueeze(-1) + 1e-6
        x = space * (1 + 0.5 * self.weight(size).movedim(-1, 1))
        content, scores = (part(x).flatten(2).float() for part in (self.content, self.score))
        content = content - content.mean((1, 2), keepdim=True)
        sums = self.powers(torch.einsum("bdn,bkn->bdk", content, scores.softmax(-1)) / content.shape[-1])
        whole = functional.normalize(self.whole(summary).float(), dim=-1)
        return torch.cat([whole, functional.normalize(sums, dim=1).flatten(1)], 1)


def transport(scores: Tensor, bin_score: Tensor) -> Tensor:
    """Scores (B, K, N) of N features for K clusters → the share of each in each cluster (B, K, N), by Sinkhorn rounds.

    Every feature brings the same mass, every cluster takes the same, and the bin takes the rest (at least one share).
    """
    batch, clusters, features = scores.shape
    shares = max(features, clusters + 1)
    log_mass = scores.new_full((clusters + 1, 1), -math.log(shares))
    log_mass[-1] = math.log(shares - clusters) - math.log(shares)
    log_plan = torch.cat([scores, bin_score.expand(batch, 1, features)], 1)
    for _ in range(SINKHORN_ROUNDS):
        log_plan = log_plan - log_plan.logsumexp(2, keepdim=True) + log_mass
        log_plan = log_plan - log_plan.logsumexp(1, keepdim=True) - math.log(features)
    return (log_plan[:, :-1] + math.log(features)).exp()


POOLS.register("transport16")(functools.partial(TransportedClusters, clusters=16, depth=64, extra=128))
POOLS.register("transport64")(functools.partial(TransportedClusters, clusters=64, depth=128, extra=256))
POOLS.register("salad8448")(Salad)
POOLS.register("sage8448")(SoftProbes)
POOLS.register("megaloc8448")(functools.partial(ProjectedSalad, dim=8448))
