"""How streets, grass, walls and roofs look: pure, compiled functions of the place. All colours are linear RGB.

`blur_m` is the width of a pixel on the surface; fine detail fades into its mean as it grows. `f` and `w` are the
table of facades and the row of the wall.
"""

from __future__ import annotations

import math
from typing import Any

from covis.core.compiling import kernel
from covis.town import layout
from covis.town.config import INNER
from covis.town.layout import CELL_M, TownScene

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


@kernel(**INNER)
def ground(x: float, y: float, scene: TownScene, blur_m: float) -> tuple[float, float, float, float]:
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


LIT = 1.0
"""Fourth channel of a facade: windows with light in them."""


@kernel(**INNER)
def outline(u: float, f: Any, w: int) -> Any:
    """Height of a wall's upper edge at `u` metres from its left end."""
    profile, eave, top = f[w, layout.PROFILE], f[w, layout.EAVE], f[w, layout.TOP]
    share = u / f[w, layout.WIDTH]
    middle = 1.0 - abs(2.0 * share - 1.0)
    if profile == layout.GABLE:
        edge = eave + (top - eave) * middle
    elif profile == layout.STEPPED:
        edge = eave + (top - eave) * min(1.0, math.floor(middle * 5.0 + 1.0) / 5.0)
    elif profile == layout.CURVED:
        edge = eave + (top - eave) * (0.5 - 0.5 * math.cos(math.pi * min(1.0, middle * 1.3)))
    elif profile == layout.HIPPED:
        edge = eave + (top - eave) * min(1.0, 3.0 * middle)
    else:
        edge = top
    if (
        profile != layout.FLAT
        and profile != layout.STEPPED
        and abs(u - f[w, layout.CHIMNEY] * f[w, layout.WIDTH]) < 0.4
    ):
        edge = max(edge + 0.4, min(top, edge + 2.0) + layout.CHIMNEY_M * 0.6)
    return edge


@kernel(**INNER)
def facade(
    u: float, z: float, f: Any, w: int, blur_m: float, lit: float, evening: int
) -> tuple[float, float, float, float]:
    """Colour and lamplight of a wall at `u` metres from its left end and `z` above ground.

    `lit` is the share of windows with light in them, `evening` tells one evening from another.
    """
    seed = int(f[w, layout.SEED])
    if z > f[w, layout.EAVE] and f[w, layout.PROFILE] >= layout.EAVES:
        r, g, b = _roof(u, z, f, w, blur_m, seed)
        return r, g, b, 0.0
    if z < f[w, layout.GROUND_H] and f[w, layout.GROUND_FLOOR] != layout.DWELLING:
        return _ground_floor(u, z, f, w, blur_m, lit, evening, seed)
    r, g, b = _wall(u, z, f, w, blur_m, seed)
    if z > f[w, layout.EAVE] - 0.35 and z < f[w, layout.EAVE]:
        return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2], 0.0
    if z > f[w, layout.EAVE]:
        return _attic(u, z, f, w, r, g, b)
    return _windows(u, z, f, w, r, g, b, lit, evening, seed)


@kernel(**INNER)
def _wall(u: float, z: float, f: Any, w: int, blur_m: float, seed: int) -> Colour:
    shade = 0.86 + 0.26 * noise(u * 0.45, z * 0.35, seed)
    r, g, b = f[w, layout.BASE] * shade, f[w, layout.BASE + 1] * shade, f[w, layout.BASE + 2] * shade
    material = f[w, layout.WALL]
    if z < 0.55:
        return r * 0.55, g * 0.55, b * 0.57
    if material == layout.BRICK:
        row = math.floor(z / 0.28)
        k = hash01(math.floor(u / 0.6 + 0.5 * (row % 2)), int(row), seed) - 0.5
        k = 1.0 + 0.5 * k * detail(blur_m, 0.5)
        return r * k, g * k, b * k
    if material == layout.BANDED:
        k = 0.72 if (z % 0.9) < 0.22 else 1.06
        k = 1.0 + (k - 1.0) * detail(blur_m, 0.9)
        return r * k, g * k, b * k
    if material == layout.TIMBERED and z > f[w, layout.GROUND_H]:
        bay = f[w, layout.WIDTH] / f[w, layout.COLUMNS]
        x, y = u % bay, (z - f[w, layout.GROUND_H]) % f[w, layout.FLOOR_H]
        slant = (
            abs(x / bay - y / f[w, layout.FLOOR_H]) < 0.06
            and hash01(int(u / bay), int(z / f[w, layout.FLOOR_H]), seed) < 0.5
        )
        if x < 0.22 or y < 0.25 or slant:
            return 0.14, 0.09, 0.06
    return r, g, b


