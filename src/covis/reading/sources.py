"""The single opener of images: a table, a folder of photos, one photo, any source with camera poses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covis.core.errors import InputError
from covis.core.foreign import foreign
from covis.core.listings import walk_images
from covis.core.plugins import load_installed_plugins
from covis.core.registry import Registry, first_doc_line
from covis.images import ImageSet
from covis.poses import Poses, require_metres
from covis.reading.decoding import Reject, Rejected
from covis.reading.exif import read_photo
from covis.reading.formats import colmap
from covis.reading.photos import LAYOUT, import_photos, parse_utc_offset
from covis.reading.table import SUFFIXES, read_table
from covis.reading.walks import with_walks

_VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".avi", ".webm", ".360", ".insv", ".ts", ".mts")
_BAGS = (".bag", ".mcap", ".db3")


@dataclass(frozen=True)
class Reader:
    """How a foreign format of images with poses is recognised and read; a plugin may register another."""

    holds: Callable[[Path], bool]
    """Whether a path, file or folder, is of this format."""
    read: Callable[[Path], ImageSet]


READERS: Registry[Reader] = Registry("reader", lambda reader: first_doc_line(reader.read))
"""Where several recognise a path, the first by name reads it."""
READERS.register("colmap")(Reader(colmap.is_model, colmap.read_colmap))


def is_video(path: Path) -> bool:
    """Whether a file's name is that of a video."""
    return path.suffix.lower() in _VIDEOS


def is_bag(path: Path) -> bool:
    """Whether a path is a ROS 1 bag, a ROS 2 bag folder or an MCAP file."""
    return path.suffix.lower() in _BAGS or (path / "metadata.yaml").is_file()


@foreign("images with poses")
def read_posed(path: Path) -> ImageSet | None:
    """The images of a source with poses; None where the path is none that a reader knows."""
    if is_bag(path) or is_video(path):
        raise InputError(f"{path} must be imported first: covis data import {path} -o {path.stem}.csv --every 2s")
    load_installed_plugins()
    reader = next((reader for reader in READERS.values() if reader.holds(path)), None)
    return None if reader is None else reader.read(path)


def open_images(
    path: Path | str,
    track: Path | str | None = None,
    *,
    positions: bool = False,
    rejects: list[Rejected] | None = None,
    frame: str = "",
    utc_offset: str = "",
) -> ImageSet:
    """The images at `path` with what is known of them; positions may be unknown.

    A table (CSV, Parquet, GeoJSON), a folder of photos (EXIF, a table or track beside them), one photo,
    or a COLMAP model or what else a registered reader knows.
    track: a table or track (GPX) with the positions of a folder's photos. positions: leave out images without one,
    raise if none has one in metres, and make walks the groups (`covis.reading.walks`). rejects: takes what was left out, and why. frame: the metric frame of a table's or
    folder's positions (PROJ text or EPSG code). [default: one around their middle] utc_offset: of the cameras' clock, such
    as +02:00, where photos that a track places do not state it.

    >>> import tempfile
    >>> table = Path(tempfile.mkdtemp()) / "photos.csv"
    >>> _ = table.write_text("image,easting,northing,heading\\na.jpg,0,0,90\\nb.jpg,5,0,270\\n")
    >>> images = open_images(table)
    >>> len(images), images.poses.heading.tolist()
    (2, [90.0, 270.0])
    """
    path, lost = Path(path), [] if rejects is None else rejects
    images = _open_any(path, track, parse_utc_offset(utc_offset), positions, lost, frame)
    return with_walks(_only_positioned(images, path, lost)) if positions else images


def _open_any(
    path: Path, track: Path | str | None, utc_offset_s: float | None, positions: bool, lost: list[Rejected], frame: str
) -> ImageSet:
    if path.suffix.lower() in SUFFIXES:
        return read_table(path, frame)
    posed = read_posed(path) if track is None else None
    if posed is not None:
        return posed
    if not path.is_dir():
        return _open_photo(path)
    imported = import_photos(path, track, utc_offset_s=utc_offset_s, positions=positions)
    lost += imported.rejects
    return imported.images(frame)


def list_images(path: Path) -> ImageSet:
    """Images as `open_images` reads them; of a plain folder only the names, as descriptors need no positions."""
    posed = read_posed(path) if path.is_dir() else open_images(path)
    if posed is not None:
        return posed
    names = walk_images(path)
    if not names:
        raise InputError(f"{path} holds no images; expected files such as {path}/photo.jpg")
    unknown = np.full((len(names), 2), np.nan)
    return ImageSet.of(path, names, Poses(unknown, unknown[:, 0]))


def _open_photo(path: Path) -> ImageSet:
    """A photo by itself."""
    try:
        photo = read_photo(path)
    except Reject as reject:
        raise InputError(f"{reject}; give a photo, a folder of photos or a table") from None
    poses = Poses.from_latlon([photo.lat], [photo.lon], [photo.heading], z=[photo.altitude])
    return ImageSet.of(path.parent, [path.name], poses)


def _only_positioned(images: ImageSet, path: Path, lost: list[Rejected]) -> ImageSet:
    """Only images with a position: one without could be matched, but would give no place."""
    require_metres(images.poses, str(path))
    known = images.poses.known
    if not known.any():
        raise InputError(f"{path}: no photo has a position, so photos cannot be located; expected {LAYOUT}")
    lost += [Rejected(images.name(int(i)), "no-position", "not in the map") for i in np.flatnonzero(~known)]
    return images if known.all() else images.subset(known)
