"""Drives through the town: who drove where, when, in what weather, and what was in the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.town import layout
from covis.town.config import SPLITS, TownConfig
from covis.town.layout import District, axes, rng_of
from covis.town.shading import Light, sunlight

_PAINTS = np.array(
    [
        [0.55, 0.06, 0.06], [0.10, 0.16, 0.38], [0.62, 0.62, 0.62], [0.05, 0.05, 0.06], [0.70, 0.70, 0.66],
        [0.16, 0.30, 0.20], [0.28, 0.29, 0.31],
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """Time of day, season, weather, traffic and manner of driving of one traversal."""

    name: str
    light: Light
    """Exposure and white balance vary around it from image to image."""
    exposure_spread: float = 0.15
    """Standard deviation of the exposure's natural logarithm, from image to image."""
    parked: float = 0.3
    """Share of kerb that cars stand on."""
    traffic: float = 0.5
    """Mean number of cars and people close in front of the camera."""
    lateral_m: float = 0.0
    """Shift to the right of the middle of the lane."""
    lateral_spread_m: float = 0.2
    heading_spread_deg: float = 1.5
    height_m: float = 1.8


_NO_SUN = (0.0, 0.0, 0.0)
MAP = Condition(
    "summer-noon",
    sunlight(170.0, 55.0, (1.0, 0.95, 0.85), (0.42, 0.46, 0.52), (0.16, 0.34, 0.66), (0.55, 0.66, 0.76)),
)
QUERIES = (
    Condition(
        "autumn-evening",
        sunlight(
            255.0, 24.0, (1.00, 0.72, 0.44), (0.34, 0.34, 0.40), (0.22, 0.28, 0.48), (0.74, 0.56, 0.42), haze_per_m=0.003,
            leaf=(2.6, 0.95, 0.5), leaves=0.75, clouds=0.8, lit=0.05, exposure=1.1, balance=(1.06, 1.0, 0.92), noise=0.012,
        ),
        exposure_spread=0.2, parked=0.4, traffic=0.9, lateral_m=0.5, lateral_spread_m=0.6, heading_spread_deg=5.0,
    ),
    Condition(
        "winter-haze",
        sunlight(
            140.0, 20.0, _NO_SUN, (0.72, 0.76, 0.82), (0.56, 0.60, 0.66), (0.66, 0.69, 0.73), haze_per_m=0.008,
            leaf=(0.9, 0.6, 0.7), leaves=0.22, snow=0.9, clouds=0.3, exposure=0.9, balance=(0.95, 1.0, 1.06), noise=0.014,
        ),
        exposure_spread=0.2, parked=0.35, traffic=0.8, lateral_m=-0.6, lateral_spread_m=0.6, heading_spread_deg=5.0,
        height_m=1.6,
    ),
    Condition(
        "dusk-rain",
        sunlight(
            290.0, 5.0, _NO_SUN, (0.20, 0.22, 0.28), (0.10, 0.13, 0.22), (0.28, 0.29, 0.34), haze_per_m=0.004,
            leaf=(0.8, 0.9, 0.9), wet=1.0, clouds=0.5, lit=0.2, headlight=0.16, exposure=1.9, balance=(1.04, 0.99, 1.0),
            noise=0.02,
        ),
        exposure_spread=0.2, parked=0.45, traffic=0.8, lateral_m=0.3, lateral_spread_m=0.8, heading_spread_deg=6.0,
        height_m=2.0,
    ),
)  # fmt: skip
CONDITIONS = {c.name: c for c in (MAP, *QUERIES)}


@dataclass(frozen=True, eq=False)
class Traversal:
    """The camera poses of one drive, in order."""

    split: str
    condition: Condition
    position: Floats
    """(N, 3) metres."""
    rotation: Floats
    """(N, 3, 3) camera (x right, y down, z forward) to world."""
    street: NDArray[np.int32]
    """(N,) index of the street driven."""
    seeds: NDArray[np.int64] = field(repr=False)
    """(N, 3) what the random parts of each image are drawn from."""

    def __len__(self) -> int:
        return len(self.position)


