"""Learned queries that attend to the map, layer by layer (Bag of Queries, EDTformer)."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from covis.models.pooling.base import POOLS, GridSize, Pool


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


class DecoderBlock(nn.Module):
    """Learned queries attend to each other, then to the features."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.among_queries = nn.MultiheadAttention(width, heads, batch_first=True)
        self.to_features = nn.MultiheadAttention(width, heads, batch_first=True)
        self.query_norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, queries: Tensor, features: Tensor) -> Tensor:
        queries = self.query_norm(queries + self.among_queries(queries, queries, queries, need_weights=False)[0])
        answers = self.to_features(queries, features, features, need_weights=False)[0]
        normed: Tensor = self.out_norm(queries + answers)
        return normed


class DecodedQueries(Pool):
    """Queries decoded from summary and map, then fewer channels and rows: (B, 256 · 16) (EDTformer)."""

    def __init__(self, channels: int, grid: GridSize, *, queries: int = 64, width: int = 256, rows: int = 16) -> None:
        super().__init__()
        self.dim = width * rows
        self.features = nn.Linear(channels, channels)
        self.queries = nn.Parameter(1e-6 * torch.randn(1, queries, channels))
        self.layers = nn.ModuleList(DecoderBlock(channels, math.gcd(channels, 16)) for _ in range(2))
        self.to_channels, self.to_rows = nn.Linear(channels, width), nn.Linear(queries, rows)

    def forward(self, space: Tensor, summary: Tensor) -> Tensor:
        features = self.features(torch.cat([summary.unsqueeze(1), space.flatten(2).transpose(1, 2)], 1).float())
        queries = self.queries.expand(len(space), -1, -1)
        for layer in self.layers:
            queries = layer(queries, features)
        mixed: Tensor = self.to_rows(self.to_channels(queries).transpose(1, 2))
        return mixed.flatten(1)


POOLS.register("edtformer4096")(DecodedQueries)
POOLS.register("boq16384")(functools.partial(BagOfQueries, width=512))
POOLS.register("boq12288")(functools.partial(BagOfQueries, width=384))
