"""Your own data as datasets: a table, or a folder of photos, each matched with itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covis.core.errors import InputError, unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.reading.sources import open_images
from covis.reading.table import read_table

SPLIT, KNOWN, NEW = "all", "known_walks", "new_walks"
_COLUMN = "split"
"""Column of a table that says which rows are trained on (`train`) and which validate (`val`)."""
_EVERY = 4
"""One walk in this many is held out."""


def held_out_walks(images: ImageSet) -> Split:
    """Every fourth group (photo, where there are fewer than four groups) as queries, the others as their map."""
    part = images.group if len(images.group_names) >= _EVERY else np.arange(len(images))
    new = part % _EVERY == _EVERY - 1
    return Split(images.subset(new), images.subset(~new))


def load_table(path: Path, split: str) -> Split:
    """The images of a table: `all`, or those whose column `split` says so."""
    images = read_table(path)
    if split != SPLIT:
        if _COLUMN not in images.columns:
            raise InputError(f"{path} has no column {_COLUMN!r}, so split={split} is not known; set split={SPLIT}")
        names = np.asarray(images.columns[_COLUMN]).astype(str)
        if split not in names:
            raise unknown_name("split of table", split, (SPLIT, *np.unique(names).tolist()))
        images = images.subset(names == split)
    return Split(images, images)


def load_photos(path: Path, split: str) -> Split:
    """The photos of a folder, with what EXIF or a track beside them says; `known_walks` leaves every fourth walk out."""
    images = open_images(path)
    if split == SPLIT:
        return Split(images, images)
    sides = held_out_walks(images)
    return sides if split == NEW else Split(sides.database, sides.database)


DATASETS.register("table")(Dataset("table", load_table, (SPLIT,), "your own", more_splits=True))
DATASETS.register("photos")(Dataset("photos", load_photos, (SPLIT, KNOWN, NEW), "your own"))
