"""Which map images may be drawn as a partner of which query."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.progress import warn
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling.composition import Strategy
from covis.sampling.kernels import Candidates, Tables, count_zeros, find_stray, order_by_band


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
                f"no query has a pair with ψ in {band}, which strategy {strategy.name!r} needs; choose another strategy, "
                "or labels with such pairs"
            )
    start = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    eligible = np.flatnonzero((counts > 0).any(axis=1)).astype(np.int32)
    return Candidates(tables, order, edges, zeros, counts, eligible, start, np.concatenate(rows))


def possible(strategy: Strategy, tables: Tables) -> Strategy:
    """The strategy, without ψ = 0 where every image overlaps every other, as in a small room; this gives a warning."""
    if not any(b.high == 0 for b in strategy.bands) or count_zeros(tables).any():
        return strategy
    reduced = strategy.without_zeros()
    least = min(reduced.bands, key=attrgetter("low"))
    warn(f"every pair of images overlaps: strategy {strategy.name!r} draws ψ in {least} instead of ψ = 0")
    return reduced


def make_tables(graph: SimilarityGraph, split: Split | None) -> Tables:
    """The graph as kernels read it, with a pool of ψ = 0 partners per group (or one, where groups do not matter).

    Images whose place is unknown have no label. They are in no pool, as for them a missing pair does not mean ψ = 0.
    """
    return tables_of(graph, *pools(graph, split))


def tables_of(graph: SimilarityGraph, row_pool: NDArray[np.int32], pool_of: NDArray[np.int32]) -> Tables:
    """The graph as kernels read it; `row_pool` (rows,) and `pool_of` (columns,) name pools, −1 for none."""
    order = np.argsort(pool_of, kind="stable")
    order = order[pool_of[order] >= 0]
    number = max(row_pool.max(initial=-1), pool_of.max(initial=-1)) + 1
    start = np.searchsorted(pool_of[order], np.arange(number + 1)).astype(np.int64)
    rank = np.full(len(pool_of), -1, np.int32)
    rank[order] = np.arange(len(order)) - start[pool_of[order]]
    tables = Tables(
        _read_only(graph.indptr),
        _read_only(graph.indices),
        _read_only(graph.values),
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


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # Memory-mapped and writable arrays are types of their own to the compiler; one read-only view serves for all.
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _limit(psi: float, tables: Tables) -> float:
    """The least stored value whose ψ is at least `psi`, so that bands can be compared without decoding."""
    if tables.values.dtype != np.uint8:
        return psi
    return float(np.searchsorted(np.arange(256, dtype=np.float32) / tables.scale, np.float32(psi)))
