"""Free-standing things as boxes and ellipsoids: one row of numbers each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covis.arrays import Floats

# columns; for an ellipsoid Z0 is the height of the centre and Z1 the vertical radius
SHAPE, X, Y, Z0, Z1, HALF_X, HALF_Y, COS, SIN, MATERIAL, COLOUR = range(11)
_SEED = 13
FIELDS = 14

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
