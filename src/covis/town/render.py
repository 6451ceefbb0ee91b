"""Images and depth of the town, by ray casting in compiled array code, at any size.

Pixel (row, column) has its centre at (column + 0.5, row + 0.5) in the units of the intrinsics. What colour a ray brings
back, rays into images, and one traversal made visible.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.compiling import kernel
from covis.town import solids as s
from covis.town import traversals
from covis.town.config import ENTRY, INNER, TownConfig
from covis.town.layout import District, Scene, build, district
from covis.town.surfaces import Colour, facade, ground, hash01, noise
from covis.town.tracing import GROUND, SKY, Hit, cast, trace
from covis.town.traversals import Condition, Traversal


class Light(NamedTuple):
    """Time of day, season, weather and camera of one image. Colours are linear RGB."""

    sun_x: float
    sun_y: float
    sun_z: float
    """Unit vector towards the sun."""
    sun: Colour
    ambient: Colour
    zenith: Colour
    horizon: Colour
    haze_per_m: float
    leaf: Colour
    """Factor on the colour of leaves."""
    leaves: float
    """How dense crowns are: 1 in summer, 0.3 in winter."""
    snow: float
    wet: float
    clouds: float
    lit: float
    """Share of windows with light in them."""
    headlight: float
    evening: int
    """Tells one traversal's clouds and lit windows from another's."""
    exposure: float
    balance: Colour
    """White balance of the camera."""
    noise: float
    """Standard deviation of the sensor noise, of full scale."""


@kernel(**INNER)
def _sky(dx: float, dy: float, dz: float, light: Light) -> Colour:
    rise = max(0.0, dz) ** 0.6
    r = light.horizon[0] + (light.zenith[0] - light.horizon[0]) * rise
    g = light.horizon[1] + (light.zenith[1] - light.horizon[1]) * rise
    b = light.horizon[2] + (light.zenith[2] - light.horizon[2]) * rise
    if dz > 0.02 and light.clouds > 0.0:
        x, y = 1.5 * dx / (dz + 0.15), 1.5 * dy / (dz + 0.15)
        k = 0.65 * noise(x, y, light.evening) + 0.35 * noise(2.7 * x, 2.7 * y, light.evening + 1)
        k = light.clouds * max(0.0, min(1.0, 3.0 * (k - 0.42)))
        pale = 0.5 * (light.sun[0] + light.sun[1] + light.sun[2]) / 3.0 + light.ambient[1]
        r, g, b = r + (pale - r) * k, g + (pale - g) * k, b + (pale - b) * k
    glow = max(0.0, dx * light.sun_x + dy * light.sun_y + dz * light.sun_z) ** 24
    return r + 0.6 * glow * light.sun[0], g + 0.6 * glow * light.sun[1], b + 0.6 * glow * light.sun[2]


@kernel(**INNER)
def _solid_colour(
    b: Any, n: int, x: float, y: float, z: float, nz: float, light: Light
) -> tuple[float, float, float, float]:
    r, g, bl = b[n, s.COLOUR], b[n, s.COLOUR + 1], b[n, s.COLOUR + 2]
    material = b[n, s.MATERIAL]
    if material == s.LEAVES or material == s.HEDGE:
        k = 0.55 + 0.5 * hash01(math.floor(x * 2.5), math.floor(y * 2.5), math.floor(z * 2.5))
        k += 0.45 * hash01(math.floor(x * 9.0), math.floor(y * 9.0), math.floor(z * 9.0))
        if material == s.HEDGE:
            return r * k, g * k, bl * k, 0.0
        return r * k * light.leaf[0], g * k * light.leaf[1], bl * k * light.leaf[2], 0.0
    local = (x - b[n, s.X]) * b[n, s.COS] + (y - b[n, s.Y]) * b[n, s.SIN]
    if material == s.CAR:
        wheel = abs(abs(local) - 0.62 * b[n, s.HALF_X])
        if z < 0.3 or (wheel < 0.34 and wheel * wheel + (z - 0.33) ** 2 < 0.12):
            return 0.03, 0.03, 0.035, 0.0
        if b[n, s.Z1] > 2.0 and z > 1.3 and z < 1.95 and local > 0.25 * b[n, s.HALF_X]:
            return 0.06, 0.08, 0.10, 0.0
    elif material == s.CABIN and nz < 0.5 and z < 1.34 and abs(local) % 0.9 > 0.1:
        return 0.06, 0.08, 0.10, 0.0
    elif material == s.WOVEN and (local % 0.8) < 0.4:
        return 0.75, 0.73, 0.68, 0.0
    elif material == s.LAMP and light.lit > 0:
        return 1.0, 0.8, 0.5, 1.0
    return r, g, bl, 0.0


@kernel(**INNER)
def _surface(
    scene: Scene, movers: Any, hit: Hit, x: float, y: float, z: float, blur_m: float, light: Light
) -> tuple[float, float, float, float]:
    """Colour before light falls on it, and lamplight."""
    _, item, along, _, _, nz = hit
    walls = len(scene.walls)
    snow = 0.0
    if item == GROUND:
        r, g, b, snow = ground(x, y, scene, blur_m)
        k = 1.0 - 0.45 * light.wet
        r, g, b, lit = r * k, g * k, b * k, 0.0
    elif item < walls:
        r, g, b, lit = facade(along, z, scene.facades, item, blur_m, light.lit, light.evening)
    else:
        n = item - walls
        fixed = n < len(scene.solids)
        if fixed:
            r, g, b, lit = _solid_colour(scene.solids, n, x, y, z, nz, light)
        else:
            r, g, b, lit = _solid_colour(movers, n - len(scene.solids), x, y, z, nz, light)
        snow = max(0.0, nz) * (1.0 if fixed else 0.5)
    k = light.snow * snow * (0.55 + 0.45 * noise(x * 0.7, y * 0.7, 5))
    return r + (0.82 - r) * k, g + (0.84 - g) * k, b + (0.88 - b) * k, lit


@kernel(**INNER)
def _colour(
    scene: Scene, movers: Any, hit: Hit, origin: Any, dx: float, dy: float, dz: float, pixel: float, light: Light
) -> Colour:
    t, item, _, nx, ny, nz = hit
    if item == SKY:
        return _sky(dx, dy, dz, light)
    x, y, z = origin[0] + t * dx, origin[1] + t * dy, origin[2] + t * dz
    facing = nx * dx + ny * dy + nz * dz
    if facing > 0:
        nx, ny, nz, facing = -nx, -ny, -nz, -facing
    r, g, b, lit = _surface(scene, movers, hit, x, y, z, t * pixel / max(0.25, -facing), light)
    direct = nx * light.sun_x + ny * light.sun_y + nz * light.sun_z
    if direct > 0 and light.sun[0] > 0:
        px, py, pz = x + 0.02 * nx, y + 0.02 * ny, z + 0.02 * nz
        shadow = trace(scene, px, py, pz, light.sun_x, light.sun_y, light.sun_z, light.leaves, True)
        if shadow[1] >= 0:
            direct = 0.0
    else:
        direct = 0.0
    low = 0.62 + 0.38 * min(1.0, z / 5.0) if item != GROUND else 0.9
    open_ = (0.75 + 0.25 * nz) * low
    lamp = light.headlight * -facing / (1.0 + (t / 9.0) ** 2)
    k = math.exp(-light.haze_per_m * t)
    glow = 1.4 * lit
    r = r * (light.ambient[0] * open_ + light.sun[0] * direct + lamp + glow)
    g = g * (light.ambient[1] * open_ + light.sun[1] * direct + lamp + glow)
    b = b * (light.ambient[2] * open_ + light.sun[2] * direct + lamp * 0.85 + glow)
    if light.wet > 0.0 and item == GROUND:  # a wet road mirrors some sky at grazing angles
        k_wet = 0.5 * light.wet * (1.0 + facing) ** 3
        sky_r, sky_g, sky_b = light.horizon
        r, g, b = r + (sky_r - r) * k_wet, g + (sky_g - g) * k_wet, b + (sky_b - b) * k_wet
    hr, hg, hb = light.horizon
    return hr + (r - hr) * k, hg + (g - hg) * k, hb + (b - hb) * k


@kernel(**ENTRY)
def shade(
    scene: Scene, movers: Any, origin: Any, directions: Any, hits: Any, pixel: float, light: Light, out: Any
) -> Any:
    """Fills `out` (R, 3) with the light that comes back along each ray; `pixel` is a pixel's width at 1 m."""
    for k in range(len(directions)):
        hit = hits[k, 0], int(hits[k, 1]), hits[k, 2], hits[k, 3], hits[k, 4], hits[k, 5]
        r, g, b = _colour(
            scene, movers, hit, origin, directions[k, 0], directions[k, 1], directions[k, 2], pixel, light
        )
        out[k, 0], out[k, 1], out[k, 2] = r, g, b
    return out


