"""One's own data as datasets: a table, a folder of photos, or campus walks, each matched with itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covis.core.errors import InputError, unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.reading.sources import open_images
from covis.reading.table import read_table

SPLIT, KNOWN, NEW = "all", "known_walks", "new_walks"
_EVERY = 4
"""One walk in this many is held out."""


def held_out_walks(images: ImageSet) -> Split:
    """Every fourth group (photo, where there are fewer than four groups) as queries, the others as their map."""
    part = images.group if len(images.group_names) >= _EVERY else np.arange(len(images))
    new = part % _EVERY == _EVERY - 1
    return Split(images.subset(new), images.subset(~new))


def load_table(path: Path, split: str) -> Split:
    """The images of a table."""
    if split != SPLIT:
        raise unknown_name("split of table", split, (SPLIT,))
    images = read_table(path)
    return Split(images, images)


def load_photos(path: Path, split: str) -> Split:
    """The photos of a folder, with what EXIF or a track beside them says; `known_walks` leaves every fourth walk out."""
    if split not in (SPLIT, KNOWN, NEW):
        raise unknown_name("split of photos", split, (SPLIT, KNOWN, NEW))
    images = open_images(path)
    if split == SPLIT:
        return Split(images, images)
    sides = held_out_walks(images)
    return sides if split == NEW else Split(sides.database, sides.database)


DATASETS.register("table")(Dataset(name="table", load=load_table, splits=(SPLIT,), licence="your own"))
DATASETS.register("photos")(Dataset(name="photos", load=load_photos, splits=(SPLIT, KNOWN, NEW), licence="your own"))


# Campus walks: two tables of phone photos, `train.csv` and `west.csv`, each matched with itself.
#
# A group is one person's walk: photos of one walk are never each other's match. `minute_of_day` (−1 = unknown) and
# `region` are columns. Parts of `train` can be held out to choose settings on, so that `west` is left for the end: `north`
# and `east`, with `without_north` and `without_east` to train on. `new_walks` has every fourth walk of `train` as queries
# and the others, `known_walks`, as their map: one's own photos, found again by somebody else.


_NAME = "campus"
_HELD_OUT = {"north": (8, 9, 10), "east": (1, 2, 3)}
"""Part of `train` → its regions."""
_WITHOUT = "without_"
_WALKS = ("known_walks", "new_walks")
_SPLITS = ("train", "west", *_HELD_OUT, *(_WITHOUT + part for part in _HELD_OUT), *_WALKS)
_GAP_M = 30.0
"""Distance that training photos keep from a held-out part: as far as `west` lies from `train`."""


def load(path: Path, split: str) -> Split:
    """The walks of `split`, matched with themselves."""
    if split not in _SPLITS:
        raise unknown_name(f"split of {_NAME}", split, _SPLITS)
    name = split if split in ("train", "west") else "train"
    table = Path(path) / f"{name}.csv"
    if not table.is_file():
        raise InputError(f"{table} does not exist; give the folder that holds {name}.csv and images/")
    images = read_table(table)
    if split in _WALKS:
        new, known = held_out_walks(images)
        return Split(known if split == "known_walks" else new, known)
    if split != name:
        images = _part(images, split)
    return Split(images, images)


def _part(images: ImageSet, split: str) -> ImageSet:
    """A part of `train`, or the photos at least `_GAP_M` from it whose walks do not touch it."""
    held = np.isin(images.columns["region"].astype(np.int64), _HELD_OUT[split.removeprefix(_WITHOUT)])
    if not split.startswith(_WITHOUT) or not held.any():
        return images.subset(held != split.startswith(_WITHOUT))
    from scipy.spatial import KDTree

    distance, _ = KDTree(images.poses.xy[held]).query(images.poses.xy)
    apart = (distance >= _GAP_M) & ~np.isin(images.group, images.group[held])
    return images.subset(apart & ~held)


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=_SPLITS,
        licence="no licence stated: testing only, not to be published",
        published={"train/queries": 2805, "west/queries": 1872},
    )
)
