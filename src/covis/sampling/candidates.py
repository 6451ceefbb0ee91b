"""Which map images may be drawn as a partner of which query, and drawing among them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling.composition import Strategy


class Tables(NamedTuple):
    """A graph and the pools of its ψ = 0 pairs (rows = queries, columns = map images)."""

    graph: SimilarityGraph
    row_pool: NDArray[np.int32]
    """(rows,) the pool that ψ = 0 partners of a query come from, −1 for none."""
    pool_of: NDArray[np.int32]
    """(columns,) the pool of each map image, −1 for none."""
    pool_rank: NDArray[np.int32]
    """(columns,) its place in that pool."""
    pool_start: NDArray[np.int64]
    pool_ids: NDArray[np.int32]
    """Map images by pool, ascending within each; pool g is pool_start[g] … pool_start[g + 1]."""
    zeros: NDArray[np.int32]
    """(rows,) ψ = 0 partners: how many images of its pool a query does not overlap with, itself not counted."""

    @property
    def one_set(self) -> bool:
        """Whether a set is matched with itself."""
        return bool(self.graph.facts.get("one_set", False))


class Candidates(NamedTuple):
    """The partners of every query in every band of a strategy."""

    tables: Tables
    order: NDArray[Any]
    """(pairs,) the places of a row's stored pairs, band by band."""
    edges: NDArray[np.int32]
    """(rows, bands + 1) where each band begins in its row's order."""
    counts: NDArray[np.int32]
    """(rows, bands) number of candidates, with ψ = 0 partners where the band holds those; stored ones come first."""
    eligible: NDArray[np.int32]
    """Queries with a candidate in some band: one epoch passes over these."""
    band_rows: list[NDArray[np.int32]]
    """The queries that have a candidate, of each band."""


def find_candidates(tables: Tables, strategy: Strategy, required: Sequence[int] | None = None) -> Candidates:
    """The candidates of every band; an error where no query has one in some band (of `required`; None = all)."""
    order, edges = _order_by_band(tables.graph, strategy)
    with_zero = np.array([b.zero for b in strategy.bands], np.int32)
    counts = (np.diff(edges, axis=1) + tables.zeros[:, None] * with_zero).astype(np.int32)
    rows = [np.flatnonzero(column > 0).astype(np.int32) for column in counts.T]
    for b, band in enumerate(strategy.bands):
        if not len(rows[b]) and (required is None or b in required):
            raise InputError(
                f"no query has a pair with ψ in {band}, which strategy {strategy.name!r} needs; choose another strategy, "
                "or labels with such pairs"
            )
    eligible = np.flatnonzero((counts > 0).any(axis=1)).astype(np.int32)
    return Candidates(tables, order, edges, counts, eligible, rows)


def _order_by_band(graph: SimilarityGraph, strategy: Strategy) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """(pairs,) places of each row's pairs in order of their bands, and the edges (rows, bands + 1) of these."""
    first, lengths = graph.indptr[:-1], np.diff(graph.indptr)
    order = np.empty(graph.pairs, np.uint16 if lengths.max(initial=0) <= 1 << 16 else np.int32)
    edges = np.zeros((len(lengths), len(strategy.bands) + 1), np.int32)
    for b, band in enumerate(strategy.bands):
        inside = graph.values >= _stored(band.low, graph)
        if band.high < 1:
            inside &= graph.values < _stored(band.high, graph)
        at = np.flatnonzero(inside)
        row = np.searchsorted(graph.indptr, at, side="right") - 1
        count = np.bincount(row, minlength=len(lengths))
        rank = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
        order[first[row] + edges[row, b] + rank] = at - first[row]
        edges[:, b + 1] = edges[:, b] + count
    return order, edges


def _stored(psi: float, graph: SimilarityGraph) -> Any:
    """The least stored value whose ψ is at least `psi`, so that bands can be compared without decoding."""
    if graph.values.dtype != np.uint8:
        return np.float32(psi)
    return np.searchsorted(np.arange(256, dtype=np.float32) / np.float32(255), np.float32(psi))


def possible(strategy: Strategy, tables: Tables) -> Strategy:
    """The strategy, without ψ = 0 where every image overlaps every other, as in a small room; this gives a warning."""
    if not any(b.high == 0 for b in strategy.bands) or tables.zeros.any():
        return strategy
    reduced = strategy.without_zeros()
    least = min(reduced.bands, key=attrgetter("low"))
    warn(f"every pair of images overlaps: strategy {strategy.name!r} draws ψ in {least} instead of ψ = 0")
    return reduced


