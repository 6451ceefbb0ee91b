"""Cameras and their 6DOF poses, and both as table columns, so that nothing is lost between a reader and a table."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError, unknown_name
from covis.core.files import replacing
from covis.images import ImageSet
from covis.poses import Poses, quaternion_matrices, true_headings, turned_to_true

MODELS: dict[str, tuple[int, str]] = {
    "SIMPLE_PINHOLE": (0, "f cx cy"),
    "PINHOLE": (1, "fx fy cx cy"),
    "SIMPLE_RADIAL": (2, "f cx cy k"),
    "RADIAL": (3, "f cx cy k1 k2"),
    "OPENCV": (4, "fx fy cx cy k1 k2 p1 p2"),
    "OPENCV_FISHEYE": (5, "fx fy cx cy k1 k2 k3 k4"),
    "FULL_OPENCV": (6, "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6"),
    "FOV": (7, "fx fy cx cy omega"),
    "SIMPLE_RADIAL_FISHEYE": (8, "f cx cy k"),
    "RADIAL_FISHEYE": (9, "f cx cy k1 k2"),
    "THIN_PRISM_FISHEYE": (10, "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1"),
    "RAD_TAN_THIN_PRISM_FISHEYE": (11, "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3"),
    "SIMPLE_DIVISION": (12, "f cx cy k"),
    "DIVISION": (13, "fx fy cx cy k"),
    "SIMPLE_FISHEYE": (14, "f cx cy"),
    "FISHEYE": (15, "fx fy cx cy"),
    "EUCM": (16, "fx fy cx cy alpha beta"),
    "EQUIRECTANGULAR": (17, "w h"),
}
"""Name → COLMAP's number and its parameters in order."""
MODEL_OF_NUMBER = {number: name for name, (number, _) in MODELS.items()}
_WIDTH = 16
"""Columns of `camera_params`; unused ones are NaN."""
LENS = ("camera_model", "camera_params")
"""Columns of an image set with the whole camera, distortion too."""


