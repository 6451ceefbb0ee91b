"""Pittsburgh 30k and 250k: cut-outs of street-view panoramas.

Columns: `panorama` (what a cut-out was made from), `pitch` and `yaw_deg` (its angles within the panorama).
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np

from covis.core.arrays import Floats
from covis.datasets.dataset import DATASETS, Dataset
from covis.datasets.dbstruct import find_file, read_struct
from covis.images import ImageSet, Split
from covis.poses import Poses

_SPLITS = ("train", "val", "test")
_QUERIES = "queries_real"
_FRAME = "EPSG:32617"
YAW_STEP_DEG = 30
_NAME = re.compile(r"(?P<panorama>\d+)_pitch(?P<pitch>\d+)_yaw(?P<yaw>\d+)\.")
_PUBLISHED: dict[str, dict[str, tuple[int, int]]] = {
    "pitts30k": {"train": (7416, 10000), "val": (7608, 10000), "test": (6816, 10000)},
    "pitts250k": {"train": (7824, 91464), "val": (7608, 78648), "test": (8280, 83952)},
}
"""(queries, map) of each split."""


def load(path: Path, split: str, name: str) -> Split:
    """Queries and map of `split`."""
    struct = read_struct(find_file(path, f"{name}_{split}.mat"))
    queries = [f"{_QUERIES}/{n}" for n in struct.query_names]
    return Split(_images(path, queries, struct.query_xy), _images(path, struct.map_names, struct.map_xy))


def _images(path: Path, names: list[str], xy: Floats) -> ImageSet:
    parts = [_NAME.search(name) for name in names]
    columns = {
        "panorama": np.array([p["panorama"] if p else "" for p in parts]),
        "pitch": np.array([int(p["pitch"]) if p else 0 for p in parts]),
        "yaw_deg": np.array([(int(p["yaw"]) - 1) * YAW_STEP_DEG if p else -1 for p in parts]),
    }
    return ImageSet.of(path, names, Poses(xy, np.full(len(xy), np.nan), frame=_FRAME), columns=columns)


def _pittsburgh(name: str) -> Dataset:
    return Dataset(
        name=name,
        load=partial(load, name=name),
        splits=_SPLITS,
        licence="research use, on request from its authors (Torii et al.)",
        published=_PUBLISHED[name],
        volume=lambda name: f"{name.split('/')[0]}.tar",
    )


DATASETS.register("pitts30k")(_pittsburgh("pitts30k"))
DATASETS.register("pitts250k")(_pittsburgh("pitts250k"))