def traversal(config: TownConfig, place: District, condition: Condition) -> Traversal:
    """Every street of a district in both directions."""
    stream = (2, SPLITS.index(place.name), list(CONDITIONS).index(condition.name))
    rng = rng_of(config, *stream)
    spacing = config.map_spacing_m if condition is MAP else config.query_spacing_m
    positions, headings, street = [], [], []
    for e, row in enumerate(place.streets):
        start, along, left, length = axes(row)
        for sense in (1.0, -1.0):
            s = np.arange(rng.uniform(0.0, spacing), length, spacing)
            shift = 0.45 * row[4] + condition.lateral_m + rng.normal(0.0, condition.lateral_spread_m, len(s))
            at = start + s[:, None] * along - (sense * shift)[:, None] * left
            positions.append(np.column_stack([at, condition.height_m + rng.normal(0.0, 0.05, len(s))]))
            ahead = np.degrees(np.arctan2(sense * along[0], sense * along[1]))
            headings.append(ahead + rng.normal(0.0, condition.heading_spread_deg, len(s)))
            street += [e] * len(s)
    heading = np.concatenate(headings)
    n = len(heading)
    turn = rotations(heading, rng.normal(2.0, 1.0, n), rng.normal(0.0, 0.8, n))
    seeds = np.column_stack([np.full(n, stream[1]), np.full(n, stream[2]), np.arange(n)])
    return Traversal(place.name, condition, np.concatenate(positions), turn, np.array(street, np.int32), seeds)


def rotations(heading_deg: Floats, pitch_deg: Floats, roll_deg: Floats) -> Floats:
    """(N, 3, 3) camera-to-world rotations; pitch up and roll clockwise are positive."""
    h, p, r = (np.radians(a) for a in (heading_deg, pitch_deg, roll_deg))
    zero = np.zeros_like(h)
    forward = np.column_stack([np.sin(h) * np.cos(p), np.cos(h) * np.cos(p), np.sin(p)])
    right = np.column_stack([np.cos(h), -np.sin(h), zero])
    down = np.cross(forward, right)
    c, s = np.cos(r)[:, None], np.sin(r)[:, None]
    return np.stack([c * right + s * down, c * down - s * right, forward], axis=2)


def parked_cars(config: TownConfig, place: District, condition: Condition) -> Floats:
    """(M, layout.SOLID_FIELDS) cars along the kerbs during one traversal."""
    rng = rng_of(config, 3, SPLITS.index(place.name), list(CONDITIONS).index(condition.name))
    rows: list[Floats] = []
    for street in place.streets:
        start, along, left, length = axes(street)
        for side in (-1.0, 1.0):
            for s in np.arange(14.0, length - 14.0, 5.6):
                if rng.random() < condition.parked:
                    at = start + along * (s + rng.uniform(-0.5, 0.5)) + left * side * (street[4] - 0.75)
                    rows += _vehicle(rng, at, along * side)
    return np.array(rows).reshape(-1, layout.SOLID_FIELDS)


def in_the_way(config: TownConfig, drive: Traversal, i: int) -> Floats:
    """(M, layout.SOLID_FIELDS) moving cars and people around image `i`."""
    rng = rng_of(config, 4, *drive.seeds[i].tolist())
    rows: list[Floats] = []
    ahead = drive.rotation[i, :2, 2] / np.linalg.norm(drive.rotation[i, :2, 2])
    right = np.array([ahead[1], -ahead[0]])
    position = drive.position[i, :2]
    for _ in range(rng.poisson(0.4 * drive.condition.traffic)):
        oncoming = rng.random() < 0.5
        sideways = rng.uniform(-4.0, -3.0) if oncoming else rng.uniform(-0.4, 0.4)
        at = position + ahead * rng.uniform(7.5, 26.0) + right * sideways
        rows += _vehicle(rng, at, ahead * (-1.0 if oncoming else 1.0))
    for _ in range(rng.poisson(0.9 * drive.condition.traffic)):
        sideways = rng.choice([-1.0, 1.0]) * rng.uniform(2.2, 6.0)
        at = position + ahead * rng.uniform(3.0, 16.0) + right * sideways
        rows += layout.person(at, rng.uniform(0.05, 0.6, 3), float(rng.integers(1 << 16)))
    return np.array(rows).reshape(-1, layout.SOLID_FIELDS)


def _vehicle(rng: np.random.Generator, at: Floats, along: Floats) -> list[Floats]:
    paint = _PAINTS[rng.integers(len(_PAINTS))]
    return layout.car(at, along, paint, float(rng.integers(1 << 16)), tall=bool(rng.random() < 0.15))


def light_of(config: TownConfig, drive: Traversal, i: int) -> tuple[Light, int]:
    """The light of image `i` with its own exposure and white balance, and the seed of its noise."""
    rng, light = rng_of(config, 5, *drive.seeds[i].tolist()), drive.condition.light
    gain = light.exposure * float(np.exp(rng.normal(0.0, drive.condition.exposure_spread)))
    r, g, b = np.array(light.balance) * np.exp(rng.normal(0.0, 0.04, 3))
    evening, noise_seed = int(drive.seeds[i][1] * 97 + 3), int(rng.integers(1 << 30))
    return light._replace(exposure=gain, balance=(float(r), float(g), float(b)), evening=evening), noise_seed
