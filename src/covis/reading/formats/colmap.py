"""COLMAP models, text or binary: cameras, images (world-to-camera, centre −Rᵀt), points and their tracks.

The scale of a model is unknown unless it was georegistered: its poses are in the frame `UNSCALED`, which anything that
needs metres refuses, until `scale` or georeferenced images (see `covis.reading.georeference`) fix it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign, read_foreign_text
from covis.images import ImageSet
from covis.poses import UNSCALED, Axis, Poses, ground_axes, quaternion_matrices
from covis.reading.cameras import MODEL_OF_NUMBER, MODELS, Camera, calibration, camera
from covis.reading.readers import READERS, Reader

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_PLACES = (".", "sparse/0", "sparse", "colmap/sparse/0", "dense/sparse")
"""Where a model lies in a project folder."""
_MAX_BYTES = 1 << 32
"""Larger files of a binary model are refused before they are read."""


@dataclass(frozen=True, eq=False)
class Model:
    """What a model's files hold, in their order."""

    path: Path
    ids: NDArray[np.int64]
    """(N,) image ids."""
    names: list[str]
    quaternions: Floats
    """(N, 4) world-to-camera, w first."""
    translations: Floats
    """(N, 3)."""
    cameras: list[Camera]
    """(N,) the camera of each image."""
    keypoints: list[Floats]
    """(K, 2) pixels, for each image."""
    observed: list[NDArray[np.int64]]
    """(K,) id of the point that each keypoint sees; −1 for none."""
    point_ids: NDArray[np.int64]
    """(P,) ascending."""
    points: Floats
    """(P, 3) in the model's own axes."""

    def world_points(self, up: Axis, scale: float = 1.0) -> Floats:
        """(P, 3) points in ground axes (east, north, up), as `image_set` has the poses."""
        turned: Floats = scale * self.points @ np.stack(ground_axes(up)).T
        return turned

    def incidence(self) -> csr_matrix:
        """(N, P) 1 where an image sees a point; a point seen twice counts once."""
        from scipy.sparse import csr_matrix

        rows = np.repeat(np.arange(len(self.ids)), [len(o) for o in self.observed])
        seen = np.concatenate(self.observed) if self.observed else np.zeros(0, np.int64)
        rows, seen = rows[seen >= 0], seen[seen >= 0]
        columns = np.searchsorted(self.point_ids, seen)
        known = self.point_ids[np.minimum(columns, len(self.point_ids) - 1)] == seen if len(self.point_ids) else []
        if not np.all(known) or (len(seen) and not len(self.point_ids)):
            raise InputError(f"{self.path}: an image sees a point that the points file does not have; export again")
        shape = (len(self.ids), len(self.point_ids))
        matrix = csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)
        matrix.data[:] = 1
        return matrix

    def image_set(self, root: Path | None = None, *, up: Axis | None = None, scale: float | None = None) -> ImageSet:
        """The images with 6DOF poses.

        up: the model's axis that points away from the ground. [default: the one nearest to the cameras' own up]
        scale: metres per unit.
        """
        up = up or nearest_up(quaternion_matrices(self.quaternions, "wxyz").transpose(0, 2, 1))
        poses = Poses.from_quaternions(
            self.quaternions,
            self.translations * (scale or 1.0),
            order="wxyz",
            world_to_camera=True,
            up=up,
            frame="" if scale else UNSCALED,
        )
        intrinsics, columns = calibration(self.cameras)
        columns["colmap_id"] = self.ids
        root = root or image_root(self.path, self.names)
        group = [name.rpartition("/")[0] for name in self.names]
        return ImageSet.of(root, self.names, poses, group, intrinsics=intrinsics, columns=columns)


def find_model(path: Path) -> Path | None:
    """The folder below `path` that holds a model."""
    for place in _PLACES:
        for suffix in (".bin", ".txt"):
            if all((path / place / f"{part}{suffix}").is_file() for part in ("cameras", "images")):
                return path / place if place != "." else path
    return None


@foreign("a COLMAP model")
def read_reconstruction(path: Path | str) -> Model:
    """The model in a folder, or in `sparse/0` below it; binary is preferred where both are there."""
    folder = find_model(Path(path))
    if folder is None:
        raise InputError(f"{path} holds no COLMAP model; expected cameras.bin and images.bin (or .txt)")
    read = _Binary(folder) if (folder / "images.bin").is_file() else _Text(folder)
    cameras = dict(read.cameras())
    images = list(read.images())
    if not images:
        raise InputError(f"{folder} has no registered image; run the mapper again")
    lost = next((i for i in images if i[3] not in cameras), None)
    if lost:
        raise InputError(f"{folder}: image {lost[4]} has camera {lost[3]}, which the cameras file does not have")
    points = sorted(read.points())
    return Model(
        path=folder,
        ids=np.array([i[0] for i in images], np.int64),
        names=[i[4] for i in images],
        quaternions=np.array([i[1] for i in images], np.float64),
        translations=np.array([i[2] for i in images], np.float64),
        cameras=[cameras[i[3]] for i in images],
        keypoints=[i[5] for i in images],
        observed=[i[6] for i in images],
        point_ids=np.array([p[0] for p in points], np.int64),
        points=np.array([p[1:] for p in points], np.float64).reshape(-1, 3),
    )


