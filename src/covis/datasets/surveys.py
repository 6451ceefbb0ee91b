"""Street views of Cambridge and two days on a race track: a table `train.csv` and a table `val.csv` of another part.

Cambridge's groups are panoramas, each with four views of 90° at exact headings: one panorama's views never match each
other. The race track's groups are laps, and `day` is a column: day 2 is matched against day 1, the map. A part of
`train` is held out to choose settings on (`held_out`, and `without_held_out` to train on), so that `val` is left for
the end.

`photo_sets` is the training photos of the campus, of Cambridge and of the track as one set, for a model that should
also work elsewhere: the folders `campus`, `cambridge` and `racetrack` side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError, unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split, concatenate
from covis.poses import Poses
from covis.reading.table import read_table

HELD_OUT, WITHOUT = "held_out", "without_held_out"
_SPLITS = ("train", "val", HELD_OUT, WITHOUT)
_GAP_M = 60.0
"""Distance that training photos keep from the held-out part: about as far as `val` lies from `train`."""
DAY = "day"
NO_LICENCE = "no licence stated: testing only, not to be published"


@dataclass(frozen=True)
class Survey:
    """Two tables with poses, and which part of the first is held out."""

    name: str
    axis: int
    """0: the held-out part lies beyond `beyond_m` to the east; 1: to the north."""
    beyond_m: float
    by_day: bool = False
    """Whether the second day is the queries and the first the map; otherwise a set is matched with itself."""

    def load(self, path: Path, split: str) -> Split:
        """The images of `split`."""
        if split not in _SPLITS:
            raise unknown_name(f"split of {self.name}", split, _SPLITS)
        name = "val" if split == "val" else "train"
        table = Path(path) / f"{name}.csv"
        if not table.is_file():
            raise InputError(f"{table} does not exist; give the folder that holds {name}.csv and images/")
        images = read_table(table)
        if split in (HELD_OUT, WITHOUT):
            images = images.subset(self._chosen(images.poses, split))
        return self._days(images, table) if self.by_day else Split(images, images)

    def _chosen(self, poses: Poses, split: str) -> NDArray[np.bool_]:
        """(N,) the held-out part, or what lies at least `_GAP_M` from it."""
        held = np.asarray(poses.xy[:, self.axis] > self.beyond_m)
        if split == HELD_OUT or not held.any():
            return held if split == HELD_OUT else ~held
        from scipy.spatial import KDTree

        distance, _ = KDTree(poses.xy[held]).query(poses.xy)
        return np.asarray(distance >= _GAP_M)

    def _days(self, images: ImageSet, table: Path) -> Split:
        if DAY not in images.columns:
            raise InputError(f"{table} has no column {DAY!r}; add it: 1 for photos of the map, 2 for queries")
        day = images.columns[DAY].astype(np.int64)
        return Split(images.subset(day == 2), images.subset(day == 1))


def across_days(images: Split) -> ImageSet:
    """Both days as one set whose groups are days, so that pairs of other groups are pairs of two days."""
    both = concatenate([images.queries, images.database])
    day = np.repeat([1, 0], [len(images.queries), len(images.database)]).astype(np.int32)
    return replace(both, group=day, group_names=("day1", "day2"))


CAMBRIDGE = Survey("cambridge", axis=0, beyond_m=50.0)
RACETRACK = Survey("racetrack", axis=1, beyond_m=-150.0, by_day=True)
_COUNTS: Mapping[Survey, dict[str, int]] = {
    CAMBRIDGE: {"train/queries": 2188, "val/queries": 644},
    RACETRACK: {"train/queries": 961, "train/database": 1815, "val/queries": 695, "val/database": 1123},
}
for _survey, _counts in _COUNTS.items():
    DATASETS.register(_survey.name)(
        Dataset(
            name=_survey.name,
            load=_survey.load,
            splits=_SPLITS,
            licence=NO_LICENCE,
            published=_counts,
            groups_apart=False,
        )
    )


JOINED = "photo_sets"
PARTS = ("campus", "cambridge", "racetrack")
_APART_M = 10_000.0
"""The parts are moved this far from each other, because their frames are unrelated."""


def load_joined(path: Path, split: str) -> Split:
    """The training photos of all parts as one set; groups carry the name of their part."""
    if split != "train":
        raise unknown_name(f"split of {JOINED}", split, ("train",))
    moved = [_moved(Path(path), part, at * _APART_M) for at, part in enumerate(PARTS)]
    images = concatenate(moved)
    return Split(images, images)


def _moved(root: Path, part: str, east_m: float) -> ImageSet:
    folder = root / part
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; give the folder that holds {', '.join(PARTS)}")
    split = DATASETS[part].load(folder, "train")
    images = split.queries if split.queries is split.database else across_days(split)
    poses = replace(images.poses, xy=images.poses.xy + np.array([east_m, 0.0]))
    return ImageSet(
        root,
        np.char.add(f"{part}/".encode(), images.names),
        poses,
        images.group,
        tuple(f"{part}/{name}" for name in images.group_names),
    )


DATASETS.register(JOINED)(
    Dataset(name=JOINED, load=load_joined, splits=("train",), licence=NO_LICENCE, groups_apart=False)
)
