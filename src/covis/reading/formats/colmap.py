"""COLMAP models, text or binary: cameras, images (world-to-camera, centre −Rᵀt), points and their tracks.

The scale of a model is unknown unless it was georegistered: its poses are in the frame `UNSCALED`, which anything that
needs metres refuses, until `scale` or georeferenced images (see `covis.reading.georeference`) fix it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign, read_foreign_text
from covis.images import ImageSet
from covis.poses import UNSCALED, Axis, Poses, ground_axes, quaternion_matrices
from covis.reading.cameras import MODEL_OF_NUMBER, MODELS, Camera, calibration, camera

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

    def world_points(self, up: Axis) -> Floats:
        """(P, 3) points in ground axes (east, north, up), as `image_set` has the poses."""
        turned: Floats = self.points @ np.stack(ground_axes(up)).T
        return turned

    def incidence(self) -> csr_matrix:
        """(N, P) 1 where an image sees a point; a point seen twice counts once."""
        from scipy.sparse import csr_matrix

        rows = np.repeat(np.arange(len(self.ids)), [len(o) for o in self.observed])
        points = np.concatenate(self.observed)
        rows, points = rows[points >= 0], points[points >= 0]
        if not np.isin(points, self.point_ids).all():
            raise InputError(f"{self.path}: an image sees a point that the points file does not have; export again")
        columns = np.searchsorted(self.point_ids, points)
        shape = (len(self.ids), len(self.point_ids))
        matrix = csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)
        matrix.data[:] = 1
        return matrix

    def image_set(self, up: Axis | None = None) -> ImageSet:
        """The images with 6DOF poses; `up` is the model's axis that points away from the ground.

        [default: the one nearest to the cameras' own up]
        """
        up = up or nearest_up(quaternion_matrices(self.quaternions, "wxyz").transpose(0, 2, 1))
        poses = Poses.from_quaternions(
            self.quaternions, self.translations, order="wxyz", world_to_camera=True, up=up, frame=UNSCALED
        )
        intrinsics, columns = calibration(self.cameras)
        columns["colmap_id"] = self.ids
        group = [name.rpartition("/")[0] for name in self.names]
        root = image_root(self.path, self.names)
        return ImageSet.of(root, self.names, poses, group, intrinsics=intrinsics, columns=columns)


def find_model(path: Path) -> Path | None:
    """The folder below `path` that holds a model."""
    for place in _PLACES:
        for suffix in (".bin", ".txt"):
            if all((path / place / f"{part}{suffix}").is_file() for part in ("cameras", "images")):
                return path / place if place != "." else path
    return None


def read_reconstruction(path: Path | str) -> Model:
    """The model in a folder, or in `sparse/0` below it; binary is preferred where both are there."""
    folder = find_model(Path(path))
    if folder is None:
        raise InputError(f"{path} holds no COLMAP model; expected cameras.bin and images.bin (or .txt)")
    if (folder / "images.bin").is_file():
        cameras, images = _binary_cameras(folder / "cameras.bin"), _binary_images(folder / "images.bin")
    else:
        cameras, images = _text_cameras(folder / "cameras.txt"), _text_images(folder / "images.txt")
    if not images:
        raise InputError(f"{folder} has no registered image; run the mapper again")
    lost = next((i for i in images if i.camera not in cameras), None)
    if lost:
        raise InputError(f"{folder}: image {lost.name} has camera {lost.camera}, which the cameras file does not have")
    points = sorted(_points(folder))
    return Model(
        path=folder,
        ids=np.array([i.number for i in images], np.int64),
        names=[i.name for i in images],
        quaternions=np.array([i.pose[:4] for i in images], np.float64),
        translations=np.array([i.pose[4:] for i in images], np.float64),
        cameras=[cameras[i.camera] for i in images],
        keypoints=[i.keypoints for i in images],
        observed=[i.observed for i in images],
        point_ids=np.array([p[0] for p in points], np.int64),
        points=np.array([p[1:] for p in points], np.float64).reshape(-1, 3),
    )


def _points(folder: Path) -> list[_Point]:
    """The points of a model; none where it has no file of them."""
    if (folder / "points3D.bin").is_file():
        return _binary_points(folder / "points3D.bin")
    return _text_points(folder / "points3D.txt") if (folder / "points3D.txt").is_file() else []


def is_model(path: Path) -> bool:
    """Whether a folder holds a COLMAP model."""
    return path.is_dir() and find_model(path) is not None


def read_colmap(path: Path, up: Axis | None = None) -> ImageSet:
    """COLMAP models, text or binary; scale unknown. `up` as in `Model.image_set`."""
    return read_reconstruction(path).image_set(up=up)


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


class _Image(NamedTuple):
    number: int
    pose: Sequence[float]
    """World-to-camera: qw, qx, qy, qz, x, y, z."""
    camera: int
    name: str
    keypoints: Floats
    observed: NDArray[np.int64]


_Point = tuple[int, float, float, float]
_KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<u8")])
_TRACK = np.dtype([("image", "<u4"), ("keypoint", "<u4")])


@foreign("cameras of COLMAP")
def _text_cameras(file: Path) -> dict[int, Camera]:
    cameras = {}
    for line in _lines(file):
        number, model, width, height, *params = line.split()
        cameras[int(number)] = camera(model, width, height, params, f"{file}: camera {number}")
    return cameras


@foreign("images of COLMAP")
def _text_images(file: Path) -> list[_Image]:
    images = []
    lines = iter(read_foreign_text(file).split("\n"))
    for line in lines:
        if line.strip() and not line.startswith("#"):
            number, *pose, camera_number, name = line.split(maxsplit=9)
            points = next(lines, "").split()  # an image without keypoints has an empty line
            keypoints = np.array(points, np.float64).reshape(-1, 3)[:, :2]
            observed = np.array(points[2::3], np.int64)
            images.append(_Image(int(number), [float(c) for c in pose], int(camera_number), name, keypoints, observed))
    return images


@foreign("points of COLMAP")
def _text_points(file: Path) -> list[_Point]:
    cells = (line.split(maxsplit=4) for line in _lines(file))
    return [(int(number), float(x), float(y), float(z)) for number, x, y, z, *_ in cells]


def _lines(file: Path) -> Iterator[str]:
    """The lines that are neither empty nor comments."""
    return (line for line in read_foreign_text(file).split("\n") if line.strip() and not line.startswith("#"))


@foreign("cameras of COLMAP")
def _binary_cameras(file: Path) -> dict[int, Camera]:
    cameras, data = {}, _Records(file)
    for _ in range(data.count()):
        number, model, width, height = data.take("IiQQ")
        name, parameters = MODEL_OF_NUMBER[model], MODELS[MODEL_OF_NUMBER[model]][1].split()
        cameras[number] = Camera(name, width, height, data.take(f"{len(parameters)}d"))
    return cameras


@foreign("images of COLMAP")
def _binary_images(file: Path) -> list[_Image]:
    images, data = [], _Records(file)
    for _ in range(data.count()):
        number, *pose, camera_number = data.take("I7dI")
        name, table = data.text(), data.array(_KEYPOINT)
        images.append(_Image(number, pose, camera_number, name, table["xy"].copy(), table["point"].astype(np.int64)))
    return images


@foreign("points of COLMAP")
def _binary_points(file: Path) -> list[_Point]:
    points, data = [], _Records(file)
    for _ in range(data.count()):
        number, x, y, z, *_ = data.take("Q3d3Bd")
        data.array(_TRACK)
        points.append((number, x, y, z))
    return points


class _Records:
    """A binary file (little-endian) read from front to back."""

    def __init__(self, path: Path) -> None:
        self.data, self.at = read_foreign(path, _MAX_BYTES), 0

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def count(self) -> int:
        return int(self.take("Q")[0])

    def array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A count and that many values."""
        count = self.count()
        values = np.frombuffer(self.data, dtype, count, self.at) if count else np.zeros(0, dtype)
        self.at += values.nbytes
        return values

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode("utf-8", "surrogateescape")
        self.at = end + 1
        return text
