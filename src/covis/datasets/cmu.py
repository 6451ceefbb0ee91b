"""Extended CMU Seasons: `sliceN/{database,query,camera-poses}` with 6DOF poses of the map and of some queries.

A group is a slice: a query is only searched in its own. Columns: `slice`, `camera`, `time_stamp` (µs), `environment`
(urban, suburban, park) and `condition`, which follows from the day of the drive. Poses files give the rotation from
world to camera and the camera centre.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import images as image_sets
from covis.core.errors import InputError, unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.poses import Poses, centred_matrices
from covis.reading.textfile import lines, read_named

_NAME = "cmu_extended"
TEST_SLICES = (2, 3, 4, 5, 6, 13, 14, 15, 16, 17, 18, 19, 20, 21)
SLICES = tuple(range(2, 26))
ENVIRONMENTS = {"urban": range(2, 9), "suburban": range(9, 18), "park": range(18, 26)}
SESSIONS = {
    12833: "Sunny + Foliage", 12845: "Sunny + Foliage", 12859: "Cloudy + Foliage", 12875: "Sunny + Foliage",
    12881: "Overcast + Mixed Foliage", 12887: "Low Sun + Mixed Foliage", 12895: "Low Sun + Mixed Foliage",
    12904: "Cloudy + Mixed Foliage", 12929: "Low Sun + No Foliage + Snow", 12992: "Low Sun + Foliage",
    13033: "Sunny + No Foliage", 13118: "Overcast + Foliage",
}  # fmt: skip
"""The drives: first five digits of their time stamps (units of 10¹¹ µs), and the published condition."""
_IMAGE = re.compile(r"img_\d+_(?P<camera>c\d)_(?P<time>\d+)us\.jpg$")
_SESSION_REACH_S = 4 * 86400


def load(path: Path, split: str) -> Split:
    """`test`: the scored slices; `train`: the others; `sliceN`: one. A query has a pose where `camera-poses/` has it."""
    named = {f"slice{n}": (n,) for n in SLICES}
    known = {"test": TEST_SLICES, "train": tuple(n for n in SLICES if n not in TEST_SLICES), **named}
    if split not in known:
        raise unknown_name(f"split of {_NAME}", split, known)
    slices = known[split]
    missing = [n for n in slices if not (path / f"slice{n}").is_dir()]
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(f'slice{n}' for n in missing)}; unpack them there, or name one slice as the split"
        )
    calibration = _calibration(path / "intrinsics.txt")
    queries = image_sets.concatenate([_queries(path, n, calibration) for n in slices])
    database = image_sets.concatenate([_database(path, n, calibration) for n in slices])
    return Split(queries, database)


def _database(path: Path, n: int, calibration: dict[str, list[float]]) -> ImageSet:
    table = read_named(path / f"slice{n}" / f"ground-truth-database-images-slice{n}.txt", 7)
    poses = Poses.from_matrices(centred_matrices(table.values[:, :4], table.values[:, 4:]))
    return _images(path, n, "database", table.names, poses, calibration)


def _queries(path: Path, n: int, calibration: dict[str, list[float]]) -> ImageSet:
    folder = path / f"slice{n}"
    names = [line.split()[0] for _, line in lines(folder / f"test-images-slice{n}.txt")]
    matrices = np.full((len(names), 3, 4), np.nan)
    place = {name: i for i, name in enumerate(names)}
    for file in sorted((folder / "camera-poses").glob("*.txt")):
        table = read_named(file, 7)
        posed = centred_matrices(table.values[:, :4], table.values[:, 4:])
        for name, matrix in zip(table.names, posed, strict=True):
            if name in place:
                matrices[place[name]] = matrix
    return _images(path, n, "query", names, Poses.from_matrices(matrices), calibration)


def _images(
    path: Path, n: int, side: str, names: list[str], poses: Poses, calibration: dict[str, list[float]]
) -> ImageSet:
    parts = [_IMAGE.search(name) for name in names]
    if None in parts:
        at = parts.index(None)
        raise InputError(f"{path / f'slice{n}'}: {names[at]!r} is not img_<number>_c<camera>_<time>us.jpg")
    cameras = [p["camera"] for p in parts if p]
    times = np.array([int(p["time"]) for p in parts if p], np.int64)
    intrinsics = [calibration[c] for c in cameras] if set(cameras) <= set(calibration) else None
    columns = {
        "slice": np.full(len(names), n),
        "camera": np.array(cameras, dtype="U2"),
        "time_stamp": times,
        "environment": np.full(len(names), environment_of(n)),
        "condition": conditions_of(times),
    }
    full = [f"slice{n}/{side}/{name}" for name in names]
    return ImageSet.of(path, full, poses, f"slice{n}", intrinsics=intrinsics, columns=columns)


def environment_of(n: int) -> str:
    """urban, suburban or park."""
    return next(name for name, slices in ENVIRONMENTS.items() if n in slices)


def conditions_of(times: NDArray[np.int64]) -> NDArray[np.str_]:
    """(N,) published condition of the drive at each time stamp (µs); empty where no drive is near."""
    gap_s = np.abs(times[:, None] / 1e6 - np.array([first * 100_000 + 50_000 for first in SESSIONS]))
    near = gap_s.min(axis=1, initial=np.inf) < _SESSION_REACH_S
    return np.where(near, np.array(list(SESSIONS.values()))[gap_s.argmin(axis=1)], "")


def _calibration(path: Path) -> dict[str, list[float]]:
    """Camera → fx, fy, cx, cy, width, height; nothing if the file does not exist."""
    if not path.is_file():
        return {}
    known = {}
    for number, line in lines(path):
        cells = line.split()
        try:
            width, height, fx, fy, cx, cy = (float(c) for c in cells[2:8])
        except ValueError as error:
            raise InputError(f"{path}: line {number}: {error}") from None
        known[cells[0]] = [fx, fy, cx, cy, width, height]
    return known


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=("test", "train"),
        licence="CC BY-NC-SA 4.0, non-commercial; cite Sattler et al. 2018 and Badino et al. 2011",
        more_splits=True,
        at_least={"test": (10_000, 5_000)},
        volume=lambda name: f"{name.split('/')[0]}.tar",
        positive_radius_m=5.0,
    )
)
