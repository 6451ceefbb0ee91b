"""What a map takes in: images in its own frame, their files, and what is left out."""

from __future__ import annotations

import csv
import difflib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses, true_headings
from covis.progress import say
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
        raise InputError(f"{what} gives positions in {have}, the map is in {need}; use one kind")
    degrees = poses.latlon()
    return Poses.from_latlon(degrees[:, 0], degrees[:, 1], true_headings(poses), z=poses.z, frame=frame)


_NAMES_COMPARED = 10_000


def plain(images: ImageSet) -> ImageSet:
    """With heights always there, so that sets with and without them join."""
    poses = images.poses
    return replace(
        images, poses=replace(poses, z=np.full(len(poses), np.nan) if poses.z is None else poses.z, rotation=None)
    )


def stamps(files: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """(N, 2) size and time of files, so that a changed photo is embedded again."""
    found = []
    for file in files:
        try:
            status = os.stat(bytes(file))  # noqa: PTH116 - names may be bytes
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((-1, -1))
    return np.array(found, np.int64).reshape(-1, 2)


def listed(store: Path) -> list[Rejected]:
    """What a store's folder says was left out of it."""
    listing = store / REJECTS
    if not listing.is_file():
        return []
    with listing.open(newline="", encoding="utf-8", errors="surrogateescape") as handle:
        return [Rejected(*line) for line in list(csv.reader(handle))[1:]]


def list_rejects(path: Path, rejects: list[Rejected]) -> None:
    """Writes what was left out, and says so; nothing where all were taken."""
    if rejects:
        write_rejects(path, rejects)
        say(f"{len(rejects)} photos left out, listed in {path}")


def nearest_name(name: str, images: ImageSet) -> str:
    """A hint for a name that is not there."""
    names = [images.name(i) for i in range(min(len(images), _NAMES_COMPARED))]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
