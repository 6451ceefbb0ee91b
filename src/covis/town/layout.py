"""What stands in the town and where: streets, houses, trees, lamps and cars; one district per split, drawn from the seed.

Axes: x east, y north, z up, metres. A district is a jittered grid of streets with some of them left out; lots of
varying width are laid along both sides of each street wherever no other street is in the way. Colours and forms of
houses are drawn from short lists, so that streets resemble one another (perceptual aliasing) while the order and details
of neighbouring houses tell one place from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.town.config import SPLITS, TownConfig

# Free-standing things as boxes and ellipsoids: one row of numbers each.

# columns of a solid; for an ellipsoid Z0 is the height of the centre and Z1 the vertical radius
SHAPE, X, Y, Z0, Z1, HALF_X, HALF_Y, COS, SIN, MATERIAL, COLOUR = range(11)
SOLID_FIELDS = 14
"""The last column is the seed of its look."""

BOX, ELLIPSOID = 0, 1
TRUNK, LEAVES, HEDGE, LAMP, WOVEN, CAR, CABIN, CLOTH = range(8)
"""Materials."""
MOVABLE = CAR
"""Materials from here on belong to things that come and go."""


def solid(
    shape: int,
    at: Sequence[float] | Floats,
    z0: float,
    z1: float,
    half_x: float,
    half_y: float,
    along: Sequence[float] | Floats,
    material: int,
    colour: Sequence[float] | Floats,
    seed: float,
) -> Floats:
    """One row; `along` is the unit vector of the local x axis."""
    return np.array([shape, at[0], at[1], z0, z1, half_x, half_y, along[0], along[1], material, *colour, seed])


def car(at: Floats, along: Floats, colour: Floats, seed: float, tall: bool = False) -> list[Floats]:
    """A car or a van: body and cabin."""
    if tall:
        return [
            solid(BOX, at, 0.15, 2.3, 2.6, 0.95, along, CAR, colour, seed),
        ]
    return [
        solid(BOX, at, 0.15, 0.85, 2.1, 0.85, along, CAR, colour, seed),
        solid(BOX, at - along * 0.2, 0.85, 1.42, 1.15, 0.75, along, CABIN, colour, seed),
    ]


def person(at: Floats, colour: Floats, seed: float) -> list[Floats]:
    """Legs, coat and head."""
    east = (1.0, 0.0)
    return [
        solid(ELLIPSOID, at, 0.45, 0.48, 0.17, 0.17, east, CLOTH, (0.10, 0.10, 0.14), seed),
        solid(ELLIPSOID, at, 1.12, 0.44, 0.26, 0.26, east, CLOTH, colour, seed),
        solid(ELLIPSOID, at, 1.66, 0.14, 0.12, 0.12, east, CLOTH, (0.55, 0.38, 0.28), seed),
    ]


# Houses, gardens and trees: few styles and colours, many combinations.

# columns of a facade
WIDTH, TOP, PROFILE, EAVE, GROUND_H, FLOOR_H, GROUND_FLOOR, COLUMNS = range(8)
WINDOW_W, WINDOW_H, WINDOW_STYLE, WALL = range(8, 12)
BASE, TRIM, SIGN, ROOF = 12, 15, 18, 21  # each three columns of linear RGB
DOOR, SEED, CHIMNEY = 24, 25, 26
HOUSE_FIELDS = 27

CHIMNEY_M = 1.3
"""How far chimneys rise above the roof."""

# profiles: the upper outline of a wall
FLAT, GABLE, STEPPED, CURVED, EAVES, HIPPED = range(6)
# ground floors
DWELLING, SHOP, ARCADE, BLANK = range(4)
# windows
PLAIN, CROSSED, ARCHED, SHUTTERED, WIDE = range(5)
# wall materials
PLASTER, BRICK, BANDED, TIMBERED = range(4)

WALLS = np.array(
    [
        [0.62, 0.20, 0.12], [0.80, 0.56, 0.20], [0.72, 0.68, 0.60], [0.22, 0.36, 0.52], [0.74, 0.36, 0.34],
        [0.26, 0.46, 0.28], [0.84, 0.72, 0.40], [0.34, 0.18, 0.13], [0.48, 0.64, 0.74], [0.82, 0.80, 0.76],
        [0.50, 0.28, 0.44], [0.78, 0.42, 0.14],
    ]
)  # fmt: skip
TRIMS = np.array([[0.85, 0.84, 0.80], [0.30, 0.22, 0.16], [0.62, 0.60, 0.56], [0.16, 0.20, 0.22]])
SIGNS = np.array(
    [
        [0.70, 0.10, 0.10], [0.08, 0.26, 0.55], [0.06, 0.38, 0.20], [0.80, 0.56, 0.06], [0.30, 0.08, 0.34],
        [0.10, 0.10, 0.12], [0.80, 0.78, 0.72],
    ]
)  # fmt: skip
ROOFS = np.array([[0.42, 0.16, 0.10], [0.20, 0.20, 0.23], [0.32, 0.24, 0.18]])


def street_style(rng: np.random.Generator) -> Floats:
    """Preference of one side of a street for each wall colour; sums to 1."""
    return rng.dirichlet(np.full(len(WALLS), 0.3)) * 0.7 + 0.3 / len(WALLS)


def house(rng: np.random.Generator, widths: list[float], style: Floats) -> list[Floats]:
    """Facades of a house: front, one side, back, the other side; `widths` in metres in that order."""
    front = np.zeros(HOUSE_FIELDS)
    floors = int(rng.choice([1, 2, 3, 4], p=[0.2, 0.4, 0.3, 0.1]))
    front[[WIDTH, GROUND_H, FLOOR_H]] = widths[0], rng.uniform(3.2, 4.0), rng.uniform(2.7, 3.3)
    front[EAVE] = front[GROUND_H] + floors * front[FLOOR_H] + 0.4
    front[PROFILE] = rng.choice([FLAT, GABLE, STEPPED, CURVED, EAVES, HIPPED], p=[0.22, 0.2, 0.12, 0.08, 0.26, 0.12])
    front[TOP] = front[EAVE] + (0.0 if front[PROFILE] == FLAT else rng.uniform(2.2, 4.2))
    front[GROUND_FLOOR] = rng.choice([DWELLING, SHOP, ARCADE], p=[0.48, 0.40, 0.12])
    front[COLUMNS] = max(2, round(widths[0] / rng.uniform(2.0, 3.4)))
    front[[WINDOW_W, WINDOW_H]] = rng.uniform(0.36, 0.56), rng.uniform(0.48, 0.66)
    front[WINDOW_STYLE] = rng.choice([PLAIN, CROSSED, ARCHED, SHUTTERED, WIDE])
    front[WALL] = rng.choice([PLASTER, BRICK, BANDED, TIMBERED], p=[0.42, 0.30, 0.16, 0.12])
    front[BASE : BASE + 3] = WALLS[rng.choice(len(WALLS), p=style)] * rng.uniform(0.8, 1.15)
    front[TRIM : TRIM + 3] = TRIMS[rng.integers(len(TRIMS))]
    front[SIGN : SIGN + 3] = SIGNS[rng.integers(len(SIGNS))]
    front[ROOF : ROOF + 3] = ROOFS[rng.integers(len(ROOFS))]
    front[DOOR] = rng.integers(front[COLUMNS])
    front[SEED] = rng.integers(1 << 24)
    front[CHIMNEY] = rng.uniform(0.15, 0.85)
    return [front, *(_flank(rng, front, w, ridge=k != 1) for k, w in enumerate(widths[1:]))]


def _flank(rng: np.random.Generator, front: Floats, width: float, ridge: bool) -> Floats:
    """A side or back wall: the same house, plainer."""
    wall = front.copy()
    wall[WIDTH] = width
    wall[COLUMNS] = max(1, round(width / 4.0))
    wall[GROUND_FLOOR] = rng.choice([BLANK, DWELLING], p=[0.6, 0.4])
    wall[DOOR] = -1
    wall[SEED] = rng.integers(1 << 24)
    if not ridge:  # the back repeats the front's outline
        return wall
    wall[PROFILE] = GABLE if front[PROFILE] in (EAVES, HIPPED) else FLAT
    wall[TOP] = front[TOP] if wall[PROFILE] == GABLE else front[EAVE]
    return wall


def awning(front: Floats, left: Floats, right: Floats) -> list[Floats]:
    """A striped awning over some shop windows."""
    if front[GROUND_FLOOR] != SHOP or int(front[SEED]) % 5 > 1:
        return []
    along = (right - left) / np.linalg.norm(right - left)
    out = np.array([along[1], -along[0]])
    middle = (left + right) / 2 + out * 0.6
    z = front[GROUND_H] - 1.15
    return [
        solid(BOX, middle, z, z + 0.28, front[WIDTH] * 0.42, 0.6, along, WOVEN, front[SIGN : SIGN + 3], front[SEED])
    ]


def garden(rng: np.random.Generator, corners: Floats) -> list[Floats]:
    """A hedge towards the street and a few trees behind it."""
    along = corners[1] - corners[0]
    width = float(np.linalg.norm(along))
    along = along / width
    inward = (corners[3] - corners[0]) / np.linalg.norm(corners[3] - corners[0])
    middle = (corners[0] + corners[1]) / 2 + inward * 0.5
    parts = [solid(BOX, middle, 0.0, rng.uniform(0.7, 1.5), width / 2, 0.4, along, HEDGE, (0.12, 0.24, 0.08), 0)]
    for _ in range(int(rng.integers(1, 4))):
        parts += tree(rng, corners[0] + along * rng.uniform(1, width - 1) + inward * rng.uniform(2, 7))
    return parts


def tree(rng: np.random.Generator, at: Floats) -> list[Floats]:
    """A trunk and a crown; some crowns are slender, some round."""
    trunk = float(rng.uniform(2.0, 3.0))
    radius = float(rng.uniform(1.1, 2.2))
    tall = radius * float(rng.choice([0.9, 1.2, 1.9]))
    seed = float(rng.integers(1 << 16))
    green = np.array([0.16, 0.30, 0.09]) * rng.uniform(0.8, 1.25)
    east = np.array([1.0, 0.0])
    return [
        solid(BOX, at, 0.0, trunk + 0.4 * tall, 0.14, 0.14, east, TRUNK, (0.20, 0.14, 0.09), seed),
        solid(ELLIPSOID, at, trunk + 0.8 * tall, tall, radius, radius, east, LEAVES, green, seed),
    ]


def lamp(at: Floats) -> list[Floats]:
    """A street lamp."""
    east = np.array([1.0, 0.0])
    return [
        solid(BOX, at, 0.0, 4.4, 0.07, 0.07, east, TRUNK, (0.10, 0.11, 0.11), 0),
        solid(BOX, at, 4.4, 4.8, 0.2, 0.2, east, LAMP, (0.8, 0.76, 0.62), 0),
    ]


# Districts: the streets, and what stands along them.

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
    """(W, HOUSE_FIELDS) the look of each wall."""
    solids: Floats
    """(S, SOLID_FIELDS) trees, hedges, lamps, awnings."""


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
    style = street_style(rng)
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
            solids.extend(garden(rng, corners))
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
    looks = house(rng, [float(np.linalg.norm(q - p)) for p, q in sides], style)
    for (p, q), look in zip(sides, looks, strict=True):
        walls.append(np.concatenate([p, q]))
        facades.append(look)
    solids.extend(awning(looks[0], a, b))


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
    """Trees of an avenue, and lamps, on the pavement beside the road."""
    start, along, across, length = axes(street)
    kerb = street[4] + 0.7
    for k, s in enumerate(np.arange(14.0, length - 12.0, 22.0)):
        solids.extend(lamp(start + along * s + across * kerb * (-1.0 if k % 2 else 1.0)))
    for side in (-1.0, 1.0):
        if rng.random() > _AVENUES:
            continue
        pitch = float(rng.choice([9.0, 13.0, 18.0]))
        for s in np.arange(12.0, length - 10.0, pitch):
            if rng.random() < 0.8:
                solids.extend(tree(rng, start + along * (s + rng.uniform(-1, 1)) + across * side * kerb))


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
    """The scene of a district with the parked cars `movable` (M, SOLID_FIELDS) of one traversal."""
    things = np.concatenate([district.solids, movable.reshape(-1, SOLID_FIELDS)])
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
    radius = np.hypot(things[:, HALF_X], things[:, HALF_Y])
    at = things[:, X : Y + 1]
    boxes = np.concatenate(
        [
            np.column_stack([ends.min(axis=1), ends.max(axis=1)]),
            np.column_stack([at - radius[:, None], at + radius[:, None]]),
        ]
    )
    round_ = things[:, SHAPE] == ELLIPSOID
    heights = np.where(round_, things[:, Z0] + things[:, Z1], things[:, Z1])
    return boxes, np.concatenate([facades[:, TOP] + CHIMNEY_M, heights])


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
