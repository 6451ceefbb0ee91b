"""What a user gives to a map: photos, folders and tables → images with positions in the map's frame."""

from __future__ import annotations

import csv
import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.descriptors import DescriptorStore
from covis.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses, require_metres
from covis.progress import say
from covis.reading.photos import LAYOUT, import_photos
from covis.reading.screening import REJECTS, Rejected, write_rejects
from covis.reading.sources import open_images, open_posed


class Given(NamedTuple):
    """Images that a map can take, and what was left out."""

    images: ImageSet
    rejects: list[Rejected]


def read_given(path: Path | str, track: Path | None = None) -> Given:
    """A folder (EXIF, or a table or track beside the photos), or whatever else `open_images` opens."""
    path = Path(path)
    rejects: list[Rejected] = []
    images = open_posed(path) if track is None else None
    if images is None and path.is_dir():
        imported = import_photos(path, track)
        images, rejects = imported.images(), list(imported.rejects)
    return _placed(open_images(path) if images is None else images, path, rejects)


def _placed(images: ImageSet, path: Path, rejects: list[Rejected]) -> Given:
    """Only photos with a position: one without could be found, but would not say where."""
    require_metres(images.poses, str(path))
    known = images.poses.known
    if not known.any():
        raise InputError(f"{path}: no photo has a position, so there is nothing to locate by; expected {LAYOUT}")
    lost = [Rejected(images.name(int(i)), "no-position", "not in the map") for i in np.flatnonzero(~known)]
    return Given(images if known.all() else images.subset(known), rejects + lost)


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


def true_headings(poses: Poses) -> NDArray[np.float64]:
    """(N,) degrees from true north where the frame has a place on Earth, otherwise from its own north."""
    if not poses.frame:
        return poses.heading
    degrees = poses.latlon()
    north = Poses.from_latlon(degrees[:, 0], degrees[:, 1], np.zeros(len(poses)), frame=poses.frame)
    return np.asarray((poses.heading - north.heading) % 360.0)


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


def listed(store: DescriptorStore, lost: list[Rejected]) -> list[Rejected]:
    """Rejects of a segment as it lists them, or `lost` where it lists none."""
    listing = store.path / REJECTS
    if not listing.is_file():
        return lost
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
