"""6DOF poses and cameras as table columns, and back, so that nothing is lost between a reader and a table.

`qw, qx, qy, qz`: the rotation from camera axes (x right, y down, z forward) to east, north, up (true north beside lat/lon,
grid north beside easting/northing, as headings are). `lens`: `MODEL width height parameters…`, as hloc and COLMAP have it.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.images import ImageSet
from covis.poses import Poses, matrix_quaternions, quaternion_matrices, true_headings, turned_to_true
from covis.reading.cameras import LENS, camera_texts, with_cameras

QUATERNION = ("qw", "qx", "qy", "qz")


def pose_columns(images: ImageSet) -> dict[str, Any]:
    """The columns of images with rotations or cameras; NaN or empty where unknown."""
    columns: dict[str, Any] = {}
    if images.poses.rotation is not None:
        values = _quaternions(turned_to_true(images.poses, images.poses.rotation))
        columns |= {name: values[:, k] for k, name in enumerate(QUATERNION)}
    if images.intrinsics is not None:
        columns[LENS] = camera_texts(images)
    return columns


def restored(images: ImageSet, source: Path) -> ImageSet:
    """Images of a table with the poses and cameras from its pose columns."""
    rest = dict(images.columns)
    if set(QUATERNION) <= set(rest):
        values = np.column_stack([np.asarray(rest.pop(name), np.float64) for name in QUATERNION])
        images = replace(images, poses=_with_rotation(images.poses, values, source), columns=rest)
    if LENS in rest and rest[LENS].dtype.kind == "U":
        images = with_cameras(images, rest[LENS].tolist(), str(source))
    return images


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
    result = np.full((len(rotation), 4), np.nan)
    known = ~np.isnan(rotation).any(axis=(1, 2))
    if known.any():
        result[known] = matrix_quaternions(rotation[known])
    return result


def _number(value: float) -> str:
    return "" if np.isnan(value) else repr(float(value))


def plain_columns(images: ImageSet) -> dict[str, NDArray[Any]]:
    """Further columns that a table can hold: one value for each image; file names as text."""
    plain: dict[str, NDArray[Any]] = {}
    for name, values in images.columns.items():
        if values.ndim != 1:
            continue
        plain[name] = np.char.decode(values, "utf-8", "surrogateescape") if values.dtype.kind == "S" else values
    return plain


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
    columns |= {name: _cells(values) if name in QUATERNION else values for name, values in pose_columns(images).items()}
    for name, values in plain_columns(images).items():
        if name not in columns:
            is_file = name == "depth"
            columns[name] = [f"{prefix}{v}" if is_file and v else v for v in values.tolist()]
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
