"""Tokyo 24/7 and Tokyo Time Machine: phone queries and cut-outs of street-view panoramas.

Names in the lists say `.jpg` where the map's files are `.png`: whichever is on disk counts. Columns: `panorama` (of the 12
cut-outs of a panorama only the best counts in Tokyo 24/7), `yaw_deg` (the angle within it), `time_stamp` of Time Machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.listings import existing_names
from covis.core.progress import warn
from covis.datasets.dataset import DATASETS, Dataset
from covis.datasets.dbstruct import find_file, read_struct
from covis.images import ImageSet, Split
from covis.poses import Poses

_FRAME = "EPSG:32654"
_QUERY_FOLDERS = ("247query_subset_v2", "247query_v3", "query", "queries")
"""Where the queries of Tokyo 24/7 lie in its releases."""
_FOLDERS = ("images", "tokyo247", "tokyo247/images", "tokyoTM", "tokyoTM/images")
_NAME = re.compile(r"^(?P<panorama>.*)_\d+_(?P<yaw>\d{1,3})\.\w+$")


def load_247(path: Path, split: str) -> Split:
    """The 315 phone queries and the street-view map of Tokyo 24/7."""
    struct = read_struct(find_file(path, "tokyo247.mat"))
    names = existing_names(path, struct.query_names, (*_QUERY_FOLDERS, *_FOLDERS))
    alone = sum(_NAME.match(name) is None for name in struct.map_names)
    if alone:
        unlike = f"{alone} of {len(struct.map_names)} map names are not PANORAMA_NNN_ANGLE"
        warn(f"{path}: {unlike}; each counts as its own panorama")
    return Split(
        ImageSet.of(path, names, _poses(struct.query_xy)), _cutouts(path, struct.map_names, struct.map_xy, None)
    )


def load_tm(path: Path, split: str) -> Split:
    """Queries and map of Time Machine, each with its time stamp."""
    struct = read_struct(find_file(path, f"tokyoTM_{split}.mat"))
    return Split(
        _cutouts(path, struct.query_names, struct.query_xy, struct.query_times),
        _cutouts(path, struct.map_names, struct.map_xy, struct.map_times),
    )


def _cutouts(path: Path, names: list[str], xy: Floats, times: NDArray[np.int64] | None) -> ImageSet:
    """Cut-outs of panoramas; names include their folder where it is one level down (`images/`, `tokyoTM/`)."""
    parts = [_NAME.match(name) for name in names]
    columns = {
        **({} if times is None else {"time_stamp": times}),
        "panorama": np.array([p["panorama"] if p else n for p, n in zip(parts, names, strict=True)]),
        "yaw_deg": np.array([int(p["yaw"]) if p else -1 for p in parts]),
    }
    return ImageSet.of(path, existing_names(path, names, _FOLDERS), _poses(xy), columns=columns)


def _poses(xy: Floats) -> Poses:
    return Poses(xy, np.full(len(xy), np.nan), frame=_FRAME)


def volume(name: str) -> str:
    """The archive that an image comes from."""
    folder = next((part for part in name.split("/") if part.isdigit()), name.split("/")[0])
    return f"{folder}.tar"


_LICENCE = "research use, on request from its authors (Torii et al., Arandjelović et al.)"
DATASETS.register("tokyo247")(
    Dataset(
        name="tokyo247",
        load=load_247,
        splits=("test",),
        licence=_LICENCE,
        published={"test": (315, 75984)},
        volume=volume,
    )
)
DATASETS.register("tokyotm")(
    Dataset(
        name="tokyotm",
        load=load_tm,
        splits=("train", "val"),
        licence=_LICENCE,
        published={"train": (7277, 49104), "val": (7186, 49056)},
        volume=volume,
    )
)
