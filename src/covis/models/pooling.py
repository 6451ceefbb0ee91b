"""Poolings and aggregators: feature maps → one vector.

Every pooling is a module made as `(channels, grid)`, where `grid()` works out the map's (rows, columns) at the model's
image size for those that need it. It turns the map (B, C, h, w) and the backbone's summary (B, C) into (B, dim), and
has the attribute `dim`; the model normalises the result.

`netvlad16`, `32`, `64`        residuals to cluster centres, softly assigned; centres start from clustered features
`mix`                         layers that mix all places of the map, then fewer channels and rows (MixVPR's way)
`mixvpr4096`, `512`, `128`    the same in the sizes that its authors published
`gemfc512` …                  a generalised mean of unit features, then a linear layer (CosPlace, EigenPlaces)
`gemwhiten2048` …             a generalised mean, then a linear layer on its unit vector (cirtorch)
`boq16384`, `boq12288`        learned queries that attend to the map, layer by layer (Bag of Queries)
`salad8448`, `megaloc8448`    optimal transport as published, the second behind a linear layer
`transvpr256`                 one attention mask for each level of the map, then a linear layer (TransVPR)
`selavpr`                     a generalised mean of unit features, beside a finer map to re-rank with (SelaVPR)
`cricavpr`                    the summary and 13 regions, each encoded (CricaVPR)
`vlad32`, `softvlad32`        residuals to a vocabulary, assigned to the nearest or softly (AnyLoc)
`rmac`                        maxima of square regions of three sizes, as unit vectors added up (R-MAC)
`transport16`, `transport64`  features carried to clusters by optimal transport, with a bin for the useless (SALAD's way)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from covis.core.errors import InputError
from covis.core.registry import Registry

GridSize = Callable[[], tuple[int, int]]

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


POOLS: Registry[Callable[[int, GridSize], Pool]] = Registry("pooling")


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


ASSIGNMENT_RATIO = 100.0
"""NetVLAD starts with the best centre this many times as likely as the second, on average."""
SINKHORN_ROUNDS = 3
SALAD_HIDDEN = 512


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


class MixedMap(Pool):
    """Residual layers over all places of a map, then projections to fewer channels and rows: (B, channels · rows)."""

    def __init__(
        self, channels: int, grid: GridSize, *, depth: int = 4, out_channels: int = 512, rows: int = 4
    ) -> None:
        super().__init__()
        self.grid = grid()
        places = self.grid[0] * self.grid[1]
        out_channels = min(out_channels, channels)
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


class QueryBlock(nn.Module):
    """Features attend to each other, learned queries to each other, then the queries to the features."""

    def __init__(self, width: int, queries: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.encoder = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        self.among_queries = nn.MultiheadAttention(width, heads, batch_first=True)
        self.query_norm = nn.LayerNorm(width)
        self.to_features = nn.MultiheadAttention(width, heads, batch_first=True)
        self.out_norm = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, width) → the features for the next block, and the queries' answers (B, queries, width)."""
        features = self.encoder(features)
        queries = self.queries.expand(len(features), -1, -1)
        queries = self.query_norm(queries + self.among_queries(queries, queries, queries, need_weights=False)[0])
        return features, self.out_norm(self.to_features(queries, features, features, need_weights=False)[0])


class BagOfQueries(Pool):
    """Learned queries attend to a map, block after block, and are mixed into `rows` vectors: (B, width · rows)."""

    def __init__(
        self, channels: int, grid: GridSize, *, width: int, rows: int = 32, queries: int = 64, depth: int = 2
    ) -> None:
        super().__init__()
        self.dim = width * rows
        self.reduce = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(QueryBlock(width, queries) for _ in range(depth))
        self.mix = nn.Linear(depth * queries, rows)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        features = self.norm(self.reduce(space.float()).flatten(2).transpose(1, 2))
        all_answers = []
        for layer in self.layers:
            features, answers = layer(features)
            all_answers.append(answers)
        mixed: Tensor = self.mix(torch.cat(all_answers, 1).transpose(1, 2))
        return mixed.flatten(1)


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


for _clusters in (16, 32, 64):
    POOLS.register(f"netvlad{_clusters}")(functools.partial(NetVlad, clusters=_clusters))
for _clusters in (32, 64, 128):
    POOLS.register(f"vlad{_clusters}")(functools.partial(Vlad, clusters=_clusters))
    POOLS.register(f"softvlad{_clusters}")(functools.partial(Vlad, clusters=_clusters, soft=True))
POOLS.register("transvpr256")(AttendedLevels)
POOLS.register("selavpr")(MeanWithFinerMap)
POOLS.register("cricavpr")(EncodedRegions)
POOLS.register("mix")(MixedMap)
POOLS.register("transport16")(functools.partial(TransportedClusters, clusters=16, depth=64, extra=128))
POOLS.register("transport64")(functools.partial(TransportedClusters, clusters=64, depth=128, extra=256))
POOLS.register("salad8448")(Salad)
POOLS.register("megaloc8448")(functools.partial(ProjectedSalad, dim=8448))
POOLS.register("boq16384")(functools.partial(BagOfQueries, width=512))
POOLS.register("boq12288")(functools.partial(BagOfQueries, width=384))
for _channels, _rows in ((1024, 4), (256, 2), (64, 2)):
    POOLS.register(f"mixvpr{_channels * _rows}")(functools.partial(MixedMap, out_channels=_channels, rows=_rows))
for _dim in (32, 64, 128, 256, 512, 1024, 2048):
    POOLS.register(f"gemfc{_dim}")(functools.partial(ProjectedMean, dim=_dim, unit="features"))
for _dim in (512, 1024, 2048):
    POOLS.register(f"gemwhiten{_dim}")(functools.partial(ProjectedMean, dim=_dim, unit="mean"))
