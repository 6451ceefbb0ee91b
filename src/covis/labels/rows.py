"""From labelled rows in any order to one compressed sparse matrix, with little memory beside the result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.compiling import kernel


class Rows(NamedTuple):
    """Some rows: their ids, how many pairs each has, and the pairs of all of them, ascending within a row."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    columns: NDArray[np.int32]
    psi: NDArray[np.float32]


class Matrix(NamedTuple):
    """Compressed sparse rows."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]


def assemble(rows: Iterable[Rows], n_rows: int, *, mirror: bool) -> Matrix:
    """All rows in order; `mirror` adds (j, i) for each (i, j). Each part is freed as soon as it is copied."""
    parts = list(rows)
    indptr = np.zeros(n_rows + 1, np.int64)
    for part in parts:
        indptr[part.ids + 1] = part.counts
    np.cumsum(indptr, out=indptr)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    while parts:
        part = parts.pop()
        _place(part, indptr, indices, values)
    matrix = Matrix(indptr, indices, values)
    return _mirrored(matrix) if mirror else matrix


@kernel()
def _place(part: Rows, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    at = 0
    for k in range(len(part.ids)):
        to, n = indptr[part.ids[k]], part.counts[k]
        for s in range(n):
            indices[to + s], values[to + s] = part.columns[at + s], part.psi[at + s]
        at += n


@kernel()
def _mirrored(upper: Matrix) -> Matrix:
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
    return Matrix(indptr, indices, values)