@kernel(**INNER)
def _windows(
    u: float, z: float, f: Any, w: int, r: float, g: float, b: float, lit: float, evening: int, seed: int
) -> tuple[float, float, float, float]:
    bay = f[w, layout.WIDTH] / f[w, layout.COLUMNS]
    column = int(u / bay)
    ground = z < f[w, layout.GROUND_H]
    storey = -1 if ground else int((z - f[w, layout.GROUND_H]) / f[w, layout.FLOOR_H])
    height = f[w, layout.GROUND_H] if ground else f[w, layout.FLOOR_H]
    x = (u / bay - column - 0.5) * bay
    y = z if ground else z - f[w, layout.GROUND_H] - storey * f[w, layout.FLOOR_H]
    if ground and column == int(f[w, layout.DOOR]):
        return _door(x, y, bay, f, w, r, g, b, seed)
    half = 0.5 * f[w, layout.WINDOW_W] * bay * (1.5 if f[w, layout.WINDOW_STYLE] == layout.WIDE else 1.0)
    low = 0.24 * height
    high = min(low + f[w, layout.WINDOW_H] * height, 0.92 * height)
    if hash01(column, storey, seed) < 0.07:
        return r, g, b, 0.0
    if f[w, layout.WINDOW_STYLE] == layout.ARCHED and y > high - half:
        inside = x * x + (y - high + half) ** 2 < half * half
    else:
        inside = abs(x) < half and y > low and y < high
    if not inside:
        if f[w, layout.WINDOW_STYLE] == layout.SHUTTERED and abs(x) < half * 1.75 and y > low and y < high:
            return f[w, layout.SIGN] * 0.8, f[w, layout.SIGN + 1] * 0.8, f[w, layout.SIGN + 2] * 0.8, 0.0
        if abs(x) < half + 0.18 and y > low - 0.2 and y < high + 0.2:
            return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2], 0.0
        return r, g, b, 0.0
    if (abs(x) < 0.06 or abs(y - 0.5 * (low + high)) < 0.06) and f[w, layout.WINDOW_STYLE] in (
        layout.CROSSED,
        layout.ARCHED,
    ):
        return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2], 0.0
    return _glass(column, storey, (y - low) / height, lit, evening, seed)


@kernel(**INNER)
def _glass(
    column: int, storey: int, rise: float, lit: float, evening: int, seed: int
) -> tuple[float, float, float, float]:
    if hash01(column + 31 * storey, evening, seed) < lit:
        return 0.9, 0.62, 0.28, LIT
    k = 0.6 + 0.8 * rise
    if hash01(column, storey, seed + 7) < 0.25:  # curtains
        return 0.40, 0.37, 0.33, 0.0
    return 0.07 * k, 0.10 * k, 0.13 * k, 0.0


@kernel(**INNER)
def _door(
    x: float, y: float, bay: float, f: Any, w: int, r: float, g: float, b: float, seed: int
) -> tuple[float, float, float, float]:
    half = min(0.65, 0.4 * bay)
    if abs(x) < half and y < 2.25:
        panel = 0.7 if (abs(x) < half * 0.6 and (y % 1.0) > 0.25) else 1.0
        return f[w, layout.SIGN] * panel, f[w, layout.SIGN + 1] * panel, f[w, layout.SIGN + 2] * panel, 0.0
    if abs(x) < half + 0.25 and y < 2.7:
        return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2], 0.0
    return r, g, b, 0.0


@kernel(**INNER)
def _ground_floor(
    u: float, z: float, f: Any, w: int, blur_m: float, lit: float, evening: int, seed: int
) -> tuple[float, float, float, float]:
    width, high = f[w, layout.WIDTH], f[w, layout.GROUND_H]
    kind = f[w, layout.GROUND_FLOOR]
    r, g, b = _wall(u, z, f, w, blur_m, seed)
    if kind == layout.ARCADE:
        bay = width / max(1.0, math.floor(width / 3.2))
        x = (u % bay) - 0.5 * bay
        half = 0.36 * bay
        rise = z - (high - 0.7 - half)
        open_ = (abs(x) < half) if rise < 0 else (x * x + rise * rise < half * half)
        k = 0.35 if open_ else 1.0
        return (0.06, 0.055, 0.05, 0.0) if open_ else (r * k, g * k, b * k, 0.0)
    if kind == layout.BLANK:
        return _mural(u, z, f, w, r, g, b, seed)
    if z > high - 0.95 and z < high - 0.15 and u > 0.3 and u < width - 0.3:
        return _sign(u, (z - high + 0.95) / 0.8, f, w, blur_m, seed)
    if z > high - 0.95 or z < 0.45 or u < 0.4 or u > width - 0.4:
        return f[w, layout.SIGN] * 0.55, f[w, layout.SIGN + 1] * 0.55, f[w, layout.SIGN + 2] * 0.55, 0.0
    panes = max(2.0, math.floor((width - 0.8) / 1.7))
    pane = (u - 0.4) / (width - 0.8) * panes
    if abs(pane - math.floor(pane + 0.5)) < 0.05:
        return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2], 0.0
    shop_lit = 0.0 if lit == 0.0 else 0.5 + 0.5 * lit
    if hash01(1, evening, seed) < shop_lit:
        return 0.95, 0.80, 0.52, LIT
    shelf = int(pane) + 7 * int(z * 2.0)
    if z < 2.0 and hash01(shelf, 0, seed) < 0.45:  # goods in the window
        return (
            0.1 + 0.6 * hash01(shelf, 1, seed),
            0.1 + 0.5 * hash01(shelf, 2, seed),
            0.1 + 0.5 * hash01(shelf, 3, seed),
            0.0,
        )
    return 0.08, 0.10, 0.12, 0.0


