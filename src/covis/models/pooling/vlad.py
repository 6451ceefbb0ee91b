"""Clusters of local features: NetVLAD, whose centres learn, SuperVLAD, VLAD over a vocabulary (AnyLoc)."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from covis.core.errors import InputError
from covis.models.pooling.base import POOLS, GridSize, Pool

ASSIGNMENT_RATIO = 100.0
"""NetVLAD starts with the best centre this many times as likely as the second, on average."""


class NetVlad(Pool):
    """Soft-assigned residuals to `clusters` centres, each normalised: (B, clusters · C)."""

    def __init__(self, channels: int, grid: GridSize, *, clusters: int) -> None:
        super().__init__()
        self.dim = channels * clusters
        self.centres = nn.Parameter(functional.normalize(torch.randn(clusters, channels), dim=1))
        self.assign = nn.Linear(channels, clusters, bias=False)
        self._sharpen(10.0)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        with torch.autocast(space.device.type, enabled=False):
            x = functional.normalize(space.float().flatten(2).transpose(1, 2), dim=-1)
            share = self.assign(x).softmax(-1)
            sums = torch.einsum("bnk,bnc->bkc", share, x)
            residuals = sums - share.sum(1).unsqueeze(-1) * self.centres
            return functional.normalize(residuals, dim=-1).flatten(1)

    def initialise(self, local_features: NDArray[np.float32], seed: int) -> None:
        """Puts the centres where k-means finds clusters in (N, C) local features, and fits the assignment to them."""
        centres, x = clustered(local_features, len(self.centres), seed)
        self.centres.data = torch.as_tensor(centres, dtype=torch.float32, device=self.centres.device)
        directions = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        best_two = np.sort(x[:10_000] @ directions.T, axis=1)[:, -2:]
        gap = float((best_two[:, 1] - best_two[:, 0]).mean())
        self._sharpen(math.log(ASSIGNMENT_RATIO) / max(gap, 1e-6))

    def _sharpen(self, alpha: float) -> None:
        self.assign.weight.data = alpha * functional.normalize(self.centres.data, dim=1)


class GhostClusters(Pool):
    """Features summed in `clusters`, without centres, each a unit vector; what goes to a `ghost` is dropped (SuperVLAD)."""

    def __init__(self, channels: int, grid: GridSize, *, clusters: int, ghosts: int = 1) -> None:
        super().__init__()
        self.dim, self.clusters = clusters * channels, clusters
        self.assign = nn.Linear(channels, clusters + ghosts, bias=False)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        x = functional.normalize(space.float().flatten(2).transpose(1, 2), dim=-1)
        share = self.assign(x).softmax(-1)[..., : self.clusters]
        return functional.normalize(torch.einsum("bnk,bnc->bkc", share, x), dim=-1).flatten(1)


class Vlad(Pool):
    """Residuals of unit features to a vocabulary, each cluster's as a unit vector: (B, clusters · C).

    A feature belongs to the centre with the largest cosine. With `soft`, each cluster gets the residuals to all
    centres, weighted by the feature's share in the cluster, as in AnyLoc's code.
    """

    def __init__(self, channels: int, grid: GridSize, *, clusters: int, soft: bool = False) -> None:
        super().__init__()
        self.dim, self.soft = clusters * channels, soft
        self.centres = nn.Parameter(functional.normalize(torch.randn(clusters, channels), dim=1), requires_grad=False)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        x = functional.normalize(space.float().flatten(2).transpose(1, 2), dim=-1)
        cosine = x @ functional.normalize(self.centres, dim=1).T
        if self.soft:
            share = cosine.softmax(-1)
            every = len(self.centres) * x - self.centres.sum(0)
            residuals = torch.einsum("bnk,bnc->bkc", share, every)
        else:
            share = functional.one_hot(cosine.argmax(-1), len(self.centres)).to(x)
            residuals = torch.einsum("bnk,bnc->bkc", share, x) - share.sum(1).unsqueeze(-1) * self.centres
        return functional.normalize(residuals, dim=-1).flatten(1)

    def initialise(self, local_features: NDArray[np.float32], seed: int) -> None:
        """Makes the vocabulary from the user's photos: k-means of their (N, C) local features."""
        centres, _ = clustered(local_features, len(self.centres), seed)
        self.centres.data = torch.as_tensor(centres, dtype=torch.float32, device=self.centres.device)


def clustered(
    local_features: NDArray[np.float32], clusters: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centres (clusters, C) that k-means finds among (N, C) features of unit length, and those features."""
    from scipy.cluster.vq import kmeans2

    if len(local_features) < clusters:
        raise InputError(f"{len(local_features)} local features cannot start {clusters} clusters; give more images")
    norms = np.linalg.norm(local_features, axis=1, keepdims=True)
    x = (local_features / np.maximum(norms, 1e-12)).astype(np.float64)
    centres, _ = kmeans2(x, clusters, iter=20, minit="++", missing="warn", rng=np.random.default_rng(seed))
    return centres, x


POOLS.register("netvlad16")(functools.partial(NetVlad, clusters=16))
POOLS.register("netvlad32")(functools.partial(NetVlad, clusters=32))
POOLS.register("netvlad64")(functools.partial(NetVlad, clusters=64))
POOLS.register("supervlad4")(functools.partial(GhostClusters, clusters=4))
POOLS.register("supervlad1")(functools.partial(GhostClusters, clusters=1, ghosts=2))
POOLS.register("vlad32")(functools.partial(Vlad, clusters=32))
POOLS.register("vlad64")(functools.partial(Vlad, clusters=64))
POOLS.register("vlad128")(functools.partial(Vlad, clusters=128))
POOLS.register("softvlad32")(functools.partial(Vlad, clusters=32, soft=True))
POOLS.register("softvlad64")(functools.partial(Vlad, clusters=64, soft=True))
POOLS.register("softvlad128")(functools.partial(Vlad, clusters=128, soft=True))
