"""Images and depth of the town, in compiled array code, at any size.

Pixel (row, column) has its centre at (column + 0.5, row + 0.5) in the units of the intrinsics.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.datasets.town.compiling import kernel
from covis.datasets.town.scene import Scene
from covis.datasets.town.shading import Light, shade
from covis.datasets.town.textures import Colour, hash01
from covis.datasets.town.tracing import SKY, trace, trace_movers

Floats = NDArray[np.float64]
_CONTRAST = 0.06
"""Corners of a pixel that differ by more, in displayed brightness, call for rays inside it."""


@kernel
def _ray(rotation: Any, camera: Any, x: float, y: float) -> tuple[float, float, float, float]:
    """Unit direction through image point (x, y), and the depth of one metre along it."""
    vx, vy = (x - camera[2]) / camera[0], (y - camera[3]) / camera[1]
    norm = 1.0 / math.sqrt(vx * vx + vy * vy + 1.0)
    dx = (rotation[0, 0] * vx + rotation[0, 1] * vy + rotation[0, 2]) * norm
    dy = (rotation[1, 0] * vx + rotation[1, 1] * vy + rotation[1, 2]) * norm
    dz = (rotation[2, 0] * vx + rotation[2, 1] * vy + rotation[2, 2]) * norm
    return dx, dy, dz, norm


@kernel
def _look(
    scene: Scene, movers: Any, origin: Any, rotation: Any, camera: Any, light: Light, x: float, y: float
) -> Colour:
    """What the camera sees at image point (x, y): tone-mapped, in [0, 1]."""
    dx, dy, dz, _ = _ray(rotation, camera, x, y)
    hit = trace(scene, origin[0], origin[1], origin[2], dx, dy, dz, light.leaves, False)
    first = len(scene.walls) + len(scene.solids)
    hit = trace_movers(movers, hit, first, origin[0], origin[1], origin[2], dx, dy, dz)
    r, g, b = shade(scene, movers, hit, origin, dx, dy, dz, 1.0 / camera[0], light)
    across, down = x / camera[4] - 0.5, y / camera[5] - 0.5
    gain = -1.6 * light.exposure * (1.0 - 0.5 * (across * across + down * down))
    return (
        math.sqrt(1.0 - math.exp(gain * max(0.0, r * light.balance[0]))),
        math.sqrt(1.0 - math.exp(gain * max(0.0, g * light.balance[1]))),
        math.sqrt(1.0 - math.exp(gain * max(0.0, b * light.balance[2]))),
    )


@kernel
def _render(
    scene: Scene, movers: Any, origin: Any, rotation: Any, camera: Any, samples: int, light: Light, seed: int, out: Any
) -> None:
    """A pixel is the mean of its corners, which it shares with its neighbours, and of rays inside it at edges."""
    height, width = out.shape[0], out.shape[1]
    upper = np.empty((width + 1, 3))
    lower = np.empty((width + 1, 3))
    total = np.empty(3)
    for row in range(height + 1):
        upper, lower = lower, upper
        for column in range(width + 1):
            r, g, b = _look(scene, movers, origin, rotation, camera, light, float(column), float(row))
            lower[column, 0], lower[column, 1], lower[column, 2] = r, g, b
        if row == 0:
            continue
        for column in range(width):
            spread = 0.0
            for c in range(3):
                a, b, d, e = upper[column, c], upper[column + 1, c], lower[column, c], lower[column + 1, c]
                total[c] = a + b + d + e
                spread = max(spread, max(a, b, d, e) - min(a, b, d, e))
            weight = 4.0
            if spread > _CONTRAST:
                for k in range(samples * samples):
                    x, y = column + (k % samples + 0.5) / samples, row - 1 + (k // samples + 0.5) / samples
                    r, g, b = _look(scene, movers, origin, rotation, camera, light, x, y)
                    total[0], total[1], total[2] = total[0] + 2.0 * r, total[1] + 2.0 * g, total[2] + 2.0 * b
                    weight += 2.0
            _expose(total, weight, light.noise, seed, out, row - 1, column)


@kernel
def _expose(total: Any, weight: float, sigma: float, seed: int, out: Any, row: int, column: int) -> None:
    """The sensor: noise of nearly normal distribution, then eight bits."""
    for c in range(3):
        n = 3 * (row * out.shape[1] + column) + c
        grain = 2.0 * (hash01(n, seed, 17) + hash01(n, seed, 19) + hash01(n, seed, 23) - 1.5)
        value = 255.0 * (total[c] / weight + sigma * grain) + 0.5
        out[row, column, c] = np.uint8(max(0.0, min(255.0, value)))


@kernel
def _measure(
    scene: Scene, movers: Any, origin: Any, rotation: Any, camera: Any, leaves: float, depth: Any, items: Any,
    normals: Any,
) -> None:  # fmt: skip
    height, width = depth.shape
    first = len(scene.walls) + len(scene.solids)
    for row in range(height):
        for column in range(width):
            dx, dy, dz, unit = _ray(rotation, camera, column + 0.5, row + 0.5)
            hit = trace(scene, origin[0], origin[1], origin[2], dx, dy, dz, leaves, False)
            t, item, _, nx, ny, nz = trace_movers(movers, hit, first, origin[0], origin[1], origin[2], dx, dy, dz)
            depth[row, column] = np.inf if item == SKY else t * unit
            items[row, column] = item
            normals[row, column, 0], normals[row, column, 1], normals[row, column, 2] = nx, ny, nz


def image(
    scene: Scene,
    movers: Floats,
    position: Floats,
    rotation: Floats,
    intrinsics: Floats,
    light: Light,
    *,
    samples: int,
    seed: int,
) -> NDArray[np.uint8]:
    """(height, width, 3) photograph; `intrinsics` = fx, fy, cx, cy, width, height."""
    out = np.empty((int(intrinsics[5]), int(intrinsics[4]), 3), np.uint8)
    _render(scene, movers, position, rotation, intrinsics, samples, light, seed, out)
    return out


def measure(
    scene: Scene, movers: Floats, position: Floats, rotation: Floats, intrinsics: Floats, leaves: float
) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Depth along the optical axis (inf = sky), item and normal at each pixel's centre."""
    shape = int(intrinsics[5]), int(intrinsics[4])
    depth, items, normals = np.empty(shape), np.empty(shape, np.int32), np.empty((*shape, 3))
    _measure(scene, movers, position, rotation, intrinsics, leaves, depth, items, normals)
    return depth, items, normals
