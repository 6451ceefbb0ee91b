"""Labelled rows in any order, group by group where asked → one compressed sparse graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.compiling import kernel
from covis.graph import SimilarityGraph
from covis.images import ImageSet


class LabelRows(NamedTuple):
    """Some queries, and all pairs of theirs."""

    ids: Ids
    row: Ids
    """(P,) which of `ids` a pair is of, ascending."""
    column: Ids
    """(P,) ascending within a query."""
    psi: Floats


Advance = Callable[[int], None] | None
"""Called with the number of queries labelled since the previous call."""
Members = Ids
"""Ids of one group's images, or of all."""


def build_graph(
    queries: ImageSet,
    database: ImageSet,
    label: Callable[[Members, Members], Iterator[LabelRows]],
    facts: Mapping[str, Any],
    advance: Advance,
) -> SimilarityGraph:
    """The graph of all rows that `label` yields for each pair of groups; of one set with itself only pairs i < j."""
    parts = []
    for i, j in group_pairs(queries, database, bool(facts["within_group"])):
        for ids, row, column, psi in label(i, j):
            parts.append(
                (i[ids], np.bincount(row, minlength=len(ids)), j[column].astype(np.int32), psi.astype(np.float32))
            )
            if advance is not None:
                advance(len(ids))
    rows = _assemble(parts, len(queries))
    if queries is database:
        rows = _mirror(*rows)
    return SimilarityGraph(*rows, (len(queries), len(database)), facts)


_Csr = tuple[Ids, NDArray[np.int32], NDArray[np.float32]]


def _assemble(parts: list[tuple[Ids, Ids, NDArray[np.int32], NDArray[np.float32]]], n_rows: int) -> _Csr:
    """All rows in order, from ids, pairs per id, columns and ψ; each part is freed as soon as it is copied."""
    indptr = np.zeros(n_rows + 1, np.int64)
    for ids, counts, _, _ in parts:
        indptr[ids + 1] = counts
    np.cumsum(indptr, out=indptr)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    while parts:
        ids, counts, columns, psi = parts.pop()
        at = np.repeat(indptr[ids] - (np.cumsum(counts) - counts), counts) + np.arange(len(psi))
        indices[at], values[at] = columns, psi
    return indptr, indices, values


@kernel()
def _mirror(indptr: Ids, indices: NDArray[np.int32], values: NDArray[np.float32]) -> _Csr:
    """The full symmetric matrix of an upper triangle; rows are filled in order, so columns ascend."""
    n = len(indptr) - 1
    whole = np.zeros(n + 1, np.int64)
    for i in range(n):
        whole[i + 1] += indptr[i + 1] - indptr[i]
        for k in range(indptr[i], indptr[i + 1]):
            whole[indices[k] + 1] += 1
    whole = np.cumsum(whole)
    end = whole[:-1].copy()
    columns, psi = np.empty(whole[n], np.int32), np.empty(whole[n], np.float32)
    for i in range(n):
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            columns[end[i]], psi[end[i]] = j, values[k]
            columns[end[j]], psi[end[j]] = i, values[k]
            end[i] += 1
            end[j] += 1
    return whole, columns, psi


def group_pairs(queries: ImageSet, database: ImageSet, within_group: bool) -> Iterator[tuple[Members, Members]]:
    """Ids on both sides that are to be compared: all of them, or group by group (by name)."""
    if not within_group:
        yield np.arange(len(queries)), np.arange(len(database))
        return
    for name in sorted(set(queries.group_names) & set(database.group_names)):
        members = [np.flatnonzero(side.group == side.group_names.index(name)) for side in (queries, database)]
        if all(map(len, members)):
            yield members[0], members[1]
