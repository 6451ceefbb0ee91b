"""A district packed for ray casting, and one traversal made visible: its light, and a picture or depth of an image."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.town import houses, solids, traversals
from covis.town.config import TownConfig
from covis.town.layout import District, district
from covis.town.traversals import Condition, Traversal

if TYPE_CHECKING:
    from covis.town.shading import Light

CELL_M = 6.0
_MARGIN_M = 40.0
_STREET_REACH_M = 14.0

Ints = NDArray[np.int32]


class Scene(NamedTuple):
    """What the kernels read. Items 0 … W−1 are walls, W … W+S−1 solids."""

    walls: Floats
    facades: Floats
    solids: Floats
    streets: Floats
    x0: float
    y0: float
    columns: int
    rows: int
    first: Ints
    """(cells + 1,) where each cell's part of `items` starts."""
    items: Ints
    top: Floats
    """(cells,) height of the tallest thing in each cell."""
    street_first: Ints
    street_items: Ints
    ceiling: float
    """Height of the tallest thing of all."""


def build(district: District, movable: Floats) -> Scene:
    """The scene of a district with the parked cars `movable` (M, solids.FIELDS) of one traversal."""
    things = np.concatenate([district.solids, movable.reshape(-1, solids.FIELDS)])
    ends = district.streets[:, :4].reshape(-1, 2)
    low = ends.min(axis=0) - _MARGIN_M
    columns, rows = (int(n) for n in np.ceil((ends.max(axis=0) + _MARGIN_M - low) / CELL_M))
    boxes, tops = _bounds(district.walls, district.facades, things)
    lists = _cells(boxes, low, columns, rows, district.walls)
    top = np.zeros(columns * rows)
    for cell, members in enumerate(lists):
        top[cell] = tops[members].max(initial=0.0)
    first, items = _pack(lists)
    streets = district.streets
    reach = np.column_stack([streets[:, :2], streets[:, 2:4]]).reshape(-1, 2, 2)
    around = np.column_stack([reach.min(axis=1) - _STREET_REACH_M, reach.max(axis=1) + _STREET_REACH_M])
    street_first, street_items = _pack(_cells(around, low, columns, rows, streets[:, :4], _STREET_REACH_M))
    return Scene(
        district.walls, district.facades, things, streets, float(low[0]), float(low[1]), columns, rows,
        first, items, top, street_first, street_items, float(top.max()),
    )  # fmt: skip


def _bounds(walls: Floats, facades: Floats, things: Floats) -> tuple[Floats, Floats]:
    """(N, 4) x and y limits and (N,) heights of every item."""
    ends = walls.reshape(-1, 2, 2)
    radius = np.hypot(things[:, solids.HALF_X], things[:, solids.HALF_Y])
    at = things[:, solids.X : solids.Y + 1]
    boxes = np.concatenate(
        [
            np.column_stack([ends.min(axis=1), ends.max(axis=1)]),
            np.column_stack([at - radius[:, None], at + radius[:, None]]),
        ]
    )
    round_ = things[:, solids.SHAPE] == solids.ELLIPSOID
    heights = np.where(round_, things[:, solids.Z0] + things[:, solids.Z1], things[:, solids.Z1])
    return boxes, np.concatenate([facades[:, houses.TOP] + houses.CHIMNEY_M, heights])


def _cells(boxes: Floats, low: Floats, columns: int, rows: int, lines: Floats, reach_m: float = 0.0) -> list[list[int]]:
    """Item ids by cell; the first items are `lines`, kept only in cells they come within `reach_m` of."""
    lists: list[list[int]] = [[] for _ in range(columns * rows)]
    limits = np.floor((boxes - np.tile(low, 2)) / CELL_M + np.array([-1e-6, -1e-6, 1e-6, 1e-6])).astype(int)
    limits = np.clip(limits, 0, [columns - 1, rows - 1, columns - 1, rows - 1])
    slack = CELL_M * np.sqrt(0.5) + reach_m + 1e-6
    for item, (i0, j0, i1, j1) in enumerate(limits.tolist()):
        i, j = np.meshgrid(np.arange(i0, i1 + 1), np.arange(j0, j1 + 1))
        near = np.ones(i.shape, bool)
        if item < len(lines):
            dx, dy = lines[item, 2:] - lines[item, :2]
            x, y = low[0] + CELL_M * (i + 0.5) - lines[item, 0], low[1] + CELL_M * (j + 0.5) - lines[item, 1]
            near = np.abs(dx * y - dy * x) <= slack * np.hypot(dx, dy)
        for cell in (j * columns + i)[near].tolist():
            lists[cell].append(item)
    return lists


def _pack(lists: list[list[int]]) -> tuple[Ints, Ints]:
    first = np.concatenate([[0], np.cumsum([len(m) for m in lists])]).astype(np.int32)
    return first, np.array([item for members in lists for item in members], np.int32)


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
        from covis.town import render

        gain, balance, seed = traversals.exposure(self.config, self.drive, i)
        return render.image(
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
        from covis.town import render

        moving = self.movers(i)
        return render.measure(
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
    from covis.town.shading import Light

    azimuth, height = np.radians([c.sun_from_deg, c.sun_height_deg])
    return Light(
        float(np.sin(azimuth) * np.cos(height)), float(np.cos(azimuth) * np.cos(height)), float(np.sin(height)),
        c.sun, c.ambient, c.zenith, c.horizon, c.haze_per_m, c.leaf, c.leaves, c.snow, c.wet, c.clouds, c.lit,
        c.headlight, int(seeds[1] * 97 + 3), gain, balance, c.noise,
    )  # fmt: skip
