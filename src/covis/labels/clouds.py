"""Points on the surfaces of a scene: from a file (PLY, NPZ), or fused from depth maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats
from covis.core.artifacts import fingerprint
from covis.core.errors import InputError
from covis.core.files import load_array
from covis.core.progress import warn
from covis.images import ImageSet
from covis.labels.ply import read_ply
from covis.poses import Axis, ground_axes

MAX_POINTS = 100_000
"""Enough for a room, where they lie about 3 cm apart."""
MAX_FRAMES = 400
"""Depth maps that are fused into a cloud, spread evenly over the images."""
_MOST_UNREADABLE = 0.05
_VOXEL_M = 0.02


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Surface points in the images' frame."""

    xyz: Floats
    """(N, 3) metres, finite."""
    source: str = ""
    """Where they come from, for manifests."""

    def __post_init__(self) -> None:
        xyz = np.array(self.xyz, np.float64, order="C")
        if xyz.ndim != 2 or xyz.shape[1] != 3 or not len(xyz):
            raise InputError(f"a point cloud has shape {xyz.shape}; expected (N, 3) with at least one point")
        known = np.isfinite(xyz).all(axis=1)
        if not known.any():
            raise InputError(f"none of {len(xyz)} points is finite; check {self.source or 'the cloud'}")
        if not known.all():
            warn(f"{int((~known).sum())} of {len(xyz)} points are not finite and are left out ({self.source})")
        xyz = xyz[known]
        xyz.flags.writeable = False
        object.__setattr__(self, "xyz", xyz)

    def __len__(self) -> int:
        return len(self.xyz)

    def describe(self) -> dict[str, object]:
        """What a manifest says of it."""
        return {"source": self.source, "points": len(self), "fingerprint": fingerprint(self.xyz)}


@dataclass(frozen=True)
class DepthCamera:
    """How depth images are to be read; the default is the Kinect of 7Scenes."""

    fx: float = 585.0
    fy: float = 585.0
    cx: float = 320.0
    cy: float = 240.0
    scale_m: float = 1e-3
    """Metres per step."""
    invalid: tuple[int, ...] = (0, 65535)


def read_points(path: Path | str, *, up: Axis = "z") -> PointCloud:
    """A cloud from `.ply` or `.npz`/`.npy` (an array `points`, or the only one), thinned evenly to `MAX_POINTS`.

    `up` is the file's axis that points away from the ground; points are turned as `Poses.from_matrices` turns poses.
    """
    path = Path(path)
    readers = {".ply": read_ply, ".npz": _read_npz, ".npy": _read_npz}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path} is not a point cloud that covis can read; give .ply, .npz or .npy")
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path")
    xyz = readers[path.suffix.lower()](path)
    if up != "z" and xyz.ndim == 2 and xyz.shape[1] == 3:
        xyz = xyz @ np.stack(ground_axes(up)).T
    return PointCloud(thin(xyz, MAX_POINTS), path.name)


def _read_npz(path: Path) -> Floats:
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {k: loaded[k] for k in loaded.files} if hasattr(loaded, "files") else {"points": loaded}
    except Exception as error:  # numpy raises many kinds on a damaged file
        raise InputError(f"{path} cannot be read as NumPy arrays ({error})") from None
    if "points" not in arrays and len(arrays) != 1:
        raise InputError(f"{path} holds {sorted(arrays)}; expected an array `points` of shape (N, 3)")
    xyz = arrays["points"] if "points" in arrays else next(iter(arrays.values()))
    return np.asarray(xyz, np.float64)


def thin(xyz: ArrayLike, max_points: int, least_m: float = 0.0) -> Floats:
    """At most `max_points` points, evenly spread: one per voxel, as small as `max_points` and `least_m` allow."""
    points = np.asarray(xyz, np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) <= max_points and not least_m:
        return points
    extent = float(np.ptp(points, axis=0).max(initial=0.0))
    size = max(extent / 2**20, least_m, 1e-9) if least_m else max(extent / 2048, 1e-9)
    while True:
        x, y, z = np.floor((points - points.min(axis=0)) / size).astype(np.int64).T
        kept = points[np.sort(np.unique((x << 42) | (y << 21) | z, return_index=True)[1])]
        if len(kept) <= max_points:
            return kept
        size *= max(1.05, (len(kept) / max_points) ** 0.5)