class Camera(NamedTuple):
    """One calibrated camera."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    @property
    def pinhole(self) -> tuple[float, ...]:
        """fx, fy, cx, cy, width, height; NaN where the model has no focal length."""
        named = dict(zip(MODELS[self.model][1].split(), self.params, strict=True))
        focal = named.get("f", np.nan)
        centre = named.get("cx", np.nan), named.get("cy", np.nan)
        return (named.get("fx", focal), named.get("fy", focal), *centre, float(self.width), float(self.height))


def camera(model: str, width: Any, height: Any, params: Sequence[Any], where: str) -> Camera:
    """A checked camera; `where` begins the error."""
    if model not in MODELS:
        raise InputError(f"{where}: {unknown_name('camera model', model, MODELS)}")
    expected = MODELS[model][1].split()
    try:
        camera = Camera(model, int(float(width)), int(float(height)), tuple(float(p) for p in params))
    except ValueError as error:
        raise InputError(f"{where}: camera {model}: {error}; expected numbers") from None
    if len(camera.params) != len(expected):
        raise InputError(f"{where}: camera {model} has {len(camera.params)} parameters; expected {' '.join(expected)}")
    return camera


def pinhole(width: float, height: float, matrix: Floats) -> Camera:
    """A camera without distortion from its (3, 3) matrix."""
    params = (float(matrix[0, 0]), float(matrix[1, 1]), float(matrix[0, 2]), float(matrix[1, 2]))
    return Camera("PINHOLE", int(width), int(height), params)


class CameraArrays(NamedTuple):
    """The cameras of N images as arrays."""

    intrinsics: Floats
    """(N, 6)."""
    columns: dict[str, NDArray[Any]]


def calibration(cameras: Sequence[Camera | None]) -> CameraArrays:
    """Intrinsics and columns of N images; None is an image of unknown camera."""
    intrinsics = np.full((len(cameras), 6), np.nan)
    params = np.full((len(cameras), _WIDTH), np.nan)
    for i, one in enumerate(cameras):
        if one is not None:
            intrinsics[i] = one.pinhole
            params[i, : len(one.params)] = one.params
    models = np.array(["" if one is None else one.model for one in cameras], dtype=str)
    return CameraArrays(intrinsics, {"camera_model": models, "camera_params": params})


def camera_of(images: ImageSet, i: int) -> Camera | None:
    """The camera of image i with its distortion where that is known; None where there are no intrinsics."""
    if images.intrinsics is None or np.isnan(images.intrinsics[i, 4:]).any():
        return None
    width, height = (int(v) for v in images.intrinsics[i, 4:])
    model = str(images.columns["camera_model"][i]) if "camera_model" in images.columns else ""
    if model:
        count = len(MODELS[model][1].split())
        return Camera(model, width, height, tuple(images.columns["camera_params"][i, :count].tolist()))
    return Camera("PINHOLE", width, height, tuple(images.intrinsics[i, :4].tolist()))


def camera_table(images: ImageSet) -> tuple[NDArray[np.int32], list[str]]:
    """(N,) which camera took each image, −1 for an unknown one, and the cameras, each once, as text."""
    if images.intrinsics is None:
        return np.full(len(images), -1, np.int32), []
    params = images.columns.get(LENS[1], np.zeros((len(images), 0)))
    models = images.columns.get(LENS[0], np.zeros(len(images), "U1")).tolist()
    rows = np.ascontiguousarray(np.column_stack([images.intrinsics, params]))
    seen: dict[tuple[str, bytes], int] = {}
    texts: dict[str, int] = {}
    codes = np.empty(len(images), np.int32)
    for i, key in enumerate(zip(models, map(bytes, rows), strict=True)):
        if key not in seen:
            one = camera_of(images, i)
            seen[key] = -1 if one is None else texts.setdefault(_text(one), len(texts))
        codes[i] = seen[key]
    return codes, list(texts)


def with_cameras(images: ImageSet, codes: NDArray[np.integer], texts: Sequence[str], where: str) -> ImageSet:
    """Images with the cameras of such a table; `where` begins the error for an invalid one."""
    if not len(texts):
        return images
    if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(texts):
        raise InputError(f"{where}: an image has camera {int(codes.max())}, there are {len(texts)}")
    intrinsics, columns = calibration([*(_camera(text, where) for text in texts), None])
    return replace(
        images, intrinsics=intrinsics[codes], columns={**images.columns, **{k: v[codes] for k, v in columns.items()}}
    )


# 6DOF poses and cameras as table columns, and back, so that nothing is lost between a reader and a table.
#
# `qw, qx, qy, qz`: the rotation from camera axes (x right, y down, z forward) to east, north, up (true north beside lat/lon,
# grid north beside easting/northing, as headings are). `camera`: `MODEL width height parameters…`, as hloc and COLMAP have it.


QUATERNION = ("qw", "qx", "qy", "qz")
_CAMERA = "camera"


def pose_columns(images: ImageSet) -> dict[str, list[Any]]:
    """The columns of images with rotations or cameras, numbers as text with all digits; empty where there are none."""
    return {
        name: [_number(v) for v in values] if name in QUATERNION else values
        for name, values in pose_values(images).items()
    }


def pose_values(images: ImageSet) -> dict[str, Any]:
    """The same with numbers, NaN where unknown."""
    columns: dict[str, Any] = {}
    if images.poses.rotation is not None:
        values = _quaternions(turned_to_true(images.poses, images.poses.rotation))
        columns |= {name: values[:, k] for k, name in enumerate(QUATERNION)}
    if images.intrinsics is not None:
        cameras = [camera_of(images, i) for i in range(len(images))]
        columns[_CAMERA] = ["" if one is None else _text(one) for one in cameras]
    return columns


def restored(images: ImageSet, source: Path) -> ImageSet:
    """Images of a table with the poses and cameras from its pose columns, which are removed."""
    rest = dict(images.columns)
    if set(QUATERNION) <= set(rest):
        values = np.column_stack([np.asarray(rest.pop(name), np.float64) for name in QUATERNION])
        images = replace(images, poses=_with_rotation(images.poses, values, source))
    if _CAMERA in rest and np.asarray(rest[_CAMERA]).dtype.kind == "U":
        cameras = [_camera(str(text), f"{source}: row {i + 2}") for i, text in enumerate(rest[_CAMERA])]
        if any(one is not None for one in cameras):
            intrinsics, columns = calibration(cameras)
            del rest[_CAMERA]
            return replace(images, intrinsics=intrinsics, columns=rest | columns)
    return replace(images, columns=rest)


def _with_rotation(poses: Poses, values: Floats, source: Path) -> Poses:
    """Poses with rotations from quaternions, NaN where a row has none; a heading that contradicts them is an error."""
    known = ~np.isnan(values).any(axis=1)
    rotation = np.full((len(values), 3, 3), np.nan)
    if known.any():
        rotation[known] = quaternion_matrices(values[known], "wxyz")
    rotation = turned_to_true(poses, rotation, -1)
    ahead = rotation[:, :, 2]
    seen = np.degrees(np.arctan2(ahead[:, 0], ahead[:, 1])) % 360.0
    steep = np.hypot(ahead[:, 0], ahead[:, 1]) < 0.05
    apart = np.abs((poses.heading - seen + 180.0) % 360.0 - 180.0)
    wrong = np.flatnonzero((apart > 1.0) & ~steep)
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{source}: row {at + 2} faces {seen[at]:.1f}° by its quaternion and to {poses.heading[at]:.1f}° by its "
            "heading; empty one of the two"
        )
    heading = np.where(np.isnan(poses.heading) & ~steep, seen, poses.heading)
    return replace(poses, heading=heading, rotation=rotation)


def _quaternions(rotation: Floats) -> Floats:
    """(N, 4), w first and never negative; NaN where unknown."""
    from scipy.spatial.transform import Rotation

    result = np.full((len(rotation), 4), np.nan)
    known = ~np.isnan(rotation).any(axis=(1, 2))
    if known.any():
        result[known] = np.roll(Rotation.from_matrix(rotation[known]).as_quat(canonical=True), 1, axis=1)
    return result


def _number(value: float) -> str:
    return "" if np.isnan(value) else repr(float(value))


def _text(one: Camera) -> str:
    return " ".join([one.model, str(one.width), str(one.height), *(repr(float(p)) for p in one.params)])


def _camera(text: str, where: str) -> Camera | None:
    cells = text.split()
    if not cells:
        return None
    if len(cells) < 4:
        raise InputError(f"{where}: camera {text!r}; expected MODEL width height parameters")
    return camera(cells[0], cells[1], cells[2], cells[3:], where)


def plain_columns(images: ImageSet) -> dict[str, NDArray[Any]]:
    """Further columns that a table can hold: one value for each image; file names as text."""
    plain: dict[str, NDArray[Any]] = {}
    for name, values in images.columns.items():
        if values.ndim != 1 or name == "camera_model":
            continue
        plain[name] = np.char.decode(values, "utf-8", "surrogateescape") if values.dtype.kind == "S" else values
    return plain


FILES = ("depth", "panorama")
"""Columns that name files beside the images."""


def table_columns(images: ImageSet, folder: Path) -> dict[str, list[Any]]:
    """Everything known of `images` as columns of a table in `folder`, numbers with all their digits."""
    if not images.poses.metric:
        raise InputError(
            "the scale of these poses is unknown, and a table is in metres; give --scale METRES_PER_UNIT, or --georeference "
            "with lat and lon of at least three of the images"
        )
    base = os.path.relpath(images.root.resolve(), folder.resolve())
    prefix = "" if base == "." else f"{base}/"
    poses = images.poses
    columns: dict[str, list[Any]] = {"image": [f"{prefix}{images.name(i)}" for i in range(len(images))]}
    if poses.frame:
        degrees = poses.latlon()
        columns |= {"lat": _cells(degrees[:, 0]), "lon": _cells(degrees[:, 1])}
    columns |= {"easting": _cells(poses.xy[:, 0]), "northing": _cells(poses.xy[:, 1])}
    columns["heading"] = _cells(true_headings(poses) if poses.frame else poses.heading)
    if poses.z is not None:
        columns["altitude"] = _cells(poses.z)
    columns["group"] = [images.group_names[g] for g in images.group]
    columns |= pose_columns(images)
    for name, values in plain_columns(images).items():
        if name not in columns:
            files = name in FILES
            columns[name] = [f"{prefix}{v}" if files and v else v for v in values.tolist()]
    return columns


def write_images(images: ImageSet, path: Path | str) -> None:
    """Writes images as a CSV or Parquet table that `read_table` gives back as they are."""
    path = Path(path)
    write_columns(table_columns(images, path.parent), path)


def write_columns(columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Writes a table with a column `image` as CSV, or as Parquet by its ending: the whole file, or none."""
    with replacing(path) as partial:
        if path.suffix.lower() in (".parquet", ".pq"):
            _write_parquet(partial, columns)
            return
        with partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle:
            writer = csv.writer(handle)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


_NUMBERS = ("lat", "lon", "easting", "northing", "heading", "altitude", *QUATERNION)


def _write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    arrays: dict[str, Any] = {
        name: pa.array([float(v) if v != "" else None for v in values], pa.float64()) if name in _NUMBERS else values
        for name, values in columns.items()
    }
    arrays["image"] = pa.array([os.fsencode(n) for n in columns["image"]], pa.binary())
    pyarrow.parquet.write_table(pa.table(arrays), path)


def _cells(values: Floats) -> list[str]:
    return [_number(v) for v in values]
