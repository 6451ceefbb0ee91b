"""ONE opener of images: a folder, a table, a layer, a photo, or any source with camera poses."""

from __future__ import annotations

from pathlib import Path

from covis.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading import bags, video
from covis.reading.decoding import Reject
from covis.reading.exif import read_photo
from covis.reading.photos import import_photos
from covis.reading.posed import read_posed
from covis.reading.street_level import read_street_level, service_of
from covis.reading.table import SUFFIXES, read_table


def open_images(path: Path | str) -> ImageSet:
    """The images at `path` with what is known of them; positions may be unknown.

    A table (CSV, Parquet, GeoJSON, GeoPackage, GeoParquet), a folder of photos (EXIF, a table or track beside them, a
    street-level service's JSON), one photo, or a source of posed images (COLMAP, nerfstudio, kapture, nuScenes, TUM,
    KITTI, EuRoC, hloc's lists).
    """
    path = Path(path)
    if path.suffix.lower() in SUFFIXES:
        return read_table(path)
    posed = open_posed(path)
    if posed is not None:
        return posed
    return import_photos(path, positions=False).images() if path.is_dir() else _one(path)


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