def make_tables(graph: SimilarityGraph, split: Split | None) -> Tables:
    """The graph with a pool of ψ = 0 partners per group (or one, where groups do not matter).

    Images whose place is unknown have no label. They are in no pool, as for them a missing pair does not mean ψ = 0.
    """
    return tables_of(graph, *pools(graph, split))


def tables_of(graph: SimilarityGraph, row_pool: NDArray[np.int32], pool_of: NDArray[np.int32]) -> Tables:
    """The tables of a graph; `row_pool` (rows,) and `pool_of` (columns,) name pools, −1 for none."""
    order = np.argsort(pool_of, kind="stable")
    order = order[pool_of[order] >= 0]
    number = max(row_pool.max(initial=-1), pool_of.max(initial=-1)) + 1
    start = np.searchsorted(pool_of[order], np.arange(number + 1)).astype(np.int64)
    rank = np.full(len(pool_of), -1, np.int32)
    rank[order] = np.arange(len(order)) - start[pool_of[order]]
    tables = Tables(graph, row_pool, pool_of, rank, start, order.astype(np.int32), np.zeros(0, np.int32))
    rows = np.repeat(np.arange(len(row_pool), dtype=np.int32), np.diff(graph.indptr))
    stray = pool_of[graph.indices] != row_pool[rows]
    stray |= (graph.indices == rows) & tables.one_set
    if stray.any():
        at = int(stray.argmax())
        raise InputError(
            f"the graph holds the pair ({rows[at]}, {graph.indices[at]}) of an image with itself, of another group or "
            "without a place; label the image sets again"
        )
    zeros = np.diff(start)[row_pool] - np.diff(graph.indptr) if number else np.zeros(len(row_pool))
    if tables.one_set:
        zeros = zeros - (pool_of == row_pool)
    return tables._replace(zeros=np.where(row_pool >= 0, zeros, 0).astype(np.int32))


def pools(graph: SimilarityGraph, split: Split | None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pool of each query and of each map image: its group where the graph was labelled within groups."""
    if split is None:
        if graph.facts.get("within_group"):
            raise InputError("the graph was labelled within groups; give the sampler its image sets as well")
        return np.zeros(graph.shape[0], np.int32), np.zeros(graph.shape[1], np.int32)
    sizes = len(split.queries), len(split.database)
    if graph.shape != sizes:
        raise InputError(f"the graph is of {graph.shape} images, the sets of {sizes}; give the sets it was made from")
    names = sorted({*split.queries.group_names, *split.database.group_names})
    code = {name: k if graph.facts.get("within_group") else 0 for k, name in enumerate(names)}
    row_pool, pool_of = (
        np.where(side.poses.known, np.array([code[n] for n in side.group_names], np.int32)[side.group], -1)
        for side in split
    )
    return row_pool.astype(np.int32), pool_of.astype(np.int32)


def pick_zeros(t: Tables, i: Ids, k: Ids) -> Ids:
    """(K,) the k-th image of the pool of each row i that is neither stored in the row nor the row's own image."""
    own, place = t.row_pool[i], _absent(t, i, k)
    if t.one_set:
        passed = (t.pool_of[i] == own) & (place >= t.pool_rank[i])
        place[passed] = _absent(t, i[passed], k[passed] + 1)
    return np.asarray(t.pool_ids[t.pool_start[own] + place], np.int64)


def _absent(t: Tables, i: Ids, k: Ids) -> Ids:
    """(K,) place in its pool of the k-th image that row i does not store.

    The m-th stored image, at place p, has p − m absent ones before it. This never falls with m, so bisection finds it.
    """
    first = t.graph.indptr[i]
    low, high = np.zeros(len(i), np.int64), np.asarray(t.graph.indptr[i + 1] - first)
    while (searching := np.flatnonzero(low < high)).size:
        middle = (low[searching] + high[searching]) // 2
        stored = t.graph.indices[first[searching] + middle]
        before = t.pool_rank[stored] - middle <= k[searching]
        low[searching] = np.where(before, middle + 1, low[searching])
        high[searching] = np.where(before, high[searching], middle)
    return k + low


def pick(c: Candidates, i: Ids, band: Ids, k: Ids) -> tuple[Ids, NDArray[np.float32]]:
    """(K,) column and ψ of the k-th candidate of each query i in a band, stored or not."""
    graph = c.tables.graph
    begin = c.edges[i, band]
    stored = k < c.edges[i, band + 1] - begin
    first = graph.indptr[i[stored]]
    at = first + c.order[first + begin[stored] + k[stored]]
    column, psi = np.empty(len(i), np.int64), np.zeros(len(i), np.float32)
    column[stored], psi[stored] = graph.indices[at], graph.psi_at(at)
    free = ~stored
    column[free] = pick_zeros(c.tables, i[free], k[free] - (c.edges[i, band + 1] - begin)[free])
    return column, psi
