"""Batches of images with the class of their place: cells of ground and heading, as CosPlace and EigenPlaces make them.

Neighbouring cells overlap, so no step may train the model to separate two of them: classes are divided into groups
whose members are far from each other, and each epoch takes one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.core.settings import above, at_least
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.sampling.batches import BATCHES, Batches, check_index
from covis.sampling.kernels import epoch_key, permute

if TYPE_CHECKING:
    from torch import Tensor

FacingAxis = Literal["north", "focal"]
_PURPOSE = 4


@dataclass(frozen=True, eq=False)
class ClassBatch:
    """Images of one training step, each with its class."""

    database: Ids
    """(B,) columns of the graph."""
    target: Ids
    """(B,) the index of each image's class in `classes`."""
    classes: Ids
    """(K,) the classes of the group, by their number in the whole set."""
    redrawn: int = 0

    def __len__(self) -> int:
        return len(self.database)

    @property
    def psi(self) -> NDArray[np.float32]:
        """1 for each image: classes have no grades."""
        return np.ones(len(self.database), np.float32)

    @property
    def total_weight(self) -> float:
        """What the sum of the batch's losses is divided by."""
        return float(len(self))

    def images(self) -> tuple[Ids, Ids]:
        """No queries and (B,) map images."""
        return np.zeros(0, np.int64), self.database

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of a class loss, which knows the descriptors of its classes; zb (B, dim)."""
        losses: Tensor = loss(zb, self.classes, self.target)
        return losses.sum()

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> ClassBatch:
        """The same classes: an image that replaces a bad file is treated as one of its class."""
        return replace(self, database=database)


@dataclass(frozen=True, eq=False)
class ClassSampler:
    """Images of one group of classes per epoch, in an order that follows from (seed, epoch)."""

    images: ImageSet
    kinds: Ids
    """(N,) class of each image, −1 for none."""
    group: Ids
    """(classes,) the group of each class, numbered from 0."""
    batch_size: int = 32
    seed: int = 0
    members: tuple[Ids, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = np.where(self.kinds >= 0, self.group[self.kinds], -1)
        members = tuple(np.flatnonzero(own == g) for g in range(int(self.group.max(initial=-1)) + 1))
        object.__setattr__(self, "members", members)

    @property
    def classes(self) -> int:
        """How many classes there are in all groups."""
        return len(self.group)

    def __len__(self) -> int:
        """Batches an epoch: the mean over groups, so that all epochs have the same length."""
        return max(1, -(-sum(map(len, self.members)) // (len(self.members) * self.batch_size)))

    def batch(self, epoch: int, index: int) -> ClassBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        at = epoch % len(self.members)
        members, key = self.members[at], epoch_key(self.seed, epoch, _PURPOSE)
        positions = (index * self.batch_size + np.arange(self.batch_size)) % len(members)
        ids = members[[int(permute(key, k, len(members))) for k in positions.tolist()]]
        classes = np.flatnonzero(self.group == at)
        return ClassBatch(ids, np.searchsorted(classes, self.kinds[ids]), classes)


def place_classes(
    xy: Floats, heading: Floats, cell_m: float, angle_deg: float, *, axis: FacingAxis = "north", focal_m: float = 10.0
) -> Ids:
    """(N, 3) cell east, cell north and sector of heading of each image; −1 in the last for an image of no class.

    With axis `focal`, four points lie `focal_m` from the cell's mean position, along and across its main direction: the sector is
    the point that the image faces best, if within half of `angle_deg`.
    """
    cell = np.floor(xy / cell_m).astype(np.int64)
    if angle_deg == 360:
        return np.column_stack([cell, np.zeros(len(cell), np.int64)])
    if axis == "north":
        sector = np.floor(np.mod(heading, 360.0) / angle_deg)
        return np.column_stack([cell, np.where(np.isnan(sector), -1, sector).astype(np.int64)])
    sectors = np.full(len(cell), -1, np.int64)
    _, inverse = np.unique(cell, axis=0, return_inverse=True)
    for k in range(int(inverse.max(initial=-1)) + 1):
        own = np.flatnonzero(inverse.ravel() == k)
        street = _main_direction(xy[own])
        sectors[own] = _faced(xy[own], heading[own], street, focal_m, angle_deg)
    return np.column_stack([cell, sectors])


def _faced(xy: Floats, heading: Floats, street_deg: float, focal_m: float, angle_deg: float) -> Ids:
    """(N,) which focal point each image faces: 0 ahead along the street, 1 right of it, 2 back, 3 left; −1 for none."""
    directions = np.radians(street_deg + 90.0 * np.arange(4))
    points = xy.mean(axis=0) + focal_m * np.column_stack([np.sin(directions), np.cos(directions)])
    east, north = np.moveaxis(points[None] - xy[:, None], -1, 0)
    off = np.abs((np.degrees(np.arctan2(east, north)) - heading[:, None] + 180.0) % 360.0 - 180.0)
    off = np.where(np.isnan(off), np.inf, off)
    return np.where(off.min(axis=1) <= angle_deg / 2, off.argmin(axis=1), -1)


def _main_direction(xy: Floats) -> float:
    """Degrees clockwise from north, in [0, 180), along which positions spread most; 0 where they do not."""
    centred = xy - xy.mean(axis=0)
    if len(xy) < 2 or not np.abs(centred).max() > 1e-6:
        return 0.0
    east, north = np.linalg.svd(centred, full_matrices=False)[2][0]
    return float(np.degrees(np.arctan2(east, north)) % 180.0)


@BATCHES.register("classes")
@dataclass(frozen=True)
class Classes(Batches):
    """Images of the map with the class of their cell and heading; one group of distant classes an epoch."""

    losses: ClassVar[tuple[str, ...]] = ("classes",)
    size: int = 32
    """Images a batch."""
    cell_m: float = 10.0
    """Side of a cell of ground."""
    angle_deg: float = 30.0
    """Width of a sector of headings; a full turn must be a whole number of them. 360: classes are cells only."""
    axis: FacingAxis = "north"
    """Headings from north (CosPlace), or by the `focal` point of four around the cell that an image faces (EigenPlaces)."""
    focal_m: float = 10.0
    """How far a focal point lies from the mean position of its cell."""
    apart: int = 5
    """Cells of one group are this many cells apart."""
    turns_apart: int = 2
    """Sectors of one group are this many sectors apart."""
    least: int = 10
    """Cells with fewer images are not classes."""

    def __post_init__(self) -> None:
        above(0, cell_m=self.cell_m, angle_deg=self.angle_deg, focal_m=self.focal_m)
        at_least(1, size=self.size, apart=self.apart, turns_apart=self.turns_apart, least=self.least)
        if 360 % self.angle_deg:
            raise InputError(f"angle_deg is {self.angle_deg}; a full turn must be a whole number of it, such as 30")

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> ClassSampler:
        """Draws images of the map; images without a place or heading, and of small cells, have no class."""
        images = split.database
        known = images.poses.known & ((self.angle_deg == 360) | ~np.isnan(images.poses.heading))
        keys = np.full((len(images), 4), -1, np.int64)
        keys[:, 0] = images.group
        keys[known, 1:] = place_classes(
            images.poses.xy[known], images.poses.heading[known], self.cell_m, self.angle_deg,
            axis=self.axis, focal_m=self.focal_m,
        )  # fmt: skip
        known &= keys[:, 3] >= 0
        cells, inverse, count = np.unique(keys[known], axis=0, return_inverse=True, return_counts=True)
        large = count >= self.least
        if not large.any():
            raise InputError(self._too_small(len(images), int(known.sum()), int(count.max(initial=0))))
        number = np.where(large, np.cumsum(large) - 1, -1)
        kinds = np.full(len(images), -1, np.int64)
        kinds[known] = number[inverse.ravel()]
        modulus = np.array([self.apart, self.apart, self.turns_apart])
        _, group = np.unique(np.mod(cells[large][:, 1:], modulus), axis=0, return_inverse=True)
        return ClassSampler(images, kinds, group.ravel().astype(np.int64), self.size, seed)

    def _too_small(self, images: int, placed: int, most: int) -> str:
        """Why there is no class: no image has a cell, or the fullest cell holds `most` images."""
        if not placed and self.angle_deg != 360:
            return f"none of {images} map images has a place and a heading for a class; set batches.angle_deg=360 for cells alone"
        return f"no place has {self.least} map images, which a class needs (at most {most}); set batches.least={max(1, most)} or less"
