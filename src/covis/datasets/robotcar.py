"""RobotCar Seasons v2: `images/<condition>/{left,rear,right}/<time stamp>.jpg` with 6DOF poses.

The map is the condition `overcast-reference`, posed by `3D-models/all-merged/all.nvm`; `robotcar_v2_train.txt` poses
some of the other conditions; `robotcar_v2_test.txt` lists the queries whose poses the server keeps. Lists say `.png`,
files are `.jpg`. Columns: `condition`, `camera`, `time_stamp`. Only `rear` is scored.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.listings import Listing
from covis.core.progress import warn
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.poses import Poses, centred_matrices
from covis.reading.textfile import lines, read_named

_NAME = "robotcar_v2"
REFERENCE = "overcast-reference"
_CONDITIONS = (
    "dawn", "dusk", "night", "night-rain", "overcast-summer", "overcast-winter", "rain", "snow", "sun",
)  # fmt: skip
CAMERAS = ("left", "rear", "right")
_SPLITS = ("train", "test", "reference")
IMAGE_SIZE = (1024, 1024)


def load(path: Path, split: str) -> Split:
    """`train` and `test`: queries against the reference map; `reference`: the map with itself."""
    database = reference(path)
    if split == "reference":
        return Split(database, database)
    return Split(posed_queries(path) if split == "train" else unposed_queries(path), database)


def reference(path: Path) -> ImageSet:
    """The posed images of the reference condition, all three cameras."""
    names, quaternions, centres = _nvm(path / "3D-models" / "all-merged" / "all.nvm")
    return _images(path, names, Poses.from_matrices(centred_matrices(quaternions, centres)))


def posed_queries(path: Path) -> ImageSet:
    """The queries with published poses (row-major camera-to-world)."""
    table = read_named(path / "robotcar_v2_train.txt", 16)
    return _images(path, table.names, Poses.from_matrices(table.values.reshape(-1, 4, 4)))


def unposed_queries(path: Path) -> ImageSet:
    """The queries without poses."""
    names = [line.split()[0] for _, line in lines(path / "robotcar_v2_test.txt")]
    unknown = Poses(np.full((len(names), 2), np.nan), np.full(len(names), np.nan))
    return _images(path, names, unknown)


def _images(path: Path, listed: list[str], poses: Poses) -> ImageSet:
    names = _full_names(path, listed)
    parts = [PurePosixPath(name).parts for name in names]
    cameras = np.array([p[-2] for p in parts])
    columns = {
        "condition": np.array([p[-3] if p[-3] != "images" else "" for p in parts]),
        "camera": cameras,
        "time_stamp": np.array([int(PurePosixPath(p[-1]).stem) for p in parts], np.int64),
    }
    return ImageSet.of(path, names, poses, intrinsics=_intrinsics(path, cameras), columns=columns)


def _full_names(path: Path, listed: list[str]) -> list[str]:
    """`images/<condition>/<camera>/<stamp>.jpg`; where a list leaves out the condition, it is looked up on disk."""
    plain = [str(PurePosixPath(name).with_suffix(".jpg")) for name in listed]
    wrong = [name for name in plain if name.count("/") not in (1, 2) or not PurePosixPath(name).stem.isdigit()]
    if wrong:
        raise InputError(f"{path}: {wrong[0]!r} in a list is not <condition>/<camera>/<time stamp>; check the list")
    listing = Listing(path / "images")
    names, lost = [], 0
    for name in plain:
        if name.count("/") == 1:
            condition = next((c for c in (*_CONDITIONS, REFERENCE) if listing.has(f"{c}/{name}")), None)
            lost += condition is None
            name = f"{condition}/{name}" if condition else name
        names.append(f"images/{name}")
    if lost:
        warn(f"{path}: {lost} of {len(names)} listed images are under no condition in images/; theirs stays empty")
    return names


def _intrinsics(path: Path, cameras: NDArray[np.str_]) -> Floats | None:
    """(N, 6), or None if the calibration does not exist."""
    known: dict[str, list[float]] = {}
    for camera in CAMERAS:
        file = path / "intrinsics" / f"{camera}_intrinsics.txt"
        if not file.is_file():
            return None
        values = dict(line.split()[:2] for _, line in lines(file))
        try:
            known[camera] = [*(float(values[k]) for k in ("fx", "fy", "cx", "cy")), *map(float, IMAGE_SIZE)]
        except (KeyError, ValueError) as error:
            raise InputError(f"{file} is not a list of fx, fy, cx, cy ({error})") from None
    return np.array([known[camera] for camera in cameras])


def _nvm(path: Path) -> tuple[list[str], Floats, Floats]:
    """Names, world-to-camera quaternions and camera centres of an N-View Match file; its points are not read."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; unpack 3D-models of RobotCar Seasons there")
    names: list[str] = []
    rows: list[list[float]] = []
    with path.open(encoding="utf-8", errors="surrogateescape") as handle:
        content = (line.strip() for line in handle)
        filled = (line for line in content if line)
        if not next(filled, "").startswith("NVM_V3"):
            raise InputError(f"{path} does not begin with NVM_V3; it is another kind of file")
        count = int(next(filled, "0"))
        for _ in range(count):
            cells = next(filled, "").split()
            if len(cells) < 9:
                raise InputError(f"{path} ends after {len(names)} of {count} cameras; it may be cut short")
            names.append(cells[0].removeprefix("./"))
            rows.append([float(c) for c in cells[2:9]])
    values = np.array(rows, np.float64).reshape(-1, 7)
    return names, values[:, :4], values[:, 4:]


def volume(name: str) -> str:
    """The archive that an image comes from."""
    parts = PurePosixPath(name).parts
    return f"images/{parts[1]}.zip" if len(parts) > 3 else "images"


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=_SPLITS,
        licence="CC BY-NC-SA 4.0, non-commercial; cite Sattler et al. 2018 and Maddern et al. 2017",
        published={"train": (1906, None), "test": (1872, None), "reference": (None, 20862)},
        volume=volume,
        positive_radius_m=5.0,
    )
)
