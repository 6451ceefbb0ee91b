"""Which surface a ray meets first: walls, boxes and ellipsoids, exactly, through a grid of cells."""

from __future__ import annotations

import math
from typing import Any

from covis.core.compiling import kernel
from covis.town import layout
from covis.town.config import ENTRY, INNER
from covis.town.layout import CELL_M, TownScene
from covis.town.surfaces import hash01, outline

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
