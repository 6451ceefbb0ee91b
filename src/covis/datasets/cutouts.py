"""Cut-outs of street-view panoramas, listed by NetVLAD's `dbStruct` files: Pittsburgh, Tokyo 24/7 and Tokyo Time Machine.

Files: `datasets/pitts{30k,250k}_{train,val,test}.mat`, `tokyo247.mat`, `tokyoTM_{train,val}.mat`, images beside them.
Names in Tokyo's files say `.jpg` where the map's files are `.png`: whichever is on disk counts. Columns: `panorama` (what
a cut-out was made from; of the 12 cut-outs of a panorama only the best counts in Tokyo 24/7), `yaw_deg` (its angle within
the panorama), `pitch` of Pittsburgh, `time_stamp` of Time Machine. How a panorama is turned against north is not known, so
headings are unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError, unknown_name
from covis.core.foreign import check_regular, foreign
from covis.core.listings import existing_names
from covis.core.machine import run_isolated
from covis.core.progress import warn
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.poses import Poses


@dataclass(frozen=True)
class Struct:
    """What a `dbStruct` says of queries and map."""

    path: Path
    map_names: list[str]
    map_xy: Floats
    """(N, 2) metres."""
    query_names: list[str]
    query_xy: Floats
    radius_m: float
    map_times: NDArray[np.int64] | None
    query_times: NDArray[np.int64] | None


@foreign("a list of a dataset")
def read_struct(path: Path) -> Struct:
    """Reads `path`, checking that names and positions belong together."""
    check_regular(path)
    fields = run_isolated(_fields, path)
    if fields is None:
        raise InputError(f"{path} is not a MATLAB file with a dbStruct (it breaks the reader); get it again")
    map_names, query_names = _strings(fields, "dbImageFns", path), _strings(fields, "qImageFns", path)
    return Struct(
        path,
        map_names,
        _positions(fields, "utmDb", len(map_names), path),
        query_names,
        _positions(fields, "utmQ", len(query_names), path),
        float(np.asarray(_field(fields, "posDistThr", path)).ravel()[0]),
        _times(fields, "dbTimeStamp", len(map_names), path),
        _times(fields, "qTimeStamp", len(query_names), path),
    )


def find_file(path: Path, name: str) -> Path:
    """The file `name` at `path`, in its `datasets/` folder or directly there."""
    for candidate in (path / "datasets" / name, path / name):
        if candidate.is_file():
            return candidate
    raise InputError(f"{path / 'datasets' / name} does not exist; unpack the NetVLAD dataset files there")


def _fields(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        struct = loadmat(path, squeeze_me=True, struct_as_record=True)["dbStruct"]
        return {name: struct[name].item() for name in struct.dtype.names}
    except NotImplementedError:
        raise InputError(f"{path} is a MATLAB 7.3 file; use the original file (version 7 or older)") from None
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise InputError(f"{path} is not a MATLAB file with a dbStruct ({error})") from None


def _field(fields: dict[str, Any], name: str, path: Path) -> Any:
    if name not in fields:
        raise InputError(f"{path} has no field {name}; it has {', '.join(sorted(fields))}")
    return fields[name]


def _strings(fields: dict[str, Any], name: str, path: Path) -> list[str]:
    return [str(np.asarray(cell).item()) for cell in np.atleast_1d(_field(fields, name, path))]


def _positions(fields: dict[str, Any], name: str, n: int, path: Path) -> Floats:
    values = np.asarray(_field(fields, name, path), np.float64)
    if values.ndim == 1 and n == 1:
        values = values[:, None]
    if values.shape != (2, n):
        raise InputError(f"{path}: {name} has shape {values.shape}; expected (2, {n})")
    return np.ascontiguousarray(values.T)


def _times(fields: dict[str, Any], name: str, n: int, path: Path) -> NDArray[np.int64] | None:
    if name not in fields:
        return None
    values = np.asarray(fields[name]).ravel()
    if len(values) != n:
        raise InputError(f"{path}: {name} has {len(values)} entries; expected {n}")
    return values.astype(np.int64)


# Pittsburgh

_PITTS_SPLITS = ("train", "val", "test")
_PITTS_QUERIES = "queries_real"
_PITTS_FRAME = "EPSG:32617"
YAW_STEP_DEG = 30
_PITTS_NAME = re.compile(r"(?P<panorama>\d+)_pitch(?P<pitch>\d+)_yaw(?P<yaw>\d+)\.")
_PITTS_PUBLISHED = {
    "pitts30k": {"train": (7416, 10000), "val": (7608, 10000), "test": (6816, 10000)},
    "pitts250k": {"train": (7824, 91464), "val": (7608, 78648), "test": (8280, 83952)},
}
"""(queries, map) of each split."""


def load_pitts(path: Path, split: str, name: str) -> Split:
    """Queries and map of `split`."""
    if split not in _PITTS_SPLITS:
        raise unknown_name(f"split of {name}", split, _PITTS_SPLITS)
    struct = read_struct(find_file(path, f"{name}_{split}.mat"))
    queries = [f"{_PITTS_QUERIES}/{n}" for n in struct.query_names]
    return Split(_pitts_images(path, queries, struct.query_xy), _pitts_images(path, struct.map_names, struct.map_xy))


def _pitts_images(path: Path, names: list[str], xy: Floats) -> ImageSet:
    parts = [_PITTS_NAME.search(name) for name in names]
    columns = {
        "panorama": np.array([p["panorama"] if p else "" for p in parts]),
        "pitch": np.array([int(p["pitch"]) if p else 0 for p in parts]),
        "yaw_deg": np.array([(int(p["yaw"]) - 1) * YAW_STEP_DEG if p else -1 for p in parts]),
    }
    return ImageSet.of(path, names, Poses(xy, np.full(len(xy), np.nan), frame=_PITTS_FRAME), columns=columns)


def pitts_volume(name: str) -> str:
    """The archive that an image comes from."""
    return f"{name.split('/')[0]}.tar"


for _name, _counts in _PITTS_PUBLISHED.items():
    DATASETS.register(_name)(
        Dataset(
            name=_name,
            load=partial(load_pitts, name=_name),
            splits=_PITTS_SPLITS,
            licence="research use, on request from its authors (Torii et al.)",
            published={
                f"{split}/{side}": n
                for split, both in _counts.items()
                for side, n in zip(("queries", "database"), both, strict=True)
            },
            volume=pitts_volume,
        )
    )


# Tokyo

_TOKYO_FRAME = "EPSG:32654"
_TOKYO_QUERY_FOLDERS = ("247query_subset_v2", "247query_v3", "query", "queries")
"""Where the queries of Tokyo 24/7 lie in its releases."""
_TOKYO_NAME = re.compile(r"^(?P<panorama>.*)_\d+_(?P<yaw>\d{1,3})\.\w+$")


def load_247(path: Path, split: str) -> Split:
    """The 315 phone queries and the street-view map of Tokyo 24/7."""
    if split != "test":
        raise unknown_name("split of tokyo247", split, ("test",))
    struct = read_struct(find_file(path, "tokyo247.mat"))
    queries = ImageSet.of(path, _tokyo_queries(path, struct), _tokyo_poses(struct.query_xy))
    alone = sum(_TOKYO_NAME.match(name) is None for name in struct.map_names)
    if alone:
        warn(
            f"{path}: {alone} of {len(struct.map_names)} map names are not PANORAMA_NNN_ANGLE; each counts as its own panorama"
        )
    return Split(queries, _tokyo_cutouts(path, struct.map_names, struct.map_xy, {}))


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
        _tokyo_cutouts(path, names, xy, {} if times is None else {"time_stamp": times}) for names, xy, times in sides
    )
    return Split(queries, database)


def _tokyo_cutouts(path: Path, names: list[str], xy: Floats, columns: dict[str, NDArray[Any]]) -> ImageSet:
    """Cut-outs of panoramas; names include their folder where it is one level down (`images/`, `tokyoTM/`)."""
    parts = [_TOKYO_NAME.match(name) for name in names]
    columns = {
        **columns,
        "panorama": np.array([p["panorama"] if p else n for p, n in zip(parts, names, strict=True)]),
        "yaw_deg": np.array([int(p["yaw"]) if p else -1 for p in parts]),
    }
    return ImageSet.of(path, existing_names(path, names, _tokyo_folders(path)), _tokyo_poses(xy), columns=columns)


def _tokyo_queries(path: Path, struct: Struct) -> list[str]:
    return existing_names(path, struct.query_names, (*_TOKYO_QUERY_FOLDERS, *_tokyo_folders(path)))


def _tokyo_folders(path: Path) -> tuple[str, ...]:
    return ("images", "tokyo247", "tokyo247/images", "tokyoTM", "tokyoTM/images")


def _tokyo_poses(xy: Floats) -> Poses:
    return Poses(xy, np.full(len(xy), np.nan), frame=_TOKYO_FRAME)


def tokyo_volume(name: str) -> str:
    """The archive that an image comes from."""
    folder = next((part for part in name.split("/") if part.isdigit()), name.split("/")[0])
    return f"{folder}.tar"


_TOKYO_LICENCE = "research use, on request from its authors (Torii et al., Arandjelović et al.)"
DATASETS.register("tokyo247")(
    Dataset(
        name="tokyo247",
        load=load_247,
        splits=("test",),
        licence=_TOKYO_LICENCE,
        published={"test/queries": 315, "test/database": 75984},
        volume=tokyo_volume,
    )
)
DATASETS.register("tokyotm")(
    Dataset(
        name="tokyotm",
        load=load_tm,
        splits=("train", "val"),
        licence=_TOKYO_LICENCE,
        published={"train/queries": 7277, "train/database": 49104, "val/queries": 7186, "val/database": 49056},
        volume=tokyo_volume,
    )
)
