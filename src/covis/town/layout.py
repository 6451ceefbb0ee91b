"""Where streets, houses, trees and lamps stand: one district per split, drawn from the seed.

Axes: x east, y north, z up, metres. A district is a jittered grid of streets with some of them left out; lots of
varying width are laid along both sides of each street wherever no other street is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.town import houses, solids
from covis.town.config import SPLITS, TownConfig

BELT_M = 160.0
"""Open land between districts: farther than any field of view, so that splits share nothing."""
_JITTER = 0.17
_DROPPED = 0.16
_AVENUES = 0.45
_GARDENS = 0.08
_GAPS = 0.05


@dataclass(frozen=True, eq=False)
class District:
    """One split's streets and everything that never moves."""

    name: str
    streets: Floats
    """(E, 6) x0, y0, x1, y1, half width of the road, width of the pavement."""
    walls: Floats
    """(W, 4) x0, y0, x1, y1; left to right as seen from outside."""
    facades: Floats
    """(W, houses.HOUSE_FIELDS) the look of each wall."""
    solids: Floats
    """(S, solids.FIELDS) trees, hedges, lamps, awnings."""


def rng_of(config: TownConfig, *stream: int) -> np.random.Generator:
    """A generator of its own for each purpose, so that no draw shifts another."""
    return np.random.default_rng([config.seed, *stream])


def district(config: TownConfig, split: str) -> District:
    """The district of `split`."""
    number = SPLITS.index(split)
    rng = rng_of(config, 1, number)
    streets = _streets(config, split, rng)
    walls: list[Floats] = []
    facades: list[Floats] = []
    solids: list[Floats] = []
    for e in range(len(streets)):
        for side in (-1.0, 1.0):
            _line_side(streets, e, side, rng, walls, facades, solids)
        _plant(streets[e], rng, solids)
    return District(split, streets, np.array(walls), np.array(facades), np.array(solids))


def origin(config: TownConfig, split: str) -> Floats:
    """South-west corner of the district; districts lie from west to east."""
    before = SPLITS[: SPLITS.index(split)]
    return np.array([sum(config.blocks(s)[0] * config.block_m + BELT_M for s in before), 0.0])


def _streets(config: TownConfig, split: str, rng: np.random.Generator) -> Floats:
    across, up = config.blocks(split)
    grid = np.stack(np.meshgrid(np.arange(across + 1), np.arange(up + 1), indexing="ij"), axis=-1)
    nodes = origin(config, split) + config.block_m * (grid + rng.uniform(-_JITTER, _JITTER, grid.shape))
    edges = [((i, j), (i + 1, j)) for i in range(across) for j in range(up + 1)]
    edges += [((i, j), (i, j + 1)) for i in range(across + 1) for j in range(up)]
    degree = {(i, j): 0 for i in range(across + 1) for j in range(up + 1)}
    for a, b in edges:
        degree[a] += 1
        degree[b] += 1
    kept = []
    for a, b in edges:
        if rng.random() < _DROPPED and min(degree[a], degree[b]) > 2:
            degree[a] -= 1
            degree[b] -= 1
        else:
            kept.append((a, b))
    ends = np.array([[*nodes[a], *nodes[b]] for a, b in kept])
    widths = np.column_stack([rng.choice([3.4, 4.2, 5.0], len(ends)), rng.choice([2.0, 2.6, 3.2], len(ends))])
    return np.column_stack([ends, widths])


def _line_side(
    streets: Floats,
    e: int,
    side: float,
    rng: np.random.Generator,
    walls: list[Floats],
    facades: list[Floats],
    solids: list[Floats],
) -> None:
    """Lays lots along one side of street `e`; `side` is +1 on its left."""
    start, along, across, length = axes(streets[e])
    across = across * side
    setback = streets[e, 4] + streets[e, 5] + rng.choice([0.0, 0.6, 2.0])
    others = np.delete(streets, e, axis=0)
    style = houses.street_style(rng)
    s = -6.0
    while s < length + 2.0:
        width = float(rng.uniform(6.5, 14.5))
        depth = float(rng.uniform(8.0, 12.0))
        front = start + along * s + across * setback
        corners = np.array(
            [front, front + along * width, front + along * width + across * depth, front + across * depth]
        )
        if not _clear(corners, others):
            s += 1.0
            continue
        kind = rng.random()
        if kind < _GARDENS:
            solids.extend(houses.garden(rng, corners))
        elif kind >= _GARDENS + _GAPS:
            _build(rng, corners, side, style, walls, facades, solids)
        s += width + (float(rng.uniform(1.0, 4.0)) if rng.random() < 0.12 else 0.0)


