"""Which map images may be drawn as a partner of which query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError, unknown_name
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.sampling.batches import Strategy
from covis.sampling.kernels import Candidates, Key, Tables, count_zeros, find_stray, many_below, order_by_band

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

Zeros = Literal["uniform", "near"]
NEAREST = 16
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

    def draw(self, queries: NDArray[np.int64], key: Key, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) a partner of each query, uniform among its closest; every query must have a ψ = 0 partner."""
        near = self.closest(queries)
        choice = many_below(key, positions, _STREAM, (near >= 0).sum(1))
        picked: NDArray[np.int64] = near[np.arange(len(near)), choice]
        return picked

    def closest(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K, NEAREST) closest images without overlap in order of distance, −1 where there are fewer."""
        out = np.full((len(queries), NEAREST), -1, np.int64)
        pool = self.tables.row_pool[queries]
        for p in np.unique(pool):
            rows = np.flatnonzero(pool == p)
            ids = self.tables.pool_ids[self.tables.pool_start[p] : self.tables.pool_start[p + 1]].astype(np.int64)
            reach = min(2 * NEAREST, len(ids))
            while len(rows):
                found = self._without_overlap(queries[rows], self.trees[int(p)], ids, reach)
                full = (found[:, -1] >= 0) if found.shape[1] == NEAREST else np.zeros(len(rows), np.bool_)
                done = np.ones(len(rows), np.bool_) if reach == len(ids) else full
                out[rows[done], : found.shape[1]] = found[done]
                rows, reach = rows[~done], min(2 * reach, len(ids))
        return out

    def _without_overlap(
        self, queries: NDArray[np.int64], tree: cKDTree, ids: NDArray[np.int64], reach: int
    ) -> NDArray[np.int64]:
        """(K, ≤ NEAREST) those of the `reach` closest that do not overlap, packed to the left, −1 behind them."""
        _, at = tree.query(self.xy[queries], k=np.arange(1, reach + 1))
        near = ids[at]
        free = self.graph.lookup(queries[:, None], near) == 0
        if self.tables.one_set:
            free &= near != queries[:, None]
        order = np.argsort(~free, axis=1, kind="stable")[:, :NEAREST]
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


# Which map images may be drawn as a partner of which query.


def find_candidates(tables: Tables, strategy: Strategy, required: Sequence[int] | None = None) -> Candidates:
    """The candidates of every band; an error where no query has one in some band (of `required`; None = all)."""
    low = np.array([_limit(b.low, tables) for b in strategy.bands], np.float32)
    high = np.array([_limit(b.high, tables) if b.high < 1 else np.inf for b in strategy.bands], np.float32)
    longest = int(np.diff(tables.indptr).max(initial=0))
    order = np.empty(len(tables.indices), np.uint16 if longest <= 1 << 16 else np.int32)
    edges, zeros = order_by_band(tables, low, high, order), count_zeros(tables)
    with_zero = np.array([b.zero for b in strategy.bands], np.int32)
    counts = (np.diff(edges, axis=1) + zeros[:, None] * with_zero).astype(np.int32)
    rows = [np.flatnonzero(counts[:, b] > 0).astype(np.int32) for b in range(len(strategy.bands))]
    for b, band in enumerate(strategy.bands):
        if not len(rows[b]) and (required is None or b in required):
            raise InputError(
                f"no query has a pair with ψ in {band}, which strategy {strategy.name!r} needs; choose another strategy "
                "or label with a larger radius"
            )
    start = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    eligible = np.flatnonzero((counts > 0).any(axis=1)).astype(np.int32)
    return Candidates(tables, order, edges, zeros, counts, eligible, start, np.concatenate(rows))


def make_tables(graph: SimilarityGraph, queries: ImageSet | None, database: ImageSet | None) -> Tables:
    """The graph as kernels read it, with a pool of ψ = 0 partners per group (or one, where groups do not matter).

    Images whose place is unknown have no label: they are in no pool, for absent there does not mean 0.
    """
    for side, images, n in (("queries", queries, graph.shape[0]), ("database", database, graph.shape[1])):
        if images is not None and len(images) != n:
            raise InputError(f"the graph has {n} {side}, the image set {len(images)}; give the set it was made from")
    return tables_of(graph, *pools(graph, queries, database))


def tables_of(graph: SimilarityGraph, row_pool: NDArray[np.int32], pool_of: NDArray[np.int32]) -> Tables:
    """The graph as kernels read it; `row_pool` (rows,) and `pool_of` (columns,) name pools, −1 for none."""
    order = np.argsort(pool_of, kind="stable")
    order = order[pool_of[order] >= 0]
    number = max(row_pool.max(initial=-1), pool_of.max(initial=-1)) + 1
    start = np.searchsorted(pool_of[order], np.arange(number + 1)).astype(np.int64)
    rank = np.full(len(pool_of), -1, np.int32)
    rank[order] = np.arange(len(order)) - start[pool_of[order]]
    tables = Tables(
        _plain(graph.indptr),
        _plain(graph.indices),
        _plain(graph.values),
        np.float32(255 if graph.values.dtype == np.uint8 else 1),
        row_pool,
        pool_of,
        rank,
        start,
        order.astype(np.int32),
        bool(graph.facts.get("one_set", False)),
    )
    stray = int(find_stray(tables))
    if stray >= 0:
        row = int(np.searchsorted(graph.indptr, stray, side="right")) - 1
        raise InputError(
            f"the graph holds the pair ({row}, {graph.indices[stray]}) of an image with itself, of another group or without "
            "a place; label the image sets again"
        )
    return tables


def pools(
    graph: SimilarityGraph, queries: ImageSet | None, database: ImageSet | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pool of each query and of each map image: its group where the graph was labelled within groups."""
    row_pool, pool_of = np.zeros(graph.shape[0], np.int32), np.zeros(graph.shape[1], np.int32)
    if queries is None or database is None:
        if graph.facts.get("within_group"):
            raise InputError("the graph was labelled within groups; give the sampler both image sets as well")
        return row_pool, pool_of
    if graph.facts.get("within_group"):
        names = sorted({*queries.group_names, *database.group_names})
        code = {name: k for k, name in enumerate(names)}
        row_pool = np.array([code[n] for n in queries.group_names], np.int32)[queries.group]
        pool_of = np.array([code[n] for n in database.group_names], np.int32)[database.group]
    row_pool = np.where(queries.poses.known, row_pool, -1).astype(np.int32)
    return row_pool, np.where(database.poses.known, pool_of, -1).astype(np.int32)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    # Memory-mapped and writable arrays are types of their own to the compiler; one read-only view serves for all.
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _limit(psi: float, tables: Tables) -> float:
    """The least stored value whose ψ is at least `psi`, so that bands can be told without decoding."""
    if tables.values.dtype != np.uint8:
        return psi
    return float(np.searchsorted(np.arange(256, dtype=np.float32) / tables.scale, np.float32(psi)))
