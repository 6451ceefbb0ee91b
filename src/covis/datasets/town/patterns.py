"""Noise and detail that every surface is made of: pure functions of the place, compiled."""

from __future__ import annotations

import math

from covis.compiling import kernel
from covis.datasets.town.options import INNER

Colour = tuple[float, float, float]
"""Linear RGB."""
_MASK = 0xFFFFFFFF


@kernel(**INNER)
def hash01(a: int, b: int, c: int) -> float:
    """A number in [0, 1) that depends on three integers only."""
    k = (a * 374761393 + b * 668265263 + c * 1274126177) & _MASK
    k = ((k ^ (k >> 13)) * 1103515245) & _MASK
    k = ((k ^ (k >> 16)) * 668265263) & _MASK
    return float(k ^ (k >> 15)) / 4294967296.0


@kernel(**INNER)
def noise(x: float, y: float, seed: int) -> float:
    """Smooth value noise in [0, 1) with unit cells."""
    i, j = math.floor(x), math.floor(y)
    u, v = x - i, y - j
    u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
    i, j = int(i), int(j)
    low = hash01(i, j, seed) * (1 - u) + hash01(i + 1, j, seed) * u
    high = hash01(i, j + 1, seed) * (1 - u) + hash01(i + 1, j + 1, seed) * u
    return low * (1 - v) + high * v


@kernel(**INNER)
def detail(blur_m: float, size_m: float) -> float:
    """How much of a pattern of `size_m` survives the blur: 1 near, 0 far."""
    return max(0.0, min(1.0, 1.6 - 1.2 * blur_m / size_m))
