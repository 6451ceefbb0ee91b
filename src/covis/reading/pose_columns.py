"""6DOF poses and cameras as columns of a table, and back: so that nothing is lost between a reader and a table.

`qw, qx, qy, qz`: the rotation from camera axes (x right, y down, z forward) to east, north, up (true north beside lat/lon,
grid north beside easting/northing, as headings are). `camera`: `MODEL width height parameters…`, as hloc and COLMAP have it.
"""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError
from covis.files import replacing
from covis.images import ImageSet
from covis.poses import Poses, grid_north, quaternion_matrices, true_headings
from covis.reading.cameras import Camera, calibration, camera, camera_of

QUATERNION = ("qw", "qx", "qy", "qz")
CAMERA = "camera"


def pose_columns(images: ImageSet) -> dict[str, list[Any]]:
    """The columns of images with rotations or cameras; empty where there are none."""
    columns: dict[str, list[Any]] = {}
    if images.poses.rotation is not None:
        values = _quaternions(_turned(images.poses, images.poses.rotation, 1.0))
        columns |= {name: [_number(v) for v in values[:, k]] for k, name in enumerate(QUATERNION)}
    if images.intrinsics is not None:
        cameras = [camera_of(images, i) for i in range(len(images))]
        columns[CAMERA] = ["" if one is None else _text(one) for one in cameras]
    return columns


def restored(images: ImageSet, source: Path) -> ImageSet:
    """Images of a table with what its pose columns say; those columns are used up."""
    rest = dict(images.columns)
    if set(QUATERNION) <= set(rest):
        values = np.column_stack([np.asarray(rest.pop(name), np.float64) for name in QUATERNION])
        images = replace(images, poses=_with_rotation(images.poses, values, source))
    if CAMERA in rest and np.asarray(rest[CAMERA]).dtype.kind == "U":
        cameras = [_camera(str(text), f"{source}: row {i + 2}") for i, text in enumerate(rest[CAMERA])]
        if any(one is not None for one in cameras):
            intrinsics, columns = calibration(cameras)
            del rest[CAMERA]
            return replace(images, intrinsics=intrinsics, columns=rest | columns)
    return replace(images, columns=rest)


def _with_rotation(poses: Poses, values: Floats, source: Path) -> Poses:
    """Poses with rotations from quaternions, NaN where a row has none; a heading that contradicts them is an error."""
    known = ~np.isnan(values).any(axis=1)
    rotation = np.full((len(values), 3, 3), np.nan)
    if known.any():
        rotation[known] = quaternion_matrices(values[known], "wxyz")
    rotation = _turned(poses, rotation, -1.0)
    ahead = rotation[:, :, 2]
    seen = np.degrees(np.arctan2(ahead[:, 0], ahead[:, 1])) % 360.0
    steep = np.hypot(ahead[:, 0], ahead[:, 1]) < 0.05
    apart = np.abs((poses.heading - seen + 180.0) % 360.0 - 180.0)
    wrong = np.flatnonzero((apart > 1.0) & ~steep)
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{source}: row {at + 2} looks to {seen[at]:.1f}° by its quaternion and to {poses.heading[at]:.1f}° by its "
            "heading; empty one of the two"
        )
    heading = np.where(np.isnan(poses.heading) & ~steep, seen, poses.heading)
    return replace(poses, heading=heading, rotation=rotation)


def _turned(poses: Poses, rotation: Floats, way: float) -> Floats:
    """Rotations from the frame's north to true north (`way` 1) or back (−1); as they are in frames not on Earth."""
    if not poses.frame or not poses.metric:
        return rotation
    angle = np.radians(np.nan_to_num(way * grid_north(poses)))
    zero, one = np.zeros_like(angle), np.ones_like(angle)
    c, s = np.cos(angle), np.sin(angle)
    clockwise = np.moveaxis(np.array([[c, s, zero], [-s, c, zero], [zero, zero, one]]), 2, 0)
    turned: Floats = clockwise @ rotation
    return turned


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
    columns = table_columns(images, path.parent)
    with replacing(path) as partial:
        if path.suffix.lower() in (".parquet", ".pq"):
            _write_parquet(partial, columns)
            return
        with partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle:
            writer = csv.writer(handle)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


_NUMBERS = ("lat", "lon", "easting", "northing", "heading", "altitude", *QUATERNION)


def _write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
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
