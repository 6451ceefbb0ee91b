"""One traversal made visible: its light, and a picture or depth of each image."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covis.town import traversals
from covis.town.config import TownConfig
from covis.town.layout import District, TownScene, build_scene, district
from covis.town.render import Shot, image
from covis.town.traversals import Traversal


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

    def shot(self, i: int, size: tuple[int, int] | None = None) -> Shot:
        """The camera of image `i` at `size` = (width, height)."""
        drive = self.drive
        return Shot(
            self.scene,
            traversals.in_the_way(self.config, drive, i),
            drive.condition.light.leaves,
            drive.position[i],
            drive.rotation[i],
            intrinsics(self.config, size),
        )

    def image(self, i: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """(height, width, 3) photograph `i`; `size` = (width, height)."""
        light, seed = traversals.light_of(self.config, self.drive, i)
        return image(self.shot(i, size), light, samples=self.config.samples, seed=seed)


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