# Images and depth of the town, by ray casting in compiled array code, at any size.
#
# Pixel (row, column) has its centre at (column + 0.5, row + 0.5) in the units of the intrinsics.


_CONTRAST = 0.06
"""Corners of a pixel that differ by more, in displayed brightness, call for rays inside it."""
_SLACK_M = 0.3
"""A surface that much in front of a point counts as the point's own: crowns of trees are ragged."""


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
        found = look((edges[:, None, ::-1] + inner).reshape(-1, 2)).reshape(len(edges), -1, 3).sum(axis=1)
        row, column = edges.T
        pixels[row, column] = (4.0 * pixels[row, column] + 2.0 * found) / (4.0 + 2.0 * len(inner))
    grain = np.random.default_rng(seed).standard_normal(pixels.shape, np.float32)
    levels: NDArray[np.uint8] = np.clip(255.0 * (pixels + light.noise * grain) + 0.5, 0.0, 255.0).astype(np.uint8)
    return levels


def measure(
    scene: Scene, movers: Floats, position: Floats, rotation: Floats, intrinsics: Floats, leaves: float
) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Depth along the optical axis (inf = sky), item and normal at each pixel's centre."""
    shape = int(intrinsics[5]), int(intrinsics[4])
    rays, unit = _rays(rotation, intrinsics, _lattice(shape[1], shape[0], 0.5))
    hits = cast(scene, movers, position, rays, leaves, np.empty((len(rays), 6)))
    items = hits[:, 1].astype(np.int32)
    depth = np.where(items == SKY, np.inf, hits[:, 0] * unit)
    return depth.reshape(shape), items.reshape(shape), hits[:, 3:].reshape(*shape, 3)


