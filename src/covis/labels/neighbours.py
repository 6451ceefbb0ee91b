"""Which pairs can share anything: a uniform grid, and a graph built row by row from what the grid proposes.

Circles that meet are the candidates. Cells are as wide as the largest pair of circles reaches, so a query looks into
3×3 cells. The grid wraps around: its memory is bounded however far apart places lie, and the distance test rejects
what only meets through the wrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from covis.labels.rows import Rows

Floats = NDArray[np.float64]
_CANDIDATES_A_CHUNK = 1 << 22


class Grid(NamedTuple):
    """Points sorted by cell: those of cell (i, j) are `order[start[c]:start[c + 1]]` with c = j·columns + i."""

    left: float
    bottom: float
    cell: float
    columns: int
    rows: int
    start: NDArray[np.int64]
    order: NDArray[np.int64]


def build_grid(x: Floats, y: Floats, cell: float) -> Grid:
    """A grid over the points (x, y) with `cell` metres a side; at most about four cells a point."""
    left, bottom = float(x.min(initial=np.inf)), float(y.min(initial=np.inf))
    if not len(x):
        left = bottom = 0.0
    most = int(max(16, 2 * np.sqrt(len(x))))
    columns, rows = (
        int(np.clip((v.max(initial=low) - low) // cell + 3, 4, None)) for v, low in ((x, left), (y, bottom))
    )
    while columns * rows > most * most:
        columns, rows = (max(4, columns // 2), rows) if columns >= rows else (columns, max(4, rows // 2))
    code = _cells(x, y, left, bottom, cell, columns, rows)
    order = np.argsort(code, kind="stable")
    start = np.zeros(columns * rows + 1, np.int64)
    np.cumsum(np.bincount(code, minlength=columns * rows), out=start[1:])
    return Grid(left, bottom, cell, columns, rows, start, order)


def _cells(x: Floats, y: Floats, left: float, bottom: float, cell: float, columns: int, rows: int) -> NDArray[np.int64]:
    i = np.floor((x - left) / cell).astype(np.int64) % columns
    j = np.floor((y - bottom) / cell).astype(np.int64) % rows
    return j * columns + i


@njit(cache=True, nogil=True)
def nearby(grid: Grid, x: float, y: float, found: NDArray[np.int64]) -> int:
    """Writes the ranges of sorted positions in the 3×3 cells around (x, y) into `found` as (start, end) pairs."""
    i = int(np.floor((x - grid.left) / grid.cell)) % grid.columns
    j = int(np.floor((y - grid.bottom) / grid.cell)) % grid.rows
    n = 0
    for dj in range(-1, 2):
        row = ((j + dj) % grid.rows) * grid.columns
        if 0 < i < grid.columns - 1:
            found[n], found[n + 1] = grid.start[row + i - 1], grid.start[row + i + 2]
            n += 2
        else:
            for di in range(-1, 2):
                cell = row + (i + di) % grid.columns
                found[n], found[n + 1] = grid.start[cell], grid.start[cell + 1]
                n += 2
    return n


@njit(cache=True, nogil=True)
def count_nearby(grid: Grid, x: Floats, y: Floats) -> NDArray[np.int64]:
    """(N,) how many points lie in the 3×3 cells around each (x, y): a bound on its candidates."""
    found = np.empty(18, np.int64)
    count = np.zeros(len(x), np.int64)
    for k in range(len(x)):
        n = nearby(grid, x[k], y[k], found)
        for r in range(0, n, 2):
            count[k] += found[r + 1] - found[r]
    return count


def by_place(grid: Grid, x: Floats, y: Floats) -> NDArray[np.int64]:
    """Ids in an order in which neighbours in the list are neighbours on the ground."""
    i = np.floor((x - grid.left) / grid.cell).astype(np.int64)
    j = np.floor((y - grid.bottom) / grid.cell).astype(np.int64)
    order: NDArray[np.int64] = np.lexsort((i, j))
    return order


def chunks(bound: NDArray[np.int64]) -> Iterator[slice]:
    """Runs of rows that have about `_CANDIDATES_A_CHUNK` candidates together."""
    number = np.cumsum(bound) // _CANDIDATES_A_CHUNK
    edges = (np.flatnonzero(np.diff(number)) + 1).tolist()
    for start, end in zip([0, *edges], [*edges, len(bound)], strict=True):
        if end > start:
            yield slice(start, end)


class Places(NamedTuple):
    """Positions (N,) in metres and headings in degrees, −1 where unknown."""

    x: Floats
    y: Floats
    heading: Floats


def radius_rows(
    queries: Places, database: Places, radius_m: float, max_angle_deg: float, one_set: bool
) -> Iterator[Rows]:
    """Pairs within `radius_m` whose known headings differ by at most `max_angle_deg`; ψ = 1."""
    if not len(queries.x) or not len(database.x):
        return
    grid = build_grid(database.x, database.y, radius_m * (1 + 1e-12))
    bound = count_nearby(grid, queries.x, queries.y)
    ids = by_place(grid, queries.x, queries.y)
    for part in chunks(bound[ids]):
        some = ids[part]
        columns = np.empty(int(bound[some].sum()), np.int32)
        counts = np.zeros(len(some), np.int64)
        n = _within(some, queries, database, grid, radius_m, max_angle_deg, one_set, columns, counts)
        yield Rows(some, counts, columns[:n].copy(), np.ones(n, np.float32))


@njit(cache=True, nogil=True)
def _within(ids, a, b, grid, radius_m, max_angle_deg, one_set, columns, counts):  # type: ignore[no-untyped-def]
    ranges = np.empty(18, np.int64)
    written = 0
    for row in range(len(ids)):
        i, start = ids[row], written
        for r in range(0, nearby(grid, a.x[i], a.y[i], ranges), 2):
            for k in range(ranges[r], ranges[r + 1]):
                j = grid.order[k]
                if one_set and j <= i:
                    continue
                if np.hypot(b.x[j] - a.x[i], b.y[j] - a.y[i]) > radius_m:
                    continue
                if heading_difference(a.heading[i], b.heading[j]) <= max_angle_deg:
                    columns[written] = j
                    written += 1
        columns[start:written].sort()
        counts[row] = written - start
    return written


@njit(cache=True, nogil=True)
def heading_difference(a: float, b: float) -> float:
    """Degrees in [0, 180] between two headings; 0 where one is unknown (−1)."""
    if a < 0.0 or b < 0.0:
        return 0.0
    turn = abs(a - b)
    return min(turn, 360.0 - turn)
