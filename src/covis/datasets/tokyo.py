"""Tokyo 24/7 and Tokyo Time Machine: phone queries and cut-outs of street-view panoramas.

Names in the lists say `.jpg` where the map's files are `.png`: whichever is on disk counts. Columns: `panorama` (of the 12
cut-outs of a panorama only the best counts in Tokyo 24/7), `yaw_deg` (the angle within it), `time_stamp` of Time Machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import unknown_name
from covis.core.listings import existing_names
from covis.core.progress import warn
from covis.datasets.dataset import DATASETS, Dataset
from covis.datasets.dbstruct import Struct, find_file, read_struct
from covis.images import ImageSet, Split
from covis.poses import Poses

_FRAME = "EPSG:32654"
_QUERY_FOLDERS = ("247query_subset_v2", "247query_v3", "query", "queries")
"""Where the queries of Tokyo 24/7 lie in its releases."""
_NAME = re.compile(r"^(?P<panorama>.*)_\d+_(?P<yaw>\d{1,3})\.\w+$")


def load_247(path: Path, split: str) -> Split:
    """The 315 phone queries and the street-view map of Tokyo 24/7."""
    if split != "test":
        raise unknown_name("split of tokyo247", split, ("test",))
    struct = read_struct(find_file(path, "tokyo247.mat"))
    queries = ImageSet.of(path, _queries(path, struct), _poses(struct.query_xy))
    alone = sum(_NAME.match(name) is None for name in struct.map_names)
    if alone:
        warn(
            f"{path}: {alone} of {len(struct.map_names)} map names are not PANORAMA_NNN_ANGLE; each counts as its own panorama"
        )
    return Split(queries, _cutouts(path, struct.map_names, struct.map_xy, {}))


def load_tm(path: Path, split: str) -> Split:
    """Queries and map of Time Machine, each with its time stamp."""
    if split not in ("train", "val"):
        raise unknown_name("split of tokyotm", split, ("train", "val"))
    struct = read_struct(find_file(path, f"tokyoTM_{split}.mat"))
    sides = (
        (struct.query_names, struct.query_xy, struct.query_times),
        (struct.map_names, struct.map_xy, struct.map_times),
    )
    queries, database = (
        _cutouts(path, names, xy, {} if times is None else {"time_stamp": times}) for names, xy, times in sides
    )
    return Split(queries, database)


def _cutouts(path: Path, names: list[str], xy: Floats, columns: dict[str, NDArray[Any]]) -> ImageSet:
    """Cut-outs of panoramas; names include their folder where it is one level down (`images/`, `tokyoTM/`)."""
    parts = [_NAME.match(name) for name in names]
    columns = {
        **columns,
        "panorama": np.array([p["panorama"] if p else n for p, n in zip(parts, names, strict=True)]),
        "yaw_deg": np.array([int(p["yaw"]) if p else -1 for p in parts]),
    }
    return ImageSet.of(path, existing_names(path, names, _folders(path)), _poses(xy), columns=columns)


def _queries(path: Path, struct: Struct) -> list[str]:
    return existing_names(path, struct.query_names, (*_QUERY_FOLDERS, *_folders(path)))


def _folders(path: Path) -> tuple[str, ...]:
    return ("images", "tokyo247", "tokyo247/images", "tokyoTM", "tokyoTM/images")


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
        published={"test/queries": 315, "test/database": 75984},
        volume=volume,
    )
)
DATASETS.register("tokyotm")(
    Dataset(
        name="tokyotm",
        load=load_tm,
        splits=("train", "val"),
        licence=_LICENCE,
        published={"train/queries": 7277, "train/database": 49104, "val/queries": 7186, "val/database": 49056},
        volume=volume,
    )
)