def fuse_depth(sets: Sequence[ImageSet], camera: DepthCamera | None = None, *, step_px: int = 8) -> PointCloud:
    """A cloud from `MAX_FRAMES` of the depth maps that the images' column `depth` names.

    Every `step_px`-th pixel is read. One point per voxel is kept, because near surfaces would otherwise count more than
    far ones.
    """
    if any("depth" not in images.columns for images in sets):
        raise InputError("these images name no depth maps; give a point cloud (PLY or NPZ)")
    listed = []
    for images in sets:
        named = images.columns["depth"] != images.columns["depth"].dtype.type()
        listed += [
            (images, int(i)) for i in _spread(np.flatnonzero(named & images.poses.known), MAX_FRAMES // len(sets))
        ]
    parts: list[Floats] = []
    lost: list[Path] = []
    for images, i in listed:
        path = images.root / os.fsdecode(images.columns["depth"][i])
        try:
            parts.append(_surface(path, images, i, camera, step_px))
        except (OSError, ValueError, SyntaxError):
            lost.append(path)
    if lost or not parts:
        first = lost[0] if lost else "none is named"
        cause = f"{len(lost)} of {len(listed)} depth maps cannot be read"
        if len(lost) > _MOST_UNREADABLE * len(listed) or not parts:
            raise InputError(f"{cause} (first: {first}); unpack again")
        warn(f"{cause} and are left out (first: {first})")
    return PointCloud(thin(np.concatenate(parts), MAX_POINTS, _VOXEL_M), f"{len(parts)} depth maps")


def read_depth(path: Path) -> NDArray[Any]:
    """(h, w) as stored: an image or a NumPy array."""
    if path.suffix == ".npy":
        return load_array(path, "fiu", remedy="check the file")
    from covis.reading.decoding import Reject, stored_values

    try:
        return stored_values(path)
    except Reject as reject:
        raise InputError(f"{reject}; export the depth maps again") from None


def depth_camera(images: ImageSet, i: int, shape: tuple[int, int]) -> DepthCamera:
    """The camera of image i's depth map of `shape`: its own where depth is registered to it (column `depth_scale_m`)."""
    if "depth_scale_m" not in images.columns or images.intrinsics is None or np.isnan(images.intrinsics[i]).any():
        return DepthCamera()
    fx, fy, cx, cy, width, height = images.intrinsics[i]
    across, down = shape[1] / width, shape[0] / height
    scale_m = float(images.columns["depth_scale_m"][i])
    return DepthCamera(fx * across, fy * down, cx * across, cy * down, scale_m)


def _spread(ids: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most `most` of them, evenly."""
    return ids[np.unique(np.linspace(0, len(ids) - 1, min(len(ids), max(1, most))).round().astype(np.int64))]


def _surface(path: Path, images: ImageSet, i: int, camera: DepthCamera | None, step_px: int) -> Floats:
    """Points (M, 3) of one depth map in the world."""
    poses, whole = images.poses, read_depth(path)
    if whole.ndim != 2 or poses.rotation is None:
        raise ValueError(f"{path} is not a depth map")
    camera = camera or depth_camera(images, i, (whole.shape[0], whole.shape[1]))
    depth = whole[step_px // 2 :: step_px, step_px // 2 :: step_px]
    v, u = np.nonzero(~np.isin(depth, camera.invalid) & np.isfinite(depth))
    z = depth[v, u] * camera.scale_m
    offset = step_px // 2
    x = (u * step_px + offset - camera.cx) * z / camera.fx
    y = (v * step_px + offset - camera.cy) * z / camera.fy
    points: Floats = np.stack([x, y, z], axis=1) @ poses.rotation[i].T + poses.centre[i]
    return points
