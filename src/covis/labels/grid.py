"""Pairs of circles that meet, found through a uniform grid without visiting the others.

Cells are as wide as the largest pair of circles reaches, so that a query looks into 3×3 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from covis.core.arrays import Floats, Ids
from covis.core.compiling import kernel

_CANDIDATES_A_CHUNK = 1 << 17
"""Few enough that their arrays stay in a processor's cache."""


class Circles(NamedTuple):
    """Circles (N,) each, metres."""

    x: Floats
    y: Floats
    reach: Floats


class Pairs(NamedTuple):
    """Some queries, and all pairs of theirs."""

    ids: Ids
    row: Ids
    """(P,) which of `ids` a pair is of, ascending."""
    column: Ids
    """(P,) the map circle, ascending within a query."""


def meeting_pairs(queries: Circles, database: Circles, one_set: bool) -> Iterator[Pairs]:
    """Every pair of circles that meet, queries of a neighbourhood together; in one set only pairs i < j."""
    if not len(queries.x) or not len(database.x):
        return
    cell = (queries.reach.max() + database.reach.max()) * (1 + 1e-12)
    low = min(queries.x.min(), database.x.min()), min(queries.y.min(), database.y.min())
    columns, rows = (
        [np.floor((v - least) / cell).astype(np.int64) + 1 for v in both]
        for both, least in zip(((queries.x, database.x), (queries.y, database.y)), low, strict=True)
    )
    width = max(columns[0].max(), columns[1].max()) + 2  # the columns beside the first and the last stay empty
    code, other = (row * width + column for column, row in zip(columns, rows, strict=True))
    ids, order = np.argsort(code, kind="stable"), np.argsort(other, kind="stable")
    cells, of_cell = np.unique(code[ids], return_inverse=True)
    beside = cells[:, None] + width * np.arange(-1, 2)
    start = np.searchsorted(other[order], beside - 1)
    end = np.searchsorted(other[order], beside + 1, side="right")
    bound = (end - start).sum(axis=1)[of_cell]
    points = Circles(*(array[order] for array in database))
    edges = np.flatnonzero(np.diff(np.cumsum(bound) // _CANDIDATES_A_CHUNK)) + 1
    for part in np.split(np.arange(len(ids)), edges):
        row, column = np.empty((2, bound[part].sum()), np.int64)
        near = np.empty(bound[part].max(), np.int64)
        n = _list_pairs(ids[part], of_cell[part], start, end, order, queries, points, one_set, near, row, column)
        yield Pairs(ids[part], row[:n], column[:n])


@kernel()
def _list_pairs(
    ids: Ids,
    cells: Ids,
    start: Ids,
    end: Ids,
    order: Ids,
    queries: Circles,
    points: Circles,
    one_set: bool,
    near: Ids,
    row: Ids,
    column: Ids,
) -> int:
    """Writes all pairs of the queries; returns how many. `points` are the map's circles by `order`."""
    written = n = 0
    for q in range(len(ids)):
        if q == 0 or cells[q] != cells[q - 1]:
            n = 0
            for r in range(3):
                for k in range(start[cells[q], r], end[cells[q], r]):
                    near[n] = (order[k] << 32) | k
                    n += 1
            near[:n].sort()
        i = ids[q]
        for t in range(n):
            j, k = near[t] >> 32, near[t] & 0xFFFFFFFF
            dx, dy = points.x[k] - queries.x[i], points.y[k] - queries.y[i]
            limit = points.reach[k] + queries.reach[i]
            row[written], column[written] = q, j
            written += (dx * dx + dy * dy < limit * limit) & (not one_set or j > i)
    return written
