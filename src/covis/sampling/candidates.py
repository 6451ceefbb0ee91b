"""Which map images may be drawn as a partner of which query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.sampling.kernels import Bands, Tables, count_candidates, pick_zero
from covis.sampling.strategies import Strategy


@dataclass(frozen=True, eq=False)
class Candidates:
    """The partners of every query in every band of a strategy, counted once."""

    tables: Tables
    bands: Bands
    counts: NDArray[np.int32]
    """(queries, bands) candidates."""
    zeros: NDArray[np.int32]
    """(queries,) ψ = 0 partners."""
    eligible: NDArray[np.int32]
    """Queries with a candidate in some band: one epoch passes over these."""
    band_start: NDArray[np.int64]
    band_rows: NDArray[np.int32]
    """Queries by band that have a candidate there; band b is band_start[b] … band_start[b + 1]."""

    @classmethod
    def of(cls, tables: Tables, strategy: Strategy, required: Sequence[int] | None = None) -> Candidates:
        """Counts the candidates; an error where no query has one in some band (of `required`; None = all)."""
        bands = Bands(
            np.array([b.low for b in strategy.bands], np.float32),
            np.array([b.high for b in strategy.bands], np.float32),
            np.array([b.zero for b in strategy.bands], np.bool_),
        )
        counts, zeros = count_candidates(tables, bands)
        rows = [np.flatnonzero(counts[:, b] > 0).astype(np.int32) for b in range(len(strategy.bands))]
        for b, band in enumerate(strategy.bands):
            if not len(rows[b]) and (required is None or b in required):
                raise InputError(
                    f"no query has a pair with ψ in {_interval(band.low, band.high, band.zero)}, which strategy "
                    f"{strategy.name!r} needs; choose another strategy or label with a larger radius"
                )
        start = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
        eligible = np.flatnonzero((counts > 0).any(axis=1)).astype(np.int32)
        return cls(tables, bands, counts, zeros, eligible, start, np.concatenate(rows))

    def limited(self, eligible: NDArray[np.int32]) -> Candidates:
        """The same with other eligible queries."""
        return replace(self, eligible=eligible)

    def pick_zeros(self, queries: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) the k-th ψ = 0 partner of each query."""
        return np.array([pick_zero(self.tables, i, n) for i, n in zip(queries, k, strict=True)], np.int64)


def make_tables(graph: SimilarityGraph, queries: ImageSet | None, database: ImageSet | None) -> Tables:
    """The graph as kernels read it, with a pool of ψ = 0 partners a group (or one, where groups do not matter).

    Images whose place is unknown have no label: they are in no pool, for absent there does not mean 0.
    """
    _check_sizes(graph, queries, database)
    return tables_of(graph, *pools(graph, queries, database))


def tables_of(graph: SimilarityGraph, row_pool: NDArray[np.int32], pool_of: NDArray[np.int32]) -> Tables:
    """The graph as kernels read it; `row_pool` (rows,) and `pool_of` (columns,) name pools, −1 for none."""
    order = np.argsort(pool_of, kind="stable")
    order = order[pool_of[order] >= 0]
    number = max(row_pool.max(initial=-1), pool_of.max(initial=-1)) + 1
    start = np.searchsorted(pool_of[order], np.arange(number + 1)).astype(np.int64)
    rank = np.full(len(pool_of), -1, np.int32)
    rank[order] = np.arange(len(order)) - start[pool_of[order]]
    return Tables(
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


def _check_sizes(graph: SimilarityGraph, queries: ImageSet | None, database: ImageSet | None) -> None:
    for side, images, n in (("queries", queries, graph.shape[0]), ("database", database, graph.shape[1])):
        if images is not None and len(images) != n:
            raise InputError(f"the graph has {n} {side}, the image set {len(images)}; give the set it was made from")


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    # Memory-mapped and writable arrays are types of their own to the compiler; one read-only view serves for all.
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _interval(low: float, high: float, zero: bool) -> str:
    if high == 0:
        return "{0}"
    return f"{'[' if zero or low > 0 else '('}{low:g}, {high:g}{']' if high == 1 else ')'}"
