"""The colour of what a ray meets, in a given light."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from covis.core.compiling import kernel
from covis.town import layout
from covis.town.casting import GROUND, SKY, Hit, trace
from covis.town.config import ENTRY, INNER
from covis.town.layout import TownScene
from covis.town.surfaces import Colour, facade, ground, hash01, noise


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
    haze_per_m: float = 0.001
    leaf: Colour = (1.0, 1.0, 1.0)
    """Factor on the colour of leaves."""
    leaves: float = 1.0
    """How dense crowns are: 1 in summer, 0.3 in winter."""
    snow: float = 0.0
    wet: float = 0.0
    clouds: float = 0.6
    lit: float = 0.0
    """Share of windows with light in them."""
    headlight: float = 0.0
    evening: int = 0
    """Tells one traversal's clouds and lit windows from another's."""
    exposure: float = 1.0
    balance: Colour = (1.0, 1.0, 1.0)
    """White balance of the camera."""
    noise: float = 0.01
    """Standard deviation of the sensor noise, of full scale."""


def sunlight(
    from_deg: float, height_deg: float, sun: Colour, ambient: Colour, zenith: Colour, horizon: Colour, **more: Any
) -> Light:
    """The light of a sun in that compass direction and height."""
    azimuth, height = np.radians([from_deg, height_deg])
    x, y = float(np.sin(azimuth) * np.cos(height)), float(np.cos(azimuth) * np.cos(height))
    return Light(x, y, float(np.sin(height)), sun, ambient, zenith, horizon, **more)


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
