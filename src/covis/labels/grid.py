"""A uniform grid that proposes the pairs of circles that can share anything.

Circles that meet are the candidates. Cells are as wide as the largest pair of circles reaches, so a query looks into
3×3 cells. The grid wraps around: its memory is bounded however far apart places lie, and the distance test rejects
what only meets through the wrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from covis.core.arrays import Floats, Ids
from covis.core.compiling import kernel

_CANDIDATES_A_CHUNK = 1 << 22


class Grid(NamedTuple):
    """Points sorted by cell: those of cell (i, j) are `order[start[c]:start[c + 1]]` with c = j·columns + i."""

    left: float
    bottom: float
    cell: float
    columns: int
    rows: int
    start: Ids
    order: Ids


def build_grid(x: Floats, y: Floats, cell: float) -> Grid:
    """A grid over the points (x, y) with cells of `cell` metres a side; at most about four cells per point."""
    left, bottom = float(x.min(initial=np.inf)), float(y.min(initial=np.inf))
    if not len(x):
        left = bottom = 0.0
    most = int(max(16, 2 * np.sqrt(len(x))))
    columns, rows = (
        int(np.clip((v.max(initial=low) - low) // cell + 3, 4, None)) for v, low in ((x, left), (y, bottom))
    )
    while columns * rows > most * most:
        columns, rows = (max(4, columns // 2), rows) if columns >= rows else (columns, max(4, rows // 2))
    code = cells(x, y, left, bottom, cell, columns, rows)
    order = np.argsort(code, kind="stable")
    start = np.zeros(columns * rows + 1, np.int64)
    np.cumsum(np.bincount(code, minlength=columns * rows), out=start[1:])
    return Grid(left, bottom, cell, columns, rows, start, order)


@kernel()
def cells(x: Floats, y: Floats, left: float, bottom: float, cell: float, columns: int, rows: int) -> Ids:
    """(N,) code of the cell of each point."""
    code = np.empty(len(x), np.int64)
    for k in range(len(x)):
        i = int(np.floor((x[k] - left) / cell)) % columns
        j = int(np.floor((y[k] - bottom) / cell)) % rows
        code[k] = j * columns + i
    return code


class Visits(NamedTuple):
    """Queries in the order in which they are labelled: those of one cell together, neighbouring cells near."""

    order: Ids
    cell: Ids
    """(N,) in that order."""
    bound: Ids
    """(N,) in that order: how many points the 3×3 cells around hold."""


def visit(grid: Grid, x: Floats, y: Floats) -> Visits:
    """The order for queries at (x, y)."""
    code = cells(x, y, grid.left, grid.bottom, grid.cell, grid.columns, grid.rows)
    order = np.argsort(code, kind="stable")
    return Visits(order, code[order], _bounds(grid, code[order]))


@kernel()
def _bounds(grid: Grid, codes: Ids) -> Ids:
    ranges = np.empty(18, np.int64)
    bound = np.zeros(len(codes), np.int64)
    for k in range(len(codes)):
        if k and codes[k] == codes[k - 1]:
            bound[k] = bound[k - 1]
            continue
        for r in range(0, nearby(grid, codes[k], ranges), 2):
            bound[k] += ranges[r + 1] - ranges[r]
    return bound


@kernel()
def nearby(grid: Grid, code: int, ranges: Ids) -> int:
    """Writes the ranges (start, end) of grid positions in the 3×3 cells around a cell; returns their number × 2."""
    j, i = divmod(code, grid.columns)
    n = 0
    for dj in range(-1, 2):
        row = ((j + dj) % grid.rows) * grid.columns
        if 0 < i < grid.columns - 1:
            ranges[n], ranges[n + 1] = grid.start[row + i - 1], grid.start[row + i + 2]
            n += 2
        else:
            for di in range(-1, 2):
                cell = row + (i + di) % grid.columns
                ranges[n], ranges[n + 1] = grid.start[cell], grid.start[cell + 1]
                n += 2
    return n


@kernel()
def list_nearby(grid: Grid, code: int, ranges: Ids, key: Ids) -> int:
    """Writes (id << 32 | grid position) of all points in the 3×3 cells, by ascending id; returns how many."""
    n = 0
    for r in range(0, nearby(grid, code, ranges), 2):
        for k in range(ranges[r], ranges[r + 1]):
            key[n] = (grid.order[k] << 32) | k
            n += 1
    key[:n].sort()
    return n


def chunks(bound: Ids) -> Iterator[slice]:
    """Runs of rows that have about `_CANDIDATES_A_CHUNK` candidates together."""
    number = np.cumsum(bound) // _CANDIDATES_A_CHUNK
    edges = (np.flatnonzero(np.diff(number)) + 1).tolist()
    for start, end in zip([0, *edges], [*edges, len(bound)], strict=True):
        if end > start:
            yield slice(start, end)
