"""How streets, pavements and grass look."""

from __future__ import annotations

import math

from covis.compiling import kernel
from covis.datasets.town.options import INNER
from covis.datasets.town.patterns import detail, noise
from covis.datasets.town.scene import CELL_M, Scene


@kernel(**INNER)
def ground(x: float, y: float, scene: Scene, blur_m: float) -> tuple[float, float, float, float]:
    """Colour of the ground and how much of it snow would cover (0 on driven lanes, 1 on grass)."""
    best, lateral, station, length, road, pavement = 1e9, 0.0, 0.0, 0.0, 0.0, 0.0
    roads = 0
    i, j = int((x - scene.x0) / CELL_M), int((y - scene.y0) / CELL_M)
    if i >= 0 and j >= 0 and i < scene.columns and j < scene.rows:
        cell = j * scene.columns + i
        for n in range(scene.street_first[cell], scene.street_first[cell + 1]):
            e = scene.street_items[n]
            dx, dy = scene.streets[e, 2] - scene.streets[e, 0], scene.streets[e, 3] - scene.streets[e, 1]
            span = math.sqrt(dx * dx + dy * dy)
            dx, dy = dx / span, dy / span
            s = (x - scene.streets[e, 0]) * dx + (y - scene.streets[e, 1]) * dy
            side = (y - scene.streets[e, 1]) * dx - (x - scene.streets[e, 0]) * dy
            beyond = max(0.0, -s, s - span)
            gap = math.sqrt(side * side + beyond * beyond) - scene.streets[e, 4]
            roads += gap < 0.0
            if gap < best:
                best, lateral, station, length = gap, side, s, span
                road, pavement = scene.streets[e, 4], scene.streets[e, 5]
    grain = noise(x * 0.8, y * 0.8, 1)
    if best < 0.0:
        return _asphalt(lateral, station, length, road, grain, roads == 1)
    if best < pavement:
        k = (0.42 if best > 0.25 else 0.58) * (0.88 + 0.2 * grain)
        joint = (x % 0.9 < 0.08 or y % 0.9 < 0.08) and best > 0.25
        k *= 1.0 - 0.25 * joint * detail(blur_m, 0.5)
        return k, k * 0.97, k * 0.92, 0.7
    k = 0.7 + 0.6 * grain
    return 0.17 * k, 0.24 * k, 0.09 * k, 1.0


@kernel(**INNER)
def _asphalt(
    lateral: float, station: float, length: float, road: float, grain: float, alone: bool
) -> tuple[float, float, float, float]:
    k = 0.17 + 0.06 * grain
    end = min(station, length - station)
    if alone and end > 11.5 and abs(lateral) < 0.09 and station % 5.0 < 2.6:
        k = 0.62
    if alone and end > 7.5 and end < 10.0 and lateral % 1.1 < 0.55 and abs(lateral) < road - 0.3:
        k = 0.6
    lane = abs(abs(lateral) - 0.5 * road)
    return k, k, k * 1.03, 0.15 + 0.5 * min(1.0, lane)
