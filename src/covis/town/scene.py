"""A district packed for ray casting: what the kernels read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.town import houses, solids
from covis.town.layout import District

CELL_M = 6.0
_MARGIN_M = 40.0
_STREET_REACH_M = 14.0

Ints = NDArray[np.int32]


class Scene(NamedTuple):
    """What the kernels read. Items 0 … W−1 are walls, W … W+S−1 solids."""

    walls: Floats
    facades: Floats
    solids: Floats
    streets: Floats
    x0: float
    y0: float
    columns: int
    rows: int
    first: Ints
    """(cells + 1,) where each cell's part of `items` starts."""
    items: Ints
    top: Floats
    """(cells,) height of the tallest thing in each cell."""
    street_first: Ints
    street_items: Ints
    ceiling: float
    """Height of the tallest thing of all."""


def build(district: District, movable: Floats) -> Scene:
    """The scene of a district with the parked cars `movable` (M, solids.FIELDS) of one traversal."""
    things = np.concatenate([district.solids, movable.reshape(-1, solids.FIELDS)])
    ends = district.streets[:, :4].reshape(-1, 2)
    low = ends.min(axis=0) - _MARGIN_M
    columns, rows = (int(n) for n in np.ceil((ends.max(axis=0) + _MARGIN_M - low) / CELL_M))
    boxes, tops = _bounds(district.walls, district.facades, things)
    lists = _cells(boxes, low, columns, rows, district.walls)
    top = np.zeros(columns * rows)
    for cell, members in enumerate(lists):
        top[cell] = tops[members].max(initial=0.0)
    first, items = _pack(lists)
    streets = district.streets
    reach = np.column_stack([streets[:, :2], streets[:, 2:4]]).reshape(-1, 2, 2)
    around = np.column_stack([reach.min(axis=1) - _STREET_REACH_M, reach.max(axis=1) + _STREET_REACH_M])
    street_first, street_items = _pack(_cells(around, low, columns, rows, streets[:, :4], _STREET_REACH_M))
    return Scene(
        district.walls, district.facades, things, streets, float(low[0]), float(low[1]), columns, rows,
        first, items, top, street_first, street_items, float(top.max()),
    )  # fmt: skip


def _bounds(walls: Floats, facades: Floats, things: Floats) -> tuple[Floats, Floats]:
    """(N, 4) x and y limits and (N,) heights of every item."""
    ends = walls.reshape(-1, 2, 2)
    radius = np.hypot(things[:, solids.HALF_X], things[:, solids.HALF_Y])
    at = things[:, solids.X : solids.Y + 1]
    boxes = np.concatenate(
        [
            np.column_stack([ends.min(axis=1), ends.max(axis=1)]),
            np.column_stack([at - radius[:, None], at + radius[:, None]]),
        ]
    )
    round_ = things[:, solids.SHAPE] == solids.ELLIPSOID
    heights = np.where(round_, things[:, solids.Z0] + things[:, solids.Z1], things[:, solids.Z1])
    return boxes, np.concatenate([facades[:, houses.TOP] + houses.CHIMNEY_M, heights])


def _cells(boxes: Floats, low: Floats, columns: int, rows: int, lines: Floats, reach_m: float = 0.0) -> list[list[int]]:
    """Item ids by cell; the first items are `lines`, kept only in cells they come within `reach_m` of."""
    lists: list[list[int]] = [[] for _ in range(columns * rows)]
    limits = np.floor((boxes - np.tile(low, 2)) / CELL_M + np.array([-1e-6, -1e-6, 1e-6, 1e-6])).astype(int)
    limits = np.clip(limits, 0, [columns - 1, rows - 1, columns - 1, rows - 1])
    slack = CELL_M * np.sqrt(0.5) + reach_m + 1e-6
    for item, (i0, j0, i1, j1) in enumerate(limits.tolist()):
        i, j = np.meshgrid(np.arange(i0, i1 + 1), np.arange(j0, j1 + 1))
        near = np.ones(i.shape, bool)
        if item < len(lines):
            dx, dy = lines[item, 2:] - lines[item, :2]
            x, y = low[0] + CELL_M * (i + 0.5) - lines[item, 0], low[1] + CELL_M * (j + 0.5) - lines[item, 1]
            near = np.abs(dx * y - dy * x) <= slack * np.hypot(dx, dy)
        for cell in (j * columns + i)[near].tolist():
            lists[cell].append(item)
    return lists


def _pack(lists: list[list[int]]) -> tuple[Ints, Ints]:
    first = np.concatenate([[0], np.cumsum([len(m) for m in lists])]).astype(np.int32)
    return first, np.array([item for members in lists for item in members], np.int32)
