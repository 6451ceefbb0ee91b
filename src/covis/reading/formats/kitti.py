"""KITTI odometry sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.cameras import Camera, calibration, pinhole
from covis.reading.decoding import image_size
from covis.reading.readers import READERS, Reader
from covis.reading.textfile import cells_of, number_rows
from covis.reading.trajectory import compose


@foreign("a KITTI sequence")
def read_kitti(folder: Path, poses_file: Path | None = None) -> ImageSet:
    """A KITTI odometry sequence: `image_2` (or 3, 0, 1), `calib.txt`, `times.txt`, and `poses/NN.txt` above it.

    Poses are those of camera 0 (x right, y down, z forward, world the same); the camera's own offset is added.
    """
    side = next((f"image_{n}" for n in (2, 3, 0, 1) if (folder / f"image_{n}").is_dir()), None)
    if side is None:
        raise InputError(f"{folder} has no folder image_0 to image_3; expected a KITTI odometry sequence")
    names = sorted(f"{side}/{p.name}" for p in (folder / side).iterdir() if p.suffix.lower() in (".png", ".jpg"))
    file = poses_file or _kitti_poses(folder)
    matrices = number_rows(file, 12).reshape(-1, 3, 4)
    if len(matrices) != len(names):
        raise InputError(
            f"{file} has {len(matrices)} poses, {folder / side} has {len(names)} images; one is incomplete"
        )
    columns: dict[str, NDArray[Any]] = {}
    if (folder / "times.txt").is_file():
        columns["time"] = number_rows(folder / "times.txt", 1)[: len(names), 0]
    one, offset = _kitti_camera(folder, side)
    intrinsics, model = calibration([one] * len(names))
    placed = compose(matrices, np.broadcast_to(offset, matrices.shape))
    poses = Poses.from_matrices(placed, up="-y")
    group = folder.resolve().name
    return ImageSet.of(folder, names, poses, group, intrinsics=intrinsics, columns=columns | model)


def _kitti_poses(folder: Path) -> Path:
    whole = folder.resolve()
    candidates = (folder / "poses.txt", whole.parent.parent / "poses" / f"{whole.name}.txt")
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        raise InputError(f"{folder} has no poses; expected {candidates[1]} (only sequences 00 to 10 have them)")
    return file


def _kitti_camera(folder: Path, side: str) -> tuple[Camera | None, Floats]:
    """The camera, and its pose in the axes of camera 0, from the projection P = K [I | −K⁻¹…]."""
    file = folder / "calib.txt"
    if not file.is_file():
        return None, np.eye(3, 4)
    rows = {cells[0].rstrip(":"): cells[1:] for _, cells in cells_of(file)}
    key = f"P{side[-1]}"
    if key not in rows or len(rows[key]) != 12:
        raise InputError(f"{file} has no line {key}: with 12 numbers; take the file of the benchmark")
    projection = np.array(rows[key], np.float64).reshape(3, 4)
    centre = -np.linalg.solve(projection[:, :3], projection[:, 3])
    first = next(p for p in sorted((folder / side).iterdir()) if p.suffix.lower() in (".png", ".jpg"))
    return pinhole(*image_size(first), projection[:, :3]), np.column_stack([np.eye(3), centre])


def _is_kitti(path: Path) -> bool:
    return (path / "calib.txt").is_file() and any((path / f"image_{n}").is_dir() for n in range(4))


READERS.register("kitti")(Reader(_is_kitti, read_kitti))