def sees(
    scene: Scene,
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
    scene: Scene, movers: Floats, position: Floats, rotation: Floats, camera: Floats, light: Light, points: Floats
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


# One traversal made visible: its light, and a picture or depth of each image.


@dataclass(frozen=True, eq=False)
class View:
    """A traversal with everything needed to render it."""

    config: TownConfig
    place: District
    drive: Traversal

    @classmethod
    def of(cls, config: TownConfig, split: str, condition: str) -> View:
        """The traversal of `split` under the named condition."""
        return _view(config, split, condition)

    @functools.cached_property
    def scene(self) -> Scene:
        """The district with this traversal's parked cars."""
        return build(self.place, traversals.parked_cars(self.config, self.place, self.drive.condition))

    def image(self, i: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """(height, width, 3) photograph `i`; `size` = (width, height)."""
        gain, balance, seed = traversals.exposure(self.config, self.drive, i)
        return image(
            self.scene,
            self.movers(i),
            self.drive.position[i],
            self.drive.rotation[i],
            intrinsics(self.config, size),
            _light(self.drive.condition, gain, balance, self.drive.seeds[i]),
            samples=self.config.samples,
            seed=seed,
        )

    def movers(self, i: int) -> NDArray[np.float64]:
        """(M, solids.FIELDS) cars and people that are there in image `i` alone."""
        return traversals.in_the_way(self.config, self.drive, i)

    def measure(
        self, i: int, size: tuple[int, int] | None = None, movers: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
        """Depth along the optical axis (inf = sky), item and normal of each pixel."""
        moving = self.movers(i)
        return measure(
            self.scene,
            moving if movers else moving[:0],
            self.drive.position[i],
            self.drive.rotation[i],
            intrinsics(self.config, size),
            self.drive.condition.leaves,
        )


@functools.lru_cache(maxsize=16)
def _view(config: TownConfig, split: str, condition: str) -> View:
    place = _place(config, split)
    return View(config, place, traversals.traversal(config, place, traversals.CONDITIONS[condition]))


@functools.lru_cache(maxsize=8)
def _place(config: TownConfig, split: str) -> District:
    return district(config, split)


def intrinsics(config: TownConfig, size: tuple[int, int] | None = None) -> NDArray[np.float64]:
    """(6,) fx, fy, cx, cy, width, height of every camera of the town."""
    width, height = size or (config.width, config.height)
    focal = 0.5 * width / np.tan(np.radians(config.fov_deg) / 2)
    return np.array([focal, focal, width / 2, height / 2, width, height], np.float64)


def _light(c: Condition, gain: float, balance: tuple[float, float, float], seeds: NDArray[np.int64]) -> Light:
    azimuth, height = np.radians([c.sun_from_deg, c.sun_height_deg])
    return Light(
        float(np.sin(azimuth) * np.cos(height)), float(np.cos(azimuth) * np.cos(height)), float(np.sin(height)),
        c.sun, c.ambient, c.zenith, c.horizon, c.haze_per_m, c.leaf, c.leaves, c.snow, c.wet, c.clouds, c.lit,
        c.headlight, int(seeds[1] * 97 + 3), gain, balance, c.noise,
    )  # fmt: skip
