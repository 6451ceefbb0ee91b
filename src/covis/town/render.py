"""Images and depth of the town, by ray casting in compiled array code, at any size.

Pixel (row, column) has its centre at (column + 0.5, row + 0.5) in the units of the intrinsics.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Shot(NamedTuple):
    """A camera in the town at one moment: where it stands, and all that it may see."""

    scene: TownScene
    movers: Floats
    """Things that are there at this moment alone."""
    leaves: float
    """How dense crowns are."""
    position: Floats
    rotation: Floats
    camera: Floats
    """fx, fy, cx, cy, width, height."""

    def hits(self, rays: Floats) -> Floats:
        """(R, 6) what rays along unit vectors (R, 3) meet (`covis.town.casting.Hit`)."""
        found: Floats = cast(self.scene, self.movers, self.position, rays, self.leaves, np.empty((len(rays), 6)))
        return found


def image(shot: Shot, light: Light, *, samples: int, seed: int) -> NDArray[np.uint8]:
    """(height, width, 3) photograph.

    A pixel is the mean of its four corners, which it shares with its neighbours, and of rays inside it where the
    corners differ.
    """
    width, height = int(shot.camera[4]), int(shot.camera[5])
    grid = _look(shot, light, _lattice(width + 1, height + 1, 0.0)).reshape(height + 1, width + 1, 3)
    corners = np.stack([grid[:-1, :-1], grid[:-1, 1:], grid[1:, :-1], grid[1:, 1:]])
    pixels = corners.mean(axis=0)
    edges = np.argwhere((corners.max(axis=0) - corners.min(axis=0)).max(axis=2) > _CONTRAST)
    if len(edges):
        inner = _lattice(samples, samples, 0.5) / samples
        inside = _look(shot, light, (edges[:, None, ::-1] + inner).reshape(-1, 2))
        row, column = edges.T
        inner_sum = inside.reshape(len(edges), -1, 3).sum(axis=1)
        pixels[row, column] = (4.0 * pixels[row, column] + 2.0 * inner_sum) / (4.0 + 2.0 * len(inner))
    grain = np.random.default_rng(seed).standard_normal(pixels.shape, np.float32)
    levels: NDArray[np.uint8] = np.clip(255.0 * (pixels + light.noise * grain) + 0.5, 0.0, 255.0).astype(np.uint8)
    return levels


def measure(shot: Shot) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Depth along the optical axis (inf = sky), item and normal at each pixel's centre."""
    shape = int(shot.camera[5]), int(shot.camera[4])
    rays, unit = _rays(shot, _lattice(shape[1], shape[0], 0.5))
    hits = shot.hits(rays)
    items = hits[:, 1].astype(np.int32)
    depth = np.where(items == SKY, np.inf, hits[:, 0] * unit)
    return depth.reshape(shape), items.reshape(shape), hits[:, 3:].reshape(*shape, 3)


def sees(shot: Shot, points: Floats) -> NDArray[np.bool_]:
    """(P,) whether each of the (P, 3) points lies in the picture with nothing in front of it."""
    offset, camera = points - shot.position, shot.camera
    x, y, z = (offset @ shot.rotation).T
    ahead = np.where(z > 0.1, z, np.inf)
    across, down = camera[0] * x / ahead + camera[2], camera[1] * y / ahead + camera[3]
    inside: NDArray[np.bool_] = (z > 0.1) & (across >= 0) & (down >= 0) & (across < camera[4]) & (down < camera[5])
    span = np.linalg.norm(offset[inside], axis=1)
    inside[inside] = shot.hits(offset[inside] / span[:, None])[:, 0] > span - _SLACK_M
    return inside


def _look(shot: Shot, light: Light, points: Floats) -> Floats:
    """(P, 3) displayed colours, in [0, 1], at (P, 2) points of the picture: lens, exposure and tone curve."""
    rays, _ = _rays(shot, points)
    colours = shade(
        shot.scene, shot.movers, shot.position, rays, shot.hits(rays), 1.0 / shot.camera[0], light, np.empty_like(rays)
    )
    vignette = 1.0 - 0.5 * ((points / shot.camera[4:] - 0.5) ** 2).sum(axis=1, keepdims=True)
    exposed: Floats = np.sqrt(1.0 - np.exp(-1.6 * light.exposure * vignette * colours * np.array(light.balance)))
    return exposed


def _rays(shot: Shot, points: Floats) -> tuple[Floats, Floats]:
    """(P, 3) unit directions through (P, 2) points of the picture, and (P,) the depth of one metre along each."""
    local = np.column_stack([(points - shot.camera[2:4]) / shot.camera[:2], np.ones(len(points))])
    unit = 1.0 / np.linalg.norm(local, axis=1)
    return (local * unit[:, None]) @ shot.rotation.T, unit


def _lattice(columns: int, rows: int, shift: float) -> Floats:
    """(columns · rows, 2) x, y of a unit grid, row after row."""
    y, x = np.divmod(np.arange(columns * rows), columns)
    return np.column_stack([x, y]) + shift
