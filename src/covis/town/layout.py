"""Where streets, houses, trees and lamps stand: one district a split, drawn from the seed.

Axes: x east, y north, z up, metres. A district is a jittered grid of streets with some of them left out; lots of
varying width are laid along both sides of each street wherever no other street is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covis.arrays import Floats
from covis.town import houses
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
    """(W, houses.FIELDS) the look of each wall."""
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
