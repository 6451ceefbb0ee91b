"""6DOF poses and cameras as table columns, and back, so that nothing is lost between a reader and a table.

`qw, qx, qy, qz`: the rotation from camera axes (x right, y down, z forward) to east, north, up (true north beside lat/lon,
grid north beside easting/northing, as headings are). `lens`: `MODEL width height parameters…`, as hloc and COLMAP have it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses, angle_between, matrix_quaternions, quaternion_matrices, turned_to_true
from covis.reading.cameras import LENS, camera_texts, with_cameras

QUATERNION = ("qw", "qx", "qy", "qz")


def pose_columns(images: ImageSet) -> dict[str, Any]:
    """The columns of images with rotations or cameras; NaN or empty where unknown."""
    columns: dict[str, Any] = {}
    if images.poses.rotation is not None:
        rotation = turned_to_true(images.poses, images.poses.rotation)
        values = np.full((len(rotation), 4), np.nan)
        known = ~np.isnan(rotation).any(axis=(1, 2))
        values[known] = matrix_quaternions(rotation[known])
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
    rotation[known] = quaternion_matrices(values[known], "wxyz")
    rotation = turned_to_true(poses, rotation, -1)
    east, north = rotation[:, 0, 2], rotation[:, 1, 2]
    seen = np.where(np.hypot(east, north) < 0.05, np.nan, np.degrees(np.arctan2(east, north)) % 360.0)
    wrong = np.flatnonzero(angle_between(poses.heading, seen) > 1.0)
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{source}: row {at + 2} faces {seen[at]:.1f}° by its quaternion and to {poses.heading[at]:.1f}° by its "
            "heading; empty one of the two"
        )
    return replace(poses, heading=np.where(np.isnan(poses.heading), seen, poses.heading), rotation=rotation)
