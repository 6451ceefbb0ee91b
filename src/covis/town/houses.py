"""The parameters of houses, gardens and trees: few styles and colours, many combinations.

Colours and forms are drawn from short lists, so that streets resemble one another (perceptual aliasing) while
the order and details of neighbouring houses tell one place from another.
"""

from __future__ import annotations

import numpy as np

from covis.arrays import Floats
from covis.town.solids import BOX, ELLIPSOID, HEDGE, LAMP, LEAVES, TRUNK, WOVEN, solid

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
