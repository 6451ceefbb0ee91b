"""Labelled rows in any order, group by group where asked → one compressed sparse graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.compiling import kernel
from covis.graph import SimilarityGraph
from covis.images import ImageSet


class LabelRows(NamedTuple):
    """Some rows: their ids, how many pairs each has, and the pairs of all of them, ascending within a row."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    columns: NDArray[np.int32]
    psi: NDArray[np.float32]


class SparseRows(NamedTuple):
    """Compressed sparse rows."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]


def assemble(rows: Iterable[LabelRows], n_rows: int, *, mirror: bool) -> SparseRows:
    """All rows in order; `mirror` adds (j, i) for each (i, j). Each part is freed as soon as it is copied."""
    parts = list(rows)
    indptr = np.zeros(n_rows + 1, np.int64)
    for part in parts:
        indptr[part.ids + 1] = part.counts
    np.cumsum(indptr, out=indptr)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    while parts:
        part = parts.pop()
        _copy_rows(part, indptr, indices, values)
    matrix = SparseRows(indptr, indices, values)
    return _mirror(matrix) if mirror else matrix


@kernel()
def _copy_rows(
    part: LabelRows, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float32]
) -> None:
    at = 0
    for k in range(len(part.ids)):
        to, n = indptr[part.ids[k]], part.counts[k]
        for s in range(n):
            indices[to + s], values[to + s] = part.columns[at + s], part.psi[at + s]
        at += n


@kernel()
def _mirror(upper: SparseRows) -> SparseRows:
    """The full symmetric matrix of an upper triangle; rows stay ascending because i ascends."""
    n = len(upper.indptr) - 1
    indptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        indptr[i + 1] += upper.indptr[i + 1] - upper.indptr[i]
    for j in upper.indices:
        indptr[j + 1] += 1
    for i in range(n):
        indptr[i + 1] += indptr[i]
    free = indptr[:-1].copy()
    indices, values = np.empty(indptr[n], np.int32), np.empty(indptr[n], np.float32)
    for i in range(n):
        for k in range(upper.indptr[i], upper.indptr[i + 1]):
            j = upper.indices[k]
            indices[free[j]], values[free[j]] = i, upper.values[k]
            free[j] += 1
    for i in range(n):
        for k in range(upper.indptr[i], upper.indptr[i + 1]):
            indices[free[i]], values[free[i]] = upper.indices[k], upper.values[k]
            free[i] += 1
    return SparseRows(indptr, indices, values)


Advance = Callable[[int], None] | None
"""Called with the number of queries labelled since the previous call."""
Members = NDArray[np.int32] | None
"""Ids of one group's images; None for all images."""


def build_graph(
    queries: ImageSet,
    database: ImageSet,
    label: Callable[[Members, Members], Iterator[LabelRows]],
    *,
    facts: Mapping[str, Any],
    mirror: bool,
    advance: Advance,
) -> SimilarityGraph:
    """The graph of all rows that `label` yields for each pair of groups; `mirror` if it yields only i < j."""

    def rows() -> Iterable[LabelRows]:
        for i, j in group_pairs(queries, database, bool(facts["within_group"])):
            for part in label(i, j):
                yield _renumber(part, i, j)
                if advance is not None:
                    advance(len(part.ids))

    matrix = assemble(rows(), len(queries), mirror=mirror)
    graph = SimilarityGraph(*matrix, (len(queries), len(database)), facts)
    return graph.keep(graph.rows != graph.indices) if queries is database and not mirror else graph


def group_pairs(queries: ImageSet, database: ImageSet, within_group: bool) -> Iterator[tuple[Members, Members]]:
    """Ids on both sides that are to be compared: every pair, or group by group (by name)."""
    if not within_group:
        yield None, None
        return
    query_members, database_members = _members(queries), _members(database)
    for name in sorted(query_members.keys() & database_members.keys()):
        yield query_members[name], database_members[name]


def _members(images: ImageSet) -> dict[str, NDArray[np.int32]]:
    order = np.argsort(images.group, kind="stable").astype(np.int32)
    edges = np.searchsorted(images.group[order], np.arange(len(images.group_names) + 1))
    return {
        name: order[edges[code] : edges[code + 1]]
        for code, name in enumerate(images.group_names)
        if edges[code + 1] > edges[code]
    }


def _renumber(part: LabelRows, i: Members, j: Members) -> LabelRows:
    if i is None or j is None:
        return part
    return LabelRows(i[part.ids].astype(np.int64), part.counts, j[part.columns], part.psi)
