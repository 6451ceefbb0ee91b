"""ONE opener of images: a folder, a table, a layer, a photo, or any source with camera poses."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covis.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses, require_metres
from covis.reading import bags, video
from covis.reading.decoding import Reject
from covis.reading.exif import read_photo
from covis.reading.photos import LAYOUT, import_photos
from covis.reading.posed import read_posed
from covis.reading.screening import Rejected
from covis.reading.street_level import read_street_level, service_of
from covis.reading.table import SUFFIXES, read_table


def open_images(
    path: Path | str,
    track: Path | str | None = None,
    *,
    positions: bool = False,
    rejects: list[Rejected] | None = None,
) -> ImageSet:
    """The images at `path` with what is known of them; positions may be unknown.

    A table (CSV, Parquet, GeoJSON, GeoPackage, GeoParquet), a folder of photos (EXIF, a table or track beside them, a
    street-level service's JSON), one photo, or a source of posed images (COLMAP, nerfstudio, kapture, nuScenes, TUM,
    KITTI, EuRoC, hloc's lists).
    track: a table or track (GPX) with the positions of a folder's photos. positions: leave out images without one, and
    raise where none has one, in metres. rejects: takes what was left out, and why.

    >>> import tempfile
    >>> table = Path(tempfile.mkdtemp()) / "photos.csv"
    >>> _ = table.write_text("image,easting,northing,heading\\na.jpg,0,0,90\\nb.jpg,5,0,270\\n")
    >>> images = open_images(table)
    >>> len(images), images.poses.heading.tolist()
    (2, [90.0, 270.0])
    """
    path, lost = Path(path), [] if rejects is None else rejects
    images = _opened(path, track, positions, lost)
    return _positioned(images, path, lost) if positions else images


def _opened(path: Path, track: Path | str | None, positions: bool, lost: list[Rejected]) -> ImageSet:
    if path.suffix.lower() in SUFFIXES:
        return read_table(path)
    posed = open_posed(path) if track is None else None
    if posed is not None:
        return posed
    if not path.is_dir():
        return _one(path)
    imported = import_photos(path, track, positions=positions)
    lost += imported.rejects
    return imported.images()


def open_posed(path: Path) -> ImageSet | None:
    """Images of a source that is more than photos or a table; None where the path is no such source."""
    if bags.is_bag(path) or video.is_video(path):
        raise InputError(f"{path} has to be taken apart first: covis data import {path} -o {path.stem}.csv --every 2s")
    posed = read_posed(path)
    if posed is not None:
        return posed
    return read_street_level(path) if path.is_dir() and service_of(path) is not None else None


def _one(path: Path) -> ImageSet:
    """A photo by itself."""
    try:
        photo = read_photo(path)
    except Reject as reject:
        raise InputError(f"{reject}; give a photo, a folder of photos or a table") from None
    poses = Poses.from_latlon([photo.lat], [photo.lon], [photo.heading], z=[photo.altitude])
    return ImageSet.of(path.parent, [path.name], poses)


def _positioned(images: ImageSet, path: Path, lost: list[Rejected]) -> ImageSet:
    """Only images with a position: one without could be found, but would not say where."""
    require_metres(images.poses, str(path))
    known = images.poses.known
    if not known.any():
        raise InputError(f"{path}: no photo has a position, so there is nothing to locate by; expected {LAYOUT}")
    lost += [Rejected(images.name(int(i)), "no-position", "not in the map") for i in np.flatnonzero(~known)]
    return images if known.all() else images.subset(known)
