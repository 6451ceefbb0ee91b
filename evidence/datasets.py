"""Datasets of photographs that are not public: campus walks, street views of Cambridge, two days on a race track.

Campus: two tables of phone photos, `train.csv` and `west.csv`, each matched with itself. A group is one person's walk:
photos of one walk are never each other's match. `minute_of_day` (−1 = unknown) and `region` are columns. Parts of `train`
can be held out to choose settings on, so that `west` is left for the end: `north` and `east`, with `without_north` and
`without_east` to train on. `new_walks` has every fourth walk of `train` as queries and the others, `known_walks`, as
their map.

Cambridge and race track: a table `train.csv` and a table `val.csv` of another part. Cambridge's groups are panoramas, each
with four views of 90° at exact headings: one panorama's views never match each other. The race track's groups are laps,
and `day` is a column: day 2 is matched against day 1, the map. A part of `train` is held out to choose settings on
(`held_out`, and `without_held_out` to train on), so that `val` is left for the end.

`photo_sets` is the training photos of all three as one set, for a model that should also work elsewhere: the folders
`campus`, `cambridge` and `racetrack` side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from covis.core.errors import InputError, unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.datasets.photos import held_out_walks
from covis.images import ImageSet, Split, concatenate
from covis.poses import Poses
from covis.reading.table import read_table

NO_LICENCE = "no licence stated: testing only, not to be published"
CAMPUS_HELD_OUT = {"north": (8, 9, 10), "east": (1, 2, 3)}
"""Part of the campus' `train` → its regions."""
_WITHOUT = "without_"
_WALKS = ("known_walks", "new_walks")
_CAMPUS_SPLITS = ("train", "west", *CAMPUS_HELD_OUT, *(_WITHOUT + part for part in CAMPUS_HELD_OUT), *_WALKS)
_CAMPUS_GAP_M = 30.0
"""Distance that training photos keep from a held-out part: as far as `west` lies from `train`."""
HELD_OUT, WITHOUT = "held_out", "without_held_out"
_SURVEY_SPLITS = ("train", "val", HELD_OUT, WITHOUT)
_SURVEY_GAP_M = 60.0
"""Distance that training photos keep from the held-out part: about as far as `val` lies from `train`."""
DAY = "day"


def load_campus(path: Path, split: str) -> Split:
    """The walks of `split`, matched with themselves."""
    if split not in _CAMPUS_SPLITS:
        raise unknown_name("split of campus", split, _CAMPUS_SPLITS)
    images = _read(path, "west" if split == "west" else "train")
    if split in _WALKS:
        new, known = held_out_walks(images)
        return Split(known if split == "known_walks" else new, known)
    if split not in ("train", "west"):
        images = _campus_part(images, split)
    return Split(images, images)


def _read(path: Path, name: str) -> ImageSet:
    table = Path(path) / f"{name}.csv"
    if not table.is_file():
        raise InputError(f"{table} does not exist; give the folder that holds {name}.csv and images/")
    return read_table(table)


def _campus_part(images: ImageSet, split: str) -> ImageSet:
    """A part of `train`, or the photos at least `_CAMPUS_GAP_M` from it whose walks do not touch it."""
    held = np.isin(images.columns["region"].astype(np.int64), CAMPUS_HELD_OUT[split.removeprefix(_WITHOUT)])
    if not split.startswith(_WITHOUT) or not held.any():
        return images.subset(held != split.startswith(_WITHOUT))
    distance, _ = KDTree(images.poses.xy[held]).query(images.poses.xy)
    far = (distance >= _CAMPUS_GAP_M) & ~np.isin(images.group, images.group[held])
    return images.subset(far & ~held)


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
        if split not in _SURVEY_SPLITS:
            raise unknown_name(f"split of {self.name}", split, _SURVEY_SPLITS)
        name = "val" if split == "val" else "train"
        images = _read(path, name)
        if split in (HELD_OUT, WITHOUT):
            images = images.subset(self._chosen(images.poses, split))
        return self._days(images) if self.by_day else Split(images, images)

    def _chosen(self, poses: Poses, split: str) -> NDArray[np.bool_]:
        """(N,) the held-out part, or what lies at least `_SURVEY_GAP_M` from it."""
        held = np.asarray(poses.xy[:, self.axis] > self.beyond_m)
        if split == HELD_OUT or not held.any():
            return held if split == HELD_OUT else ~held
        distance, _ = KDTree(poses.xy[held]).query(poses.xy)
        return np.asarray(distance >= _SURVEY_GAP_M)

    def _days(self, images: ImageSet) -> Split:
        if DAY not in images.columns:
            raise InputError(
                f"{images.root} has a table without the column {DAY!r}; add it: 1 for photos of the map, 2 for queries"
            )
        day = images.columns[DAY].astype(np.int64)
        return Split(images.subset(day == 2), images.subset(day == 1))


def across_days(images: Split) -> ImageSet:
    """Both days as one set whose groups are days, so that pairs of other groups are pairs of two days."""
    both = concatenate([images.queries, images.database])
    day = np.repeat([1, 0], [len(images.queries), len(images.database)]).astype(np.int32)
    return replace(both, group=day, group_names=("day1", "day2"))


CAMBRIDGE = Survey("cambridge", axis=0, beyond_m=50.0)
RACETRACK = Survey("racetrack", axis=1, beyond_m=-150.0, by_day=True)

DATASETS.register("campus")(
    Dataset(
        name="campus",
        load=load_campus,
        splits=_CAMPUS_SPLITS,
        licence=NO_LICENCE,
        published={"train/queries": 2805, "west/queries": 1872},
    )
)
DATASETS.register("cambridge")(
    Dataset(
        name="cambridge",
        load=CAMBRIDGE.load,
        splits=_SURVEY_SPLITS,
        licence=NO_LICENCE,
        published={"train/queries": 2188, "val/queries": 644},
        groups_apart=False,
    )
)
DATASETS.register("racetrack")(
    Dataset(
        name="racetrack",
        load=RACETRACK.load,
        splits=_SURVEY_SPLITS,
        licence=NO_LICENCE,
        published={"train/queries": 961, "train/database": 1815, "val/queries": 695, "val/database": 1123},
        groups_apart=False,
    )
)


JOINED = "photo_sets"
PARTS = ("campus", "cambridge", "racetrack")
_SPACING_M = 10_000.0
"""The parts are moved this far from each other, because their frames are unrelated."""


def load_joined(path: Path, split: str) -> Split:
    """The training photos of all parts as one set; groups carry the name of their part."""
    if split != "train":
        raise unknown_name(f"split of {JOINED}", split, ("train",))
    moved = [_moved(Path(path), part, at * _SPACING_M) for at, part in enumerate(PARTS)]
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


DATASETS.register("photo_sets")(
    Dataset(name=JOINED, load=load_joined, splits=("train",), licence=NO_LICENCE, groups_apart=False)
)
