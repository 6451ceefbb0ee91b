"""What a user gives to a map: a folder of photos, a table, or photo files → images with positions in one frame."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.datasets.exif import read_photo
from covis.datasets.photos import LAYOUT, import_photos
from covis.datasets.screening import Rejected
from covis.datasets.table import SUFFIXES, read_table
from covis.decoding import Reject
from covis.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses


class Given(NamedTuple):
    """Images that a map can take, and what was left out."""

    images: ImageSet
    rejects: list[Rejected]


def read_given(path: Path | str, track: Path | None = None) -> Given:
    """A folder (EXIF, or a table or track beside the photos), a table, or one photo file."""
    path = Path(path)
    rejects: list[Rejected] = []
    if path.is_dir():
        imported = import_photos(path, track)
        images, rejects = imported.images(), list(imported.rejects)
    elif path.suffix.lower() in SUFFIXES:
        images = read_table(path)
    else:
        images = _one(path)
    return _placed(images, path, rejects)


def _one(path: Path) -> ImageSet:
    try:
        photo = read_photo(path)
    except Reject as reject:
        raise InputError(f"{reject}; give a photo, a folder of photos or a table") from None
    poses = Poses.from_latlon([photo.lat], [photo.lon], [photo.heading], z=[photo.altitude])
    return ImageSet.of(path.parent, [path.name], poses)


def _placed(images: ImageSet, path: Path, rejects: list[Rejected]) -> Given:
    """Only photos with a position: one without could be found, but would not say where."""
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