@kernel(**INNER)
def _sign(u: float, v: float, f: Any, w: int, blur_m: float, seed: int) -> tuple[float, float, float, float]:
    """A shop sign: letters as columns of blocks, light on dark or dark on light."""
    r, g, b = f[w, layout.SIGN], f[w, layout.SIGN + 1], f[w, layout.SIGN + 2]
    first = 0.15 * f[w, layout.WIDTH] + 0.3 * f[w, layout.WIDTH] * hash01(seed, 5, 1)
    letters = 3 + int(6 * hash01(seed, 6, 1))
    x = (u - first) / 0.5
    if x < 0 or x >= letters or v < 0.18 or v > 0.82 or (x % 1.0) > 0.8:
        return r, g, b, 0.0
    glyph = hash01(int((x % 1.0) / 0.8 * 3.0), int((v - 0.18) / 0.64 * 5.0), seed + int(x))
    pale = 0.8 if r + g + b < 1.5 else 0.1
    ink = glyph < 0.62
    mix = (1.0 if ink else 0.0) * detail(blur_m, 0.3) + 0.62 * (1 - detail(blur_m, 0.3))
    return r + (pale - r) * mix, g + (pale - g) * mix, b + (pale - b) * mix, 0.0


@kernel(**INNER)
def _mural(
    u: float, z: float, f: Any, w: int, r: float, g: float, b: float, seed: int
) -> tuple[float, float, float, float]:
    """Some blank walls carry posters."""
    if seed % 3 or z < 0.8 or z > 2.9:
        return r, g, b, 0.0
    spot = int(u / 1.6)
    if (u % 1.6) > 1.3 or hash01(spot, 3, seed) < 0.35:
        return r, g, b, 0.0
    tone = hash01(spot, int(z * 1.4), seed + 1)
    return 0.2 + 0.6 * hash01(spot, 1, seed), 0.15 + 0.6 * tone, 0.15 + 0.5 * hash01(spot, 2, seed), 0.0


@kernel(**INNER)
def _attic(u: float, z: float, f: Any, w: int, r: float, g: float, b: float) -> tuple[float, float, float, float]:
    """Gable field: an oculus or a small window below the ridge."""
    edge = outline(u, f, w)
    if edge - z < 0.25:
        return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2], 0.0
    x = u - 0.5 * f[w, layout.WIDTH]
    y = z - f[w, layout.EAVE] - 0.35 * (f[w, layout.TOP] - f[w, layout.EAVE])
    if x * x + y * y < 0.3:
        return 0.08, 0.10, 0.12, 0.0
    return r, g, b, 0.0


@kernel(**INNER)
def _roof(u: float, z: float, f: Any, w: int, blur_m: float, seed: int) -> Colour:
    if z > f[w, layout.TOP] or (
        abs(u - f[w, layout.CHIMNEY] * f[w, layout.WIDTH]) < 0.4 and z > f[w, layout.TOP] - 0.8
    ):
        return 0.33, 0.17, 0.12
    k = 0.9 + 0.3 * noise(u * 0.6, z * 0.6, seed)
    k *= 1.0 + 0.3 * ((z / 0.35) % 1.0 - 0.5) * detail(blur_m, 0.35)
    bay = f[w, layout.WIDTH] / max(2.0, f[w, layout.COLUMNS] - 1.0)
    x, y = abs(u % bay - 0.5 * bay), z - f[w, layout.EAVE]
    if y > 0.3 and y < 1.7 and x < 0.6 and hash01(int(u / bay), 9, seed) < 0.6:
        if x < 0.4 and y < 1.4:
            return 0.08, 0.10, 0.13
        return f[w, layout.TRIM], f[w, layout.TRIM + 1], f[w, layout.TRIM + 2]
    return f[w, layout.ROOF] * k, f[w, layout.ROOF + 1] * k, f[w, layout.ROOF + 2] * k
