"""The single opener of images: a folder, a table, a layer, photos, any source with camera poses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from covis.core.errors import InputError
from covis.core.files import foreign
from covis.images import ImageSet
from covis.poses import Poses, require_metres
from covis.reading import colmap, scenes, trajectories
from covis.reading.decoding import Reject, Rejected
from covis.reading.georeference import warn_of_course
from covis.reading.photos import LAYOUT, import_photos, read_photo
from covis.reading.scenes import read_street_level, service_of
from covis.reading.table import SUFFIXES, read_table

Reader = Callable[[Path], ImageSet]


def _colmap(path: Path) -> ImageSet:
    return colmap.read_reconstruction(path).image_set()


def _tum_file(path: Path) -> ImageSet:
    return trajectories.read_tum(path.parent, path)


def _is_tum_file(path: Path) -> bool:
    if path.suffix.lower() not in (".txt", ".tum") or not (path.parent / "rgb.txt").is_file() or path.name == "rgb.txt":
        return False
    rows = trajectories.cells_of(path)
    return bool(rows) and len(rows[0][1]) == 8


def _is_kitti(path: Path) -> bool:
    return (path / "calib.txt").is_file() and any((path / f"image_{n}").is_dir() for n in range(4))


def _is_seven_scenes(path: Path) -> bool:
    return path.is_dir() and ((path / "TrainSplit.txt").is_file() or any(path.glob("frame-*.pose.txt")))


FORMATS: dict[str, tuple[Callable[[Path], bool], Reader]] = {
    "COLMAP model": (lambda p: p.is_dir() and colmap.find_model(p) is not None, _colmap),
    "nerfstudio transforms": (lambda p: p.is_file() and p.name == "transforms.json", scenes.read_nerfstudio),
    "nerfstudio folder": (
        lambda p: (p / "transforms.json").is_file(),
        lambda p: scenes.read_nerfstudio(p / "transforms.json"),
    ),
    "kapture": (lambda p: (p / "sensors" / "records_camera.txt").is_file(), scenes.read_kapture),
    "nuScenes": (lambda p: p.is_dir() and any(p.glob("v1.0-*/sample_data.json")), scenes.read_nuscenes),
    "EuRoC": (lambda p: any((p / i / "cam0" / "data.csv").is_file() for i in ("mav0", ".")), trajectories.read_euroc),
    "KITTI": (_is_kitti, trajectories.read_kitti),
    "TUM": (lambda p: (p / "rgb.txt").is_file() and (p / "groundtruth.txt").is_file(), trajectories.read_tum),
    "7Scenes": (_is_seven_scenes, trajectories.read_seven_scenes),
    "TUM trajectory": (lambda p: p.is_file() and _is_tum_file(p), _tum_file),
    "hloc query list": (lambda p: p.suffix == ".txt" and scenes.is_query_list(p), scenes.read_query_list),
}
"""Name → (whether a path holds it, its reader)."""


_VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".avi", ".webm", ".360", ".insv", ".ts", ".mts")
_BAGS = (".bag", ".mcap", ".db3")


def is_video(path: Path) -> bool:
    """Whether a file's name is that of a video."""
    return path.suffix.lower() in _VIDEOS


def is_bag(path: Path) -> bool:
    """Whether a path is a ROS 1 bag, a ROS 2 bag folder or an MCAP file."""
    return path.suffix.lower() in _BAGS or (path / "metadata.yaml").is_file()


def posed_format(path: Path) -> str | None:
    """The name of the format with camera poses that lies at `path`."""
    return next((name for name, (holds, _) in FORMATS.items() if holds(path)), None)


@foreign("images with poses")
def read_posed(path: Path | str) -> ImageSet | None:
    """The images with their poses; None where the path holds none of these formats."""
    path = Path(path)
    name = posed_format(path)
    if name is None:
        return None
    images = FORMATS[name][1](path)
    warn_of_course(images, str(path))
    return images


# The single opener of images: a folder, a table, a layer, a photo, or any source with camera poses.


def open_images(
    path: Path | str,
    track: Path | str | None = None,
    *,
    positions: bool = False,
    rejects: list[Rejected] | None = None,
    frame: str = "",
) -> ImageSet:
    """The images at `path` with what is known of them; positions may be unknown.

    A table (CSV, Parquet, GeoJSON, GeoPackage, GeoParquet), a folder of photos (EXIF, a table or track beside them, a
    street-level service's JSON), one photo, or a source of posed images (COLMAP, nerfstudio, kapture, nuScenes, TUM,
    KITTI, EuRoC, 7Scenes, hloc's lists).
    track: a table or track (GPX) with the positions of a folder's photos. positions: leave out images without one, and
    raise if none has one in metres. rejects: takes what was left out, and why. frame: the metric frame of a table's or
    folder's positions (PROJ text or EPSG code). [default: one around their middle]

    >>> import tempfile
    >>> table = Path(tempfile.mkdtemp()) / "photos.csv"
    >>> _ = table.write_text("image,easting,northing,heading\\na.jpg,0,0,90\\nb.jpg,5,0,270\\n")
    >>> images = open_images(table)
    >>> len(images), images.poses.heading.tolist()
    (2, [90.0, 270.0])
    """
    path, lost = Path(path), [] if rejects is None else rejects
    images = _opened(path, track, positions, lost, frame)
    return _positioned(images, path, lost) if positions else images


def _opened(path: Path, track: Path | str | None, positions: bool, lost: list[Rejected], frame: str) -> ImageSet:
    if path.suffix.lower() in SUFFIXES:
        return read_table(path, frame)
    posed = open_posed(path) if track is None else None
    if posed is not None:
        return posed
    if not path.is_dir():
        return _one(path)
    imported = import_photos(path, track, positions=positions)
    lost += imported.rejects
    return replace(imported, frame=frame).images()


def open_posed(path: Path) -> ImageSet | None:
    """Images of a source that is more than photos or a table; None where the path is no such source."""
    if is_bag(path) or is_video(path):
        raise InputError(f"{path} must be imported first: covis data import {path} -o {path.stem}.csv --every 2s")
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
    """Only images with a position: one without could be matched, but would give no place."""
    require_metres(images.poses, str(path))
    known = images.poses.known
    if not known.any():
        raise InputError(f"{path}: no photo has a position, so photos cannot be located; expected {LAYOUT}")
    lost += [Rejected(images.name(int(i)), "no-position", "not in the map") for i in np.flatnonzero(~known)]
    return images if known.all() else images.subset(known)
