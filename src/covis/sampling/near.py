"""Pairs without overlap that lie close to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError, unknown_name
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.sampling.kernels import RandomKey, Tables, many_below

if TYPE_CHECKING:
    from scipy.spatial import cKDTree


Zeros = Literal["uniform", "near"]
NEAR_IMAGES = 16
"""A near pair is one of this many closest images without overlap."""
_STREAM = 3


@dataclass(frozen=True, eq=False)
class NearZeros:
    """Draws one of the closest ψ = 0 partners of a query."""

    graph: SimilarityGraph
    tables: Tables
    xy: NDArray[np.float64]
    """(queries, 2) positions in metres."""
    trees: Mapping[int, cKDTree]
    """Positions of each pool's images."""

    def draw(self, queries: NDArray[np.int64], key: RandomKey, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) a partner of each query, uniform among its closest; every query must have a ψ = 0 partner."""
        near = self.closest(queries)
        choice = many_below(key, positions, _STREAM, (near >= 0).sum(1))
        picked: NDArray[np.int64] = near[np.arange(len(near)), choice]
        return picked

    def closest(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K, NEAR_IMAGES) closest images without overlap in order of distance, −1 where there are fewer."""
        out = np.full((len(queries), NEAR_IMAGES), -1, np.int64)
        pool = self.tables.row_pool[queries]
        for p in np.unique(pool):
            rows = np.flatnonzero(pool == p)
            ids = self.tables.pool_ids[self.tables.pool_start[p] : self.tables.pool_start[p + 1]].astype(np.int64)
            reach = min(2 * NEAR_IMAGES, len(ids))
            while len(rows):
                nearest = self._without_overlap(queries[rows], self.trees[int(p)], ids, reach)
                full = (nearest[:, -1] >= 0) if nearest.shape[1] == NEAR_IMAGES else np.zeros(len(rows), np.bool_)
                done = np.ones(len(rows), np.bool_) if reach == len(ids) else full
                out[rows[done], : nearest.shape[1]] = nearest[done]
                rows, reach = rows[~done], min(2 * reach, len(ids))
        return out

    def _without_overlap(
        self, queries: NDArray[np.int64], tree: cKDTree, ids: NDArray[np.int64], reach: int
    ) -> NDArray[np.int64]:
        """(K, ≤ NEAR_IMAGES) those of the `reach` closest that do not overlap, packed to the left, −1 behind them."""
        _, at = tree.query(self.xy[queries], k=np.arange(1, reach + 1))
        near = ids[at]
        free = self.graph.lookup(queries[:, None], near) == 0
        if self.tables.one_set:
            free &= near != queries[:, None]
        order = np.argsort(~free, axis=1, kind="stable")[:, :NEAR_IMAGES]
        packed = np.where(np.take_along_axis(free, order, 1), np.take_along_axis(near, order, 1), -1)
        return packed.astype(np.int64)


def near_zeros(
    graph: SimilarityGraph, tables: Tables, zeros: Zeros, queries: ImageSet | None, database: ImageSet | None
) -> NearZeros | None:
    """What draws near pairs, or None where any pair will do."""
    if zeros == "uniform":
        return None
    if zeros != "near":
        raise unknown_name("choice of ψ = 0 pairs", zeros, ("uniform", "near"))
    if queries is None or database is None:
        raise InputError("near pairs are found by position; give the sampler both image sets as well")
    from scipy.spatial import cKDTree

    starts = tables.pool_start
    trees = {
        p: cKDTree(database.poses.xy[tables.pool_ids[starts[p] : starts[p + 1]]])
        for p in range(len(starts) - 1)
        if starts[p + 1] > starts[p]
    }
    return NearZeros(graph, tables, queries.poses.xy, trees)