def _build(
    rng: np.random.Generator,
    corners: Floats,
    side: float,
    style: Floats,
    walls: list[Floats],
    facades: list[Floats],
    solids: list[Floats],
) -> None:
    # seen from the street, a house on the left side of the street's direction has its far end on the right
    a, b, c, d = corners if side > 0 else corners[[1, 0, 3, 2]]
    sides = [(a, b), (b, c), (c, d), (d, a)]
    looks = houses.house(rng, [float(np.linalg.norm(q - p)) for p, q in sides], style)
    for (p, q), look in zip(sides, looks, strict=True):
        walls.append(np.concatenate([p, q]))
        facades.append(look)
    solids.extend(houses.awning(looks[0], a, b))


def _clear(corners: Floats, streets: Floats) -> bool:
    """Whether a lot keeps off every other street and its pavement."""
    t = np.linspace(0.0, 1.0, 5)[:, None]
    rim = np.concatenate([corners[k] * (1 - t) + corners[(k + 1) % 4] * t for k in range(4)])
    start, end = streets[:, None, :2], streets[:, None, 2:4]
    span = end - start
    share = np.clip(((rim[None] - start) * span).sum(-1) / (span * span).sum(-1), 0.0, 1.0)
    gap = np.linalg.norm(rim[None] - start - share[..., None] * span, axis=-1)
    return bool((gap >= (streets[:, 4] + streets[:, 5])[:, None]).all())


def _plant(street: Floats, rng: np.random.Generator, solids: list[Floats]) -> None:
    """Trees of an avenue and lamps, on the pavement's outer edge of the road."""
    start, along, across, length = axes(street)
    kerb = street[4] + 0.7
    for k, s in enumerate(np.arange(14.0, length - 12.0, 22.0)):
        solids.extend(houses.lamp(start + along * s + across * kerb * (-1.0 if k % 2 else 1.0)))
    for side in (-1.0, 1.0):
        if rng.random() > _AVENUES:
            continue
        pitch = float(rng.choice([9.0, 13.0, 18.0]))
        for s in np.arange(12.0, length - 10.0, pitch):
            if rng.random() < 0.8:
                solids.extend(houses.tree(rng, start + along * (s + rng.uniform(-1, 1)) + across * side * kerb))


def axes(street: Floats) -> tuple[Floats, Floats, Floats, float]:
    """Start, unit vector along, unit vector to the left, length."""
    start, end = street[:2], street[2:4]
    length = float(np.linalg.norm(end - start))
    along = (end - start) / length
    return start, along, np.array([-along[1], along[0]]), length


# A district packed for ray casting: what the kernels read.


CELL_M = 6.0
_MARGIN_M = 40.0
_STREET_REACH_M = 14.0

CellIds = NDArray[np.int32]


class TownScene(NamedTuple):
    """What the kernels read. Items 0 … W−1 are walls, W … W+S−1 solids."""

    walls: Floats
    facades: Floats
    solids: Floats
    streets: Floats
    x0: float
    y0: float
    columns: int
    rows: int
    first: CellIds
    """(cells + 1,) where each cell's part of `items` starts."""
    items: CellIds
    top: Floats
    """(cells,) height of the tallest thing in each cell."""
    street_first: CellIds
    street_items: CellIds
    ceiling: float
    """Height of the tallest thing of all."""


def build_scene(district: District, movable: Floats) -> TownScene:
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
    return TownScene(
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


def _pack(lists: list[list[int]]) -> tuple[CellIds, CellIds]:
    first = np.concatenate([[0], np.cumsum([len(m) for m in lists])]).astype(np.int32)
    return first, np.array([item for members in lists for item in members], np.int32)