def image_root(model: Path, names: list[str]) -> Path:
    """The folder that the names are relative to: `images` beside or above the model, or where the first file is."""
    above = [model, *list(model.resolve().parents)[:3]]
    candidates = [base / inside for base in above for inside in ("images", ".")]
    complete = next((folder for folder in candidates if (folder / names[0]).is_file()), None)
    return complete or next((folder for folder in candidates[::2] if folder.is_dir()), model)


def nearest_up(rotation: Floats) -> Axis:
    """The world axis nearest to the mean up of cameras (N, 3, 3) camera-to-world, whose own y points down."""
    up = -np.nanmean(rotation[:, :, 1], axis=0)
    axis = int(np.abs(up).argmax())
    names: tuple[Axis, ...] = ("x", "y", "z", "-x", "-y", "-z")
    return names[axis if up[axis] >= 0 else axis + 3]


Image = tuple[int, Any, Any, int, str, Floats, NDArray[np.int64]]


class _Text:
    """cameras.txt, images.txt, points3D.txt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cameras(self) -> Iterator[tuple[int, Camera]]:
        for number, line in self._lines("cameras.txt"):
            cells = line.split()
            if len(cells) < 4:
                raise self._wrong("cameras.txt", number, "expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS")
            where = f"{self.folder / 'cameras.txt'}: line {number}"
            yield int(cells[0]), camera(cells[1], cells[2], cells[3], cells[4:], where)

    def images(self) -> Iterator[Image]:
        lines = iter(enumerate(self._read("images.txt"), 1))
        for number, line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            cells = line.split(maxsplit=9)
            points = next(lines, (0, ""))[1].split()  # an image without keypoints has an empty line
            try:
                pose = [float(c) for c in cells[1:8]]
                table = np.array(points, np.float64).reshape(-1, 3)
                ids = np.array(points[2::3], np.int64)
                yield int(cells[0]), pose[:4], pose[4:], int(cells[8]), cells[9], table[:, :2], ids
            except (ValueError, IndexError):
                raise self._wrong("images.txt", number, "expected two lines for each image") from None

    def points(self) -> Iterator[tuple[int, float, float, float]]:
        if not (self.folder / "points3D.txt").is_file():
            return
        for number, line in self._lines("points3D.txt"):
            cells = line.split(maxsplit=4)
            try:
                yield int(cells[0]), float(cells[1]), float(cells[2]), float(cells[3])
            except (ValueError, IndexError):
                raise self._wrong("points3D.txt", number, "expected POINT3D_ID X Y Z …") from None

    def _read(self, name: str) -> list[str]:
        return read_foreign_text(self.folder / name).split("\n")

    def _lines(self, name: str) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(self._read(name), 1):
            if line.strip() and not line.startswith("#"):
                yield number, line

    def _wrong(self, name: str, number: int, expected: str) -> InputError:
        return InputError(f"{self.folder / name}: line {number} cannot be read; {expected}")


class _Binary:
    """cameras.bin, images.bin, points3D.bin: little-endian, a count of records first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cameras(self) -> Iterator[tuple[int, Camera]]:
        data = _Bytes(self.folder / "cameras.bin")
        for _ in range(data.take("<Q")[0]):
            number, model, width, height = data.take("<IiQQ")
            if model not in MODEL_OF_NUMBER:
                raise InputError(f"{data.path}: camera {number} has the unknown model {model}")
            count = len(MODELS[MODEL_OF_NUMBER[model]][1].split())
            yield number, Camera(MODEL_OF_NUMBER[model], width, height, data.take(f"<{count}d"))

    def images(self) -> Iterator[Image]:
        data = _Bytes(self.folder / "images.bin")
        for _ in range(data.take("<Q")[0]):
            number, *pose, camera_id = data.take("<I7dI")
            name = data.text()
            table = data.array(_KEYPOINT, data.take("<Q")[0])
            yield number, pose[:4], pose[4:], camera_id, name, table["xy"].copy(), table["point"].astype(np.int64)

    def points(self) -> Iterator[tuple[int, float, float, float]]:
        if not (self.folder / "points3D.bin").is_file():
            return
        data = _Bytes(self.folder / "points3D.bin")
        for _ in range(data.take("<Q")[0]):
            number, x, y, z, *_, length = data.take("<Q3d3BdQ")
            data.array(_TRACK, length)
            yield number, x, y, z


_KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<u8")])
_TRACK = np.dtype([("image", "<u4"), ("keypoint", "<u4")])


class _Bytes:
    """A file read from front to back; an early end is an error with the path."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, read_foreign(path, _MAX_BYTES), 0

    def take(self, form: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(form, self.data, self.at)
        except struct.error:
            raise self._cut() from None
        self.at += struct.calcsize(form)
        return values

    def array(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        if self.at + count * dtype.itemsize > len(self.data):
            raise self._cut()
        values = np.frombuffer(self.data, dtype, count, self.at)
        self.at += count * dtype.itemsize
        return values

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise self._cut()
        text = self.data[self.at : end].decode("utf-8", "surrogateescape")
        self.at = end + 1
        return text

    def _cut(self) -> InputError:
        return InputError(f"{self.path} ends after {len(self.data)} bytes, within a record; copy it again")


def _is_model(path: Path) -> bool:
    return path.is_dir() and find_model(path) is not None


READERS.register("colmap")(Reader(_is_model, lambda path: read_reconstruction(path).image_set()))
