"""The photos of a map as it keeps them: names and files, poses in its own frame, rotations and cameras, rejects."""

from __future__ import annotations

import csv
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import Damaged, InputError
from covis.core.progress import say
from covis.core.tables import counted
from covis.images import ImageSet, concatenate, encode_names
from covis.poses import Poses, true_headings, turned_to_true
from covis.reading.cameras import LENS, calibration, camera_texts, with_cameras
from covis.reading.decoding import REJECTS, Rejected, write_rejects


def files_of(images: ImageSet) -> NDArray[np.bytes_]:
    """(N,) absolute path of each image as bytes."""
    base = os.fsencode(images.root.resolve())
    return np.array([os.path.normpath(os.path.join(base, bytes(n))) for n in images.names], dtype=bytes)  # noqa: PTH118


def reframed(poses: Poses, frame: str, what: str) -> Poses:
    """The same poses in the frame of a map, headings turned to its north."""
    if poses.frame == frame:
        return poses
    if not poses.frame or not frame:
        have, need = ("metres", "lat and lon") if frame else ("lat and lon", "metres (easting, northing)")
        raise InputError(f"{what} gives positions in {have}, but the map is in {need}; use the same kind")
    degrees = poses.latlon()
    moved = Poses.from_latlon(degrees[:, 0], degrees[:, 1], true_headings(poses), z=poses.z, frame=frame)
    if poses.rotation is None:
        return moved
    return replace(moved, rotation=turned_to_true(moved, turned_to_true(poses, poses.rotation), -1))


def kept_columns(images: ImageSet) -> dict[str, NDArray[Any]]:
    """The columns that a map keeps of its photos: where each file lies, which row it has, and its lens."""
    kept = ("file", "row", *(() if images.intrinsics is None else [LENS]))
    return {name: images.columns[name] for name in kept if name in images.columns}


def join_photos(parts: Sequence[ImageSet]) -> ImageSet:
    """One set after another; height, rotation and camera are unknown (NaN) where only others have them."""
    turned = any(p.poses.rotation is not None for p in parts)
    calibrated = any(p.intrinsics is not None for p in parts)
    return concatenate([_filled(p, turned, calibrated) for p in parts])


def _filled(images: ImageSet, turned: bool, calibrated: bool) -> ImageSet:
    poses, n = images.poses, len(images)
    z = np.full(n, np.nan) if poses.z is None else poses.z
    rotation = np.full((n, 3, 3), np.nan) if turned and poses.rotation is None else poses.rotation
    columns, intrinsics = dict(images.columns), images.intrinsics
    if calibrated:
        unknown = calibration([None] * n)
        intrinsics = unknown.intrinsics if intrinsics is None else intrinsics
        columns = unknown.columns | columns
    return replace(images, poses=replace(poses, z=z, rotation=rotation), intrinsics=intrinsics, columns=columns)


def stamps(files: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """(N, 2) size and time of files, so that a changed photo is embedded again."""
    sizes_and_times = []
    for file in files:
        try:
            status = os.stat(bytes(file))  # noqa: PTH116 - names may be bytes
            sizes_and_times.append((status.st_size, status.st_mtime_ns))
        except OSError:
            sizes_and_times.append((-1, -1))
    return np.array(sizes_and_times, np.int64).reshape(-1, 2)


def listed(store: Path) -> list[Rejected]:
    """The images that were left out of a store, by the list in its folder."""
    listing = store / REJECTS
    if not listing.is_file():
        return []
    with listing.open(newline="", encoding="utf-8", errors="surrogateescape") as handle:
        return [Rejected(*line) for line in list(csv.reader(handle))[1:]]


def list_rejects(path: Path, rejects: list[Rejected]) -> None:
    """Writes what was left out, and says so; nothing where all were taken."""
    if rejects:
        write_rejects(path, rejects)
        say(f"{counted(len(rejects), 'photo')} left out, listed in {path}")


def nearest_name(name: str, images: ImageSet) -> str:
    """A hint for a name that does not exist."""
    names = [images.name(i) for i in range(min(len(images), 10_000))]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def text_of(name: bytes) -> str:
    """A file name for people and JSON; bytes that are no UTF-8 are spelt out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def full_arrays(images: ImageSet) -> dict[str, NDArray[Any]]:
    """Rotations, and cameras (each once), as arrays; only those that are known."""
    arrays: dict[str, NDArray[Any]] = {}
    rotation = images.poses.rotation
    if rotation is not None and not np.isnan(rotation).all():
        arrays["rotation"] = rotation
    texts = camera_texts(images)
    if any(texts):
        cameras, codes = np.unique(encode_names(texts), return_inverse=True)
        arrays |= {"camera": codes.astype(np.int32), "cameras": cameras}
    return arrays


def full_kinds(count: int) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Kinds and shapes of those arrays."""
    return {"rotation": ("f", (count, 3, 3)), "camera": ("i", (count,)), "cameras": ("S", (None,))}


def with_full(images: ImageSet, arrays: Mapping[str, NDArray[Any]], where: str) -> ImageSet:
    """Images with the cameras of these arrays; rotations belong to their poses."""
    if "camera" not in arrays or "cameras" not in arrays:
        return images
    codes, texts = arrays["camera"], [os.fsdecode(text) for text in arrays["cameras"].tolist()]
    if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(texts):
        raise Damaged(f"{where}: an image has camera {int(codes.max())}, there are {len(texts)}")
    return with_cameras(images, [texts[code] for code in codes.tolist()], where)


def facts_of(images: ImageSet) -> list[str]:
    """What an engine keeps of each photo beside its name, position and descriptor, as text."""
    poses, n = images.poses, len(images)
    columns = {
        "file": map(os.fsdecode, images.columns["file"].tolist()),
        "group": [images.group_names[g] for g in images.group],
        "camera": camera_texts(images),
        "heading": poses.heading.tolist(),
        "height": [np.nan] * n if poses.z is None else poses.z.tolist(),
        "rotation": [[np.nan] * 9] * n if poses.rotation is None else poses.rotation.reshape(n, 9).tolist(),
    }
    return [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def images_of(path: Path, names: Sequence[bytes], xy: Floats, facts: Sequence[str], frame: str) -> ImageSet:
    """Photos of the map at `path` from what `facts_of` gave; column `row` is the place among them."""
    try:
        parsed = [json.loads(text) for text in facts]
        file, group, camera = ([str(one[key]) for one in parsed] for key in ("file", "group", "camera"))
        numbers = np.array([[one["heading"], one["height"], *one["rotation"]] for one in parsed], np.float64)
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path}: a photo's facts in the engine cannot be read; index the photos again") from None
    numbers = numbers.reshape(len(parsed), 11)
    rotation = None if np.isnan(numbers[:, 2:]).all() else numbers[:, 2:].reshape(-1, 3, 3)
    poses = Poses(xy.reshape(-1, 2), numbers[:, 0], numbers[:, 1], rotation, frame=frame)
    columns = {"row": np.arange(len(parsed)), "file": encode_names(file)}
    images = ImageSet.of(path, encode_names(names), poses, group or "", columns=columns)
    return with_cameras(images, camera, str(path))
