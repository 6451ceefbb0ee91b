"""Images and depth of the town, by ray casting in compiled array code, at any size.

Pixel (row, column) has its centre at (column + 0.5, row + 0.5) in the units of the intrinsics. The parts: the surface
that a ray meets, its colour, images and depth from rays, and the views of one traversal.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.compiling import kernel
from covis.town import layout, traversals
from covis.town.config import ENTRY, INNER, TownConfig
from covis.town.layout import CELL_M, District, TownScene, build_scene, district
from covis.town.surfaces import Colour, facade, ground, hash01, noise, outline
from covis.town.traversals import Condition, Traversal

# Which surface a ray meets first: walls, boxes and ellipsoids, exactly, through a grid of cells


FAR_M = 1e6
"""Distance that stands for the sky."""
SKY, GROUND = -2, -1
"""Item numbers of what is neither wall nor solid."""

Hit = tuple[float, int, float, float, float, float]
"""Distance in metres, item, metres along a wall (or 0), and the unit normal."""
END_M = 400.0
"""Ground farther away is lost in the sky."""


@kernel(**INNER)
def _wall(
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, walls: Any, facades: Any, n: int
) -> tuple[float, float]:
    """Distance and metres along the wall; distance < 0 for a miss."""
    wx, wy = walls[n, 2] - walls[n, 0], walls[n, 3] - walls[n, 1]
    det = dx * wy - dy * wx
    if abs(det) < 1e-12:
        return -1.0, 0.0
    px, py = walls[n, 0] - ox, walls[n, 1] - oy
    t = (px * wy - py * wx) / det
    share = (px * dy - py * dx) / det
    if t <= 1e-6 or share < 0.0 or share > 1.0:
        return -1.0, 0.0
    z = oz + t * dz
    if z < 0.0 or z > facades[n, layout.TOP] + layout.CHIMNEY_M:
        return -1.0, 0.0
    u = share * math.sqrt(wx * wx + wy * wy)
    if z > outline(u, facades, n):
        return -1.0, 0.0
    return t, u


@kernel(**INNER)
def _box(
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, b: Any, n: int
) -> tuple[float, float, float, float]:
    """Distance and normal; distance < 0 for a miss."""
    c, d = b[n, layout.COS], b[n, layout.SIN]
    px, py = ox - b[n, layout.X], oy - b[n, layout.Y]
    lx, ly = px * c + py * d, -px * d + py * c
    ex, ey = dx * c + dy * d, -dx * d + dy * c
    near, far, axis = -1e18, 1e18, 0
    for k in range(3):
        if k == 0:
            p, e, low, high = lx, ex, -b[n, layout.HALF_X], b[n, layout.HALF_X]
        elif k == 1:
            p, e, low, high = ly, ey, -b[n, layout.HALF_Y], b[n, layout.HALF_Y]
        else:
            p, e, low, high = oz, dz, b[n, layout.Z0], b[n, layout.Z1]
        if abs(e) < 1e-12:
            if p < low or p > high:
                return -1.0, 0.0, 0.0, 0.0
            continue
        t0, t1 = (low - p) / e, (high - p) / e
        if t0 > t1:
            t0, t1 = t1, t0
        if t0 > near:
            near, axis = t0, k
        far = min(far, t1)
    if near > far or near <= 1e-6:
        return -1.0, 0.0, 0.0, 0.0
    if axis == 0:
        sign = -1.0 if ex > 0 else 1.0
        return near, sign * c, sign * d, 0.0
    if axis == 1:
        sign = -1.0 if ey > 0 else 1.0
        return near, -sign * d, sign * c, 0.0
    return near, 0.0, 0.0, -1.0 if dz > 0 else 1.0


@kernel(**INNER)
def _ellipsoid(
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, b: Any, n: int, leaves: float
) -> tuple[float, float, float, float]:
    """Distance and normal; crowns are ragged, and thinner the smaller `leaves` is."""
    a, v = 1.0 / b[n, layout.HALF_X], 1.0 / b[n, layout.Z1]
    px, py, pz = (ox - b[n, layout.X]) * a, (oy - b[n, layout.Y]) * a, (oz - b[n, layout.Z0]) * v
    ex, ey, ez = dx * a, dy * a, dz * v
    aa = ex * ex + ey * ey + ez * ez
    bb = px * ex + py * ey + pz * ez
    root = bb * bb - aa * (px * px + py * py + pz * pz - 1.0)
    if root <= 0.0:
        return -1.0, 0.0, 0.0, 0.0
    root = math.sqrt(root)
    for side in range(2):
        t = (-bb - root) / aa if side == 0 else (-bb + root) / aa
        if t <= 1e-6:
            continue
        nx, ny, nz = (px + t * ex) * a, (py + t * ey) * a, (pz + t * ez) * v
        norm = math.sqrt(nx * nx + ny * ny + nz * nz)
        nx, ny, nz = nx / norm, ny / norm, nz / norm
        if b[n, layout.MATERIAL] == layout.LEAVES:
            x, y, z = ox + t * dx, oy + t * dy, oz + t * dz
            gap = hash01(math.floor(x * 3.0), math.floor(y * 3.0), math.floor(z * 3.0))
            facing = abs(nx * dx + ny * dy + nz * dz)
            if gap > leaves * (0.35 + facing):
                continue
        elif side == 1:
            continue
        return t, nx, ny, nz
    return -1.0, 0.0, 0.0, 0.0


@kernel(**INNER)
def _solid(
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, b: Any, n: int, leaves: float
) -> tuple[float, float, float, float]:
    if b[n, layout.SHAPE] == layout.BOX:
        return _box(ox, oy, oz, dx, dy, dz, b, n)
    return _ellipsoid(ox, oy, oz, dx, dy, dz, b, n, leaves)


@kernel(**INNER)
def trace(
    scene: TownScene, ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, leaves: float, any_hit: bool
) -> Hit:
    """What a ray from o along the unit vector d meets; `any_hit` stops at the first thing found (for shadows)."""
    best, item, along, nx, ny, nz = FAR_M, SKY, 0.0, 0.0, 0.0, 0.0
    if dz < -1e-9:
        best, item, nz = -oz / dz, GROUND, 1.0
    elif dz > 1e-9:
        best = min(FAR_M, (scene.ceiling - oz) / dz)  # above the tallest thing there is only sky
    walls = len(scene.walls)
    gx, gy = (ox - scene.x0) / CELL_M, (oy - scene.y0) / CELL_M
    i, j = math.floor(gx), math.floor(gy)
    step_i, step_j = (1 if dx > 0 else -1), (1 if dy > 0 else -1)
    wide_x = CELL_M / abs(dx) if abs(dx) > 1e-12 else 1e18
    wide_y = CELL_M / abs(dy) if abs(dy) > 1e-12 else 1e18
    next_x = ((i + 1 - gx) if dx > 0 else (gx - i)) * wide_x
    next_y = ((j + 1 - gy) if dy > 0 else (gy - j)) * wide_y
    enter = 0.0
    while enter < best and i >= 0 and j >= 0 and i < scene.columns and j < scene.rows:
        leave = min(next_x, next_y)
        cell = j * scene.columns + i
        if min(oz + enter * dz, oz + min(leave, best) * dz) <= scene.top[cell]:
            for k in range(scene.first[cell], scene.first[cell + 1]):
                n = scene.items[k]
                if n < walls:
                    t, u = _wall(ox, oy, oz, dx, dy, dz, scene.walls, scene.facades, n)
                    if t > 0 and t < best:
                        best, item, along = t, n, u
                else:
                    t, ax, ay, az = _solid(ox, oy, oz, dx, dy, dz, scene.solids, n - walls, leaves)
                    if t > 0 and t < best:
                        best, item, along, nx, ny, nz = t, n, 0.0, ax, ay, az
            if any_hit and item >= 0:
                break
        enter = leave
        if next_x < next_y:
            i += step_i
            next_x += wide_x
        else:
            j += step_j
            next_y += wide_y
    if item == SKY or (item == GROUND and best > END_M):
        return FAR_M, SKY, 0.0, 0.0, 0.0, 0.0
    if item >= 0 and item < walls:
        wx, wy = scene.walls[item, 2] - scene.walls[item, 0], scene.walls[item, 3] - scene.walls[item, 1]
        norm = math.sqrt(wx * wx + wy * wy)
        if wy * dx - wx * dy > 0:  # a gable seen from behind
            norm = -norm
        nx, ny, nz = wy / norm, -wx / norm, 0.0
    return best, item, along, nx, ny, nz


@kernel(**ENTRY)
def cast(scene: TownScene, movers: Any, origin: Any, directions: Any, leaves: float, hits: Any) -> Any:
    """Fills the (R, 6) `hits` of rays from one `origin` along (R, 3) unit `directions`.

    `movers` (M, layout.SOLID_FIELDS) are a few things that are there in one image only; they follow the scene's items.
    """
    ox, oy, oz = origin[0], origin[1], origin[2]
    first = len(scene.walls) + len(scene.solids)
    for k in range(len(directions)):
        dx, dy, dz = directions[k, 0], directions[k, 1], directions[k, 2]
        best, item, along, nx, ny, nz = trace(scene, ox, oy, oz, dx, dy, dz, leaves, False)
        for m in range(len(movers)):
            t, ax, ay, az = _solid(ox, oy, oz, dx, dy, dz, movers, m, 1.0)
            if t > 0 and t < best:
                best, item, along, nx, ny, nz = t, first + m, 0.0, ax, ay, az
        hits[k, 0], hits[k, 1], hits[k, 2] = best, item, along
        hits[k, 3], hits[k, 4], hits[k, 5] = nx, ny, nz
    return hits


# Colours, images and depth


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
    r, g, bl = b[n, layout.COLOUR], b[n, layout.COLOUR + 1], b[n, layout.COLOUR + 2]
    material = b[n, layout.MATERIAL]
    if material == layout.LEAVES or material == layout.HEDGE:
        k = 0.55 + 0.5 * hash01(math.floor(x * 2.5), math.floor(y * 2.5), math.floor(z * 2.5))
        k += 0.45 * hash01(math.floor(x * 9.0), math.floor(y * 9.0), math.floor(z * 9.0))
        if material == layout.HEDGE:
            return r * k, g * k, bl * k, 0.0
        return r * k * light.leaf[0], g * k * light.leaf[1], bl * k * light.leaf[2], 0.0
    local = (x - b[n, layout.X]) * b[n, layout.COS] + (y - b[n, layout.Y]) * b[n, layout.SIN]
    if material == layout.CAR:
        wheel = abs(abs(local) - 0.62 * b[n, layout.HALF_X])
        if z < 0.3 or (wheel < 0.34 and wheel * wheel + (z - 0.33) ** 2 < 0.12):
            return 0.03, 0.03, 0.035, 0.0
        if b[n, layout.Z1] > 2.0 and z > 1.3 and z < 1.95 and local > 0.25 * b[n, layout.HALF_X]:
            return 0.06, 0.08, 0.10, 0.0
    elif material == layout.CABIN and nz < 0.5 and z < 1.34 and abs(local) % 0.9 > 0.1:
        return 0.06, 0.08, 0.10, 0.0
    elif material == layout.WOVEN and (local % 0.8) < 0.4:
        return 0.75, 0.73, 0.68, 0.0
    elif material == layout.LAMP and light.lit > 0:
        return 1.0, 0.8, 0.5, 1.0
    return r, g, bl, 0.0


@kernel(**INNER)
def _surface(
    scene: TownScene, movers: Any, hit: Hit, x: float, y: float, z: float, blur_m: float, light: Light
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
    scene: TownScene, movers: Any, hit: Hit, origin: Any, dx: float, dy: float, dz: float, pixel: float, light: Light
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
    scene: TownScene, movers: Any, origin: Any, directions: Any, hits: Any, pixel: float, light: Light, out: Any
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
    def scene(self) -> TownScene:
        """The district with this traversal's parked cars."""
        return build_scene(self.place, traversals.parked_cars(self.config, self.place, self.drive.condition))

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
        """(M, layout.SOLID_FIELDS) cars and people that are there in image `i` alone."""
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
