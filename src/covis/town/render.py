"""Images and depth of the town, by ray casting in compiled array code, at any size.

Pixel (row, column) has its centre at (column + 0.5, row + 0.5) in the units of the intrinsics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.town.casting import SKY, cast
from covis.town.layout import TownScene
from covis.town.shading import Light, shade

_CONTRAST = 0.06
"""Corners of a pixel that differ by more, in displayed brightness, call for rays inside it."""
_SLACK_M = 0.3
"""A surface that much in front of a point counts as the point's own: crowns of trees are ragged."""


def image(
    scene: TownScene,
    movers: Floats,
    position: Floats,
    rotation: Floats,
    intrinsics: Floats,
    light: Light,
    *,
    samples: int,
    seed: int,
) -> NDArray[np.uint8]:
    """(height, width, 3) photograph; `intrinsics` = fx, fy, cx, cy, width, height.

    A pixel is the mean of its four corners, which it shares with its neighbours, and of rays inside it where the
    corners differ.
    """
    width, height = int(intrinsics[4]), int(intrinsics[5])

    def look(points: Floats) -> Floats:
        return _look(scene, movers, position, rotation, intrinsics, light, points)

    grid = look(_lattice(width + 1, height + 1, 0.0)).reshape(height + 1, width + 1, 3)
    corners = np.stack([grid[:-1, :-1], grid[:-1, 1:], grid[1:, :-1], grid[1:, 1:]])
    pixels = corners.mean(axis=0)
    edges = np.argwhere((corners.max(axis=0) - corners.min(axis=0)).max(axis=2) > _CONTRAST)
    if len(edges):
        inner = _lattice(samples, samples, 0.5) / samples
        inner_sum = look((edges[:, None, ::-1] + inner).reshape(-1, 2)).reshape(len(edges), -1, 3).sum(axis=1)
        row, column = edges.T
        pixels[row, column] = (4.0 * pixels[row, column] + 2.0 * inner_sum) / (4.0 + 2.0 * len(inner))
    grain = np.random.default_rng(seed).standard_normal(pixels.shape, np.float32)
    levels: NDArray[np.uint8] = np.clip(255.0 * (pixels + light.noise * grain) + 0.5, 0.0, 255.0).astype(np.uint8)
    return levels


def measure(
    scene: TownScene, movers: Floats, position: Floats, rotation: Floats, intrinsics: Floats, leaves: float
) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Depth along the optical axis (inf = sky), item and normal at each pixel's centre."""
    shape = int(intrinsics[5]), int(intrinsics[4])
    rays, unit = _rays(rotation, intrinsics, _lattice(shape[1], shape[0], 0.5))
    hits = cast(scene, movers, position, rays, leaves, np.empty((len(rays), 6)))
    items = hits[:, 1].astype(np.int32)
    depth = np.where(items == SKY, np.inf, hits[:, 0] * unit)
    return depth.reshape(shape), items.reshape(shape), hits[:, 3:].reshape(*shape, 3)


def sees(
    scene: TownScene,
    movers: Floats,
    position: Floats,
    rotation: Floats,
    intrinsics: Floats,
    leaves: float,
    points: Floats,
) -> NDArray[np.bool_]:
    """(P,) whether each of the (P, 3) points lies in the picture with nothing in front of it."""
    offset = points - position
    x, y, z = (offset @ rotation).T
    ahead = np.where(z > 0.1, z, np.inf)
    across, down = intrinsics[0] * x / ahead + intrinsics[2], intrinsics[1] * y / ahead + intrinsics[3]
    inside: NDArray[np.bool_] = (
        (z > 0.1) & (across >= 0) & (down >= 0) & (across < intrinsics[4]) & (down < intrinsics[5])
    )
    span = np.linalg.norm(offset[inside], axis=1)
    hits = cast(scene, movers, position, offset[inside] / span[:, None], leaves, np.empty((len(span), 6)))
    inside[inside] = hits[:, 0] > span - _SLACK_M
    return inside


def _look(
    scene: TownScene, movers: Floats, position: Floats, rotation: Floats, camera: Floats, light: Light, points: Floats
) -> Floats:
    """(P, 3) displayed colours, in [0, 1], at (P, 2) points of the picture: lens, exposure and tone curve."""
    rays, _ = _rays(rotation, camera, points)
    hits = cast(scene, movers, position, rays, light.leaves, np.empty((len(rays), 6)))
    colours = shade(scene, movers, position, rays, hits, 1.0 / camera[0], light, np.empty((len(rays), 3)))
    vignette = 1.0 - 0.5 * ((points / camera[4:] - 0.5) ** 2).sum(axis=1, keepdims=True)
    exposed: Floats = np.sqrt(1.0 - np.exp(-1.6 * light.exposure * vignette * colours * np.array(light.balance)))
    return exposed


def _rays(rotation: Floats, camera: Floats, points: Floats) -> tuple[Floats, Floats]:
    """(P, 3) unit directions through (P, 2) points of the picture, and (P,) the depth of one metre along each."""
    local = np.column_stack([(points - camera[2:4]) / camera[:2], np.ones(len(points))])
    unit = 1.0 / np.linalg.norm(local, axis=1)
    return (local * unit[:, None]) @ rotation.T, unit


def _lattice(columns: int, rows: int, shift: float) -> Floats:
    """(columns · rows, 2) x, y of a unit grid, row after row."""
    y, x = np.divmod(np.arange(columns * rows), columns)
    return np.column_stack([x, y]) + shift
