"""TUM RGB-D sequences, and trajectories in their form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Axis, Poses, quaternion_matrices
from covis.reading.cameras import Camera, calibration
from covis.reading.readers import READERS, Reader
from covis.reading.textfile import cells_of, number_rows
from covis.reading.trajectory import Trajectory

TUM_CAMERAS = {
    "freiburg1": (517.3, 516.5, 318.6, 255.3),
    "freiburg2": (520.9, 521.0, 325.1, 249.7),
    "freiburg3": (535.4, 539.2, 320.1, 247.6),
}
"""fx, fy, cx, cy of the TUM RGB-D benchmark's three cameras, at 640 × 480."""
TUM_DEPTH_SCALE_M = 1 / 5000


@foreign("a trajectory")
def read_tum_trajectory(path: Path) -> Trajectory:
    """`timestamp tx ty tz qx qy qz qw` lines."""
    rows = number_rows(path, 8)
    rotation = quaternion_matrices(rows[:, 4:], "xyzw")
    return Trajectory.of(rows[:, 0], np.concatenate([rotation, rows[:, 1:4, None]], axis=2), str(path))


@foreign("a TUM sequence")
def read_tum(folder: Path, trajectory: Path | None = None, *, up: Axis = "z") -> ImageSet:
    """A TUM RGB-D sequence: `rgb.txt`, `groundtruth.txt`, and `depth.txt` where it is there (column `depth`)."""
    listed = cells_of(folder / "rgb.txt")
    if not listed:
        raise InputError(f"{folder / 'rgb.txt'} lists no image")
    time_s, names = np.array([float(c[0]) for _, c in listed]), [c[1] for _, c in listed]
    matrices = read_tum_trajectory(trajectory or folder / "groundtruth.txt").at(time_s)
    columns: dict[str, NDArray[Any]] = {"time": time_s}
    if (folder / "depth.txt").is_file():
        columns |= _tum_depth(folder / "depth.txt", time_s)
    one = _tum_camera(folder)
    intrinsics, model = calibration([one] * len(names))
    poses = Poses.from_matrices(matrices, up=up)
    return _checked_poses(
        ImageSet.of(folder, names, poses, folder.resolve().name, intrinsics=intrinsics, columns=columns | model), folder
    )


def _tum_camera(folder: Path) -> Camera | None:
    """The benchmark's camera by the folder's name, or `calibration.txt` (fx fy cx cy, optional distortion)."""
    file = folder / "calibration.txt"
    if file.is_file():
        row = number_rows(file, 4)[0]
        return Camera("PINHOLE", 640, 480, tuple(row.tolist()))
    camera_params = next((params for name, params in TUM_CAMERAS.items() if name in folder.resolve().name), None)
    return None if camera_params is None else Camera("PINHOLE", 640, 480, camera_params)


def _tum_depth(path: Path, time_s: Floats, most_s: float = 0.02) -> dict[str, NDArray[Any]]:
    """The depth image nearest in time to each colour image, at most `most_s` apart."""
    listed = cells_of(path)
    times = np.array([float(c[0]) for _, c in listed])
    right = np.clip(np.searchsorted(times, time_s), 1, max(1, len(times) - 1))
    left = right - 1
    near = (
        np.where(np.abs(times[left] - time_s) <= np.abs(times[right] - time_s), left, right) if len(times) > 1 else left
    )
    close = np.abs(times[near] - time_s) <= most_s
    names = [listed[i][1][1].encode() if ok else b"" for i, ok in zip(near, close, strict=True)]
    return {"depth": np.array(names), "depth_scale_m": np.full(len(time_s), TUM_DEPTH_SCALE_M)}


def _checked_poses(images: ImageSet, source: Path) -> ImageSet:
    """The images, after a warning about those without a pose; an error where none has one."""
    unknown = int((~images.poses.known).sum())
    if unknown == len(images):
        raise InputError(f"{source}: no image lies within the trajectory; are both clocks the same?")
    if unknown:
        warn(f"{source}: {unknown} of {len(images)} images have no pose near their time; theirs stays unknown")
    return images


def _is_sequence(path: Path) -> bool:
    return (path / "rgb.txt").is_file() and (path / "groundtruth.txt").is_file()


def _is_trajectory_of_sequence(path: Path) -> bool:
    if path.suffix.lower() not in (".txt", ".tum") or not (path.parent / "rgb.txt").is_file() or path.name == "rgb.txt":
        return False
    rows = cells_of(path)
    return bool(rows) and len(rows[0][1]) == 8


READERS.register("tum")(Reader(_is_sequence, read_tum))
READERS.register("tum-trajectory")(Reader(_is_trajectory_of_sequence, lambda path: read_tum(path.parent, path)))
