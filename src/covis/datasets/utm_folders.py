"""The community's folders: `images/{train,val,test}/{database,queries}` with everything in the file name.

`@east@north@zone@letter@lat@lon@pano@tile@heading@pitch@roll@height@timestamp@note@.jpg`; later fields may be empty or
missing. Columns: `panorama`, `tile`, `time_stamp`, `note`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.listings import walk_images
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.poses import Poses, convergence_deg, frame_of, local_frame

_NAME = "utm_folders"
_SPLITS = ("train", "val", "test")
_QUERY_FOLDERS = ("queries", "query")
MAP_FOLDERS = ("database", "gallery")
_FIELDS = (
    "east", "north", "zone", "letter", "lat", "lon", "panorama", "tile", "heading", "pitch", "roll", "height",
    "time_stamp", "note",
)  # fmt: skip
_EXAMPLE = "@0548166.01@4183000.51@10@S@037.79@-122.45@pano@03@180@@@@201909@@.jpg"


def load(path: Path, split: str) -> Split:
    """Queries and map of `split`, in one frame."""
    folder = next((f for f in (path / "images" / split, path / split) if f.is_dir()), None)
    if folder is None:
        raise InputError(f"{path / 'images' / split} does not exist; expected images/{split}/{{database,queries}}")
    sides = [_side(folder, names) for names in (_QUERY_FOLDERS, MAP_FOLDERS)]
    listed = [[f"{side.relative_to(path).as_posix()}/{name}" for name in walk_images(side)] for side in sides]
    return Split(*read_names(path, listed))


def read_names(root: Path, lists: Sequence[Sequence[str]]) -> list[ImageSet]:
    """One image set for each list of names below `root`, all in one frame."""
    fields = [_fields(root, names) for names in lists]
    frame = _frame(fields)
    return [_images(root, names, f, frame) for names, f in zip(lists, fields, strict=True)]


def _side(folder: Path, names: Sequence[str]) -> Path:
    present = next((folder / name for name in names if (folder / name).is_dir()), None)
    if present is None:
        raise InputError(f"{folder} has no {' or '.join(names)}; expected database/ and queries/")
    return present


def _fields(root: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """The fields of each name, empty where it has none."""
    if not names:
        raise InputError(f"{root} has no images in one of its folders; expected names like {_EXAMPLE}")
    table: dict[str, list[str]] = {field: [] for field in _FIELDS}
    for name in names:
        cells = PurePosixPath(name).name.split("@")
        if len(cells) < 4:
            raise InputError(f"{root / name} has no @east@north@… in its name; expected {_EXAMPLE}")
        cells = [*cells[1:-1], *[""] * len(_FIELDS)]
        for field, cell in zip(_FIELDS, cells, strict=False):
            table[field].append(cell)
    return table


def _frame(sides: Sequence[dict[str, list[str]]]) -> str:
    """The zone's own frame; a local one around the points where they lie in several zones."""
    zones = {(z, letter) for f in sides for z, letter in zip(f["zone"], f["letter"], strict=True)}
    halves = {(z, letter >= "N") for z, letter in zones}
    if halves == {("", False)}:
        return ""
    if len(halves) == 1 and next(iter(halves))[0].isdigit():
        zone, north = next(iter(halves))
        return frame_of(int(zone), north)
    lat, lon = (np.concatenate([_floats(f[key]) for f in sides]) for key in ("lat", "lon"))
    if np.isnan(lat).any() or np.isnan(lon).any():
        raise InputError(f"images lie in several UTM zones ({len(halves)}) and some have no latitude in their name")
    return local_frame(lat, lon)


def _images(root: Path, names: Sequence[str], fields: dict[str, list[str]], frame: str) -> ImageSet:
    lat, lon = _floats(fields["lat"]), _floats(fields["lon"])
    heading = _floats(fields["heading"])
    columns = {key: np.array(fields[key], dtype=str) for key in ("panorama", "tile", "time_stamp", "note")}
    if frame.startswith("+proj"):
        return ImageSet.of(root, names, Poses.from_latlon(lat, lon, heading, frame=frame), columns=columns)
    if frame:
        zone = int(frame[-2:])
        heading = heading - np.nan_to_num(convergence_deg(lat, lon, zone))
    xy = np.column_stack([_floats(fields["east"]), _floats(fields["north"])])
    lost = np.flatnonzero(np.isnan(xy).any(axis=1))
    if len(lost):
        raise InputError(f"{root / names[lost[0]]} has no numbers after @; expected {_EXAMPLE}")
    return ImageSet.of(root, names, Poses(xy, heading, frame=frame), columns=columns)


def _floats(cells: Sequence[str]) -> Floats:
    def number(cell: str) -> float:
        try:
            return float(cell)
        except ValueError:
            return float("nan")

    return np.array([number(cell) for cell in cells], np.float64)


DATASETS.register(_NAME)(
    Dataset(name=_NAME, load=load, splits=_SPLITS, licence="that of the dataset the folders were made from")
)
