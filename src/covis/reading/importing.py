"""Importing photos from anything that holds them into a table, as `covis data import` does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import Axis, Poses
from covis.reading.decoding import REJECTS, Rejected, write_rejects
from covis.reading.formats.colmap import read_reconstruction
from covis.reading.frames import Every
from covis.reading.georeference import exif_positions, georeference, known_positions, scaled, warn_of_course
from covis.reading.photos import import_photos, parse_utc_offset
from covis.reading.pose_columns import write_images
from covis.reading.sources import is_bag, is_video, open_posed, posed_format
from covis.reading.table import read_table
from covis.reading.tracks import Track, names_images, read_track

_BAG, _VIDEO, _PHOTOS = "a bag", "a video", "a folder of photos"


class ImportOptions(NamedTuple):
    """How a source is read; None, empty or 0 where an option is not given."""

    track: Path | None
    utc_offset: str
    every: str
    clock_offset: float
    mount: float | None
    frames: Path | None
    topic: str | None
    poses: str | None
    scale: float | None
    georeference: str
    up: str

    def only(self, kind: str, *allowed: str) -> None:
        """Raises an error for an option that this kind of source does not use."""
        for name, value in self._asdict().items():
            if value not in (None, "", False, 0) and name not in allowed:
                raise InputError(f"--{name.replace('_', '-')} does not belong to {kind}; leave it out")


class Gathered(NamedTuple):
    """Images and what was left out."""

    images: ImageSet
    rejects: list[Rejected]


def import_source(source: Path, output: Path, options: ImportOptions) -> dict[str, Any]:
    """Writes the images of a source as a table, with frames beside it; returns counts of what it holds."""
    gathered = _gather_images(source, output, options)
    if gathered is None:
        options.only(_PHOTOS, "track", "utc_offset")
        offset = parse_utc_offset(options.utc_offset)
        imported = import_photos(source, options.track, utc_offset_s=offset, output=output)
        gathered = Gathered(imported.images(), list(imported.rejects))
    return _write_gathered(gathered, output)


def _gather_images(source: Path, output: Path, options: ImportOptions) -> Gathered | None:
    """Images of any source except a plain folder of photos, for which it returns None."""
    folder = options.frames or output.with_suffix(".frames")
    if is_video(source):
        options.only(_VIDEO, "track", "every", "clock_offset", "mount", "frames")
        return _from_video(source, folder, options)
    if is_bag(source):
        options.only(_BAG, "every", "topic", "poses", "frames")
        return _from_bag(source, folder, options)
    images = _posed_images(source, options)
    return None if images is None else Gathered(images, [])


def _from_video(source: Path, folder: Path, options: ImportOptions) -> Gathered:
    from covis.reading.formats.video import import_video

    images, done = import_video(
        source,
        folder,
        Every.parse(options.every or "2s"),
        track=_time_track(options.track),
        offset_s=options.clock_offset,
        mount_deg=options.mount,
    )
    return Gathered(images, done.left_out)


def _from_bag(source: Path, folder: Path, options: ImportOptions) -> Gathered:
    from covis.reading.formats.bag import import_bag

    every = Every.parse(options.every) if options.every else None
    images, done = import_bag(source, folder, every, topic=options.topic, poses=options.poses)
    return Gathered(images, done.left_out)


def _time_track(path: Path | None) -> Track | None:
    if path is None:
        return None
    if not path.is_file():
        raise InputError(f"{path} does not exist; check --track")
    if names_images(path):
        raise InputError(f"{path} gives positions by image name; a video needs a track by time, such as GPX")
    return read_track(path)


def _posed_images(source: Path, options: ImportOptions) -> ImageSet | None:
    """Images of a source with poses, scaled and placed as asked; None for a plain folder of photos."""
    kind, allowed = posed_format(source), ["scale", "georeference"]
    if kind == "colmap":
        images: ImageSet | None = _colmap_images(source, options.up)
        allowed.append("up")
    else:
        images = open_posed(source)
    if images is None:
        return None
    options.only(f"a source like {source}", *allowed)
    if options.scale is not None and options.georeference:
        raise InputError("give --scale or --georeference, not both: georeferenced images fix the scale too")
    if options.scale is not None:
        images = replace(images, poses=scaled(images.poses, options.scale))
    elif options.georeference:
        images = georeference(images, _known_positions(images, options.georeference))
        warn_of_course(images, str(source))
    return images


def _colmap_images(source: Path, up: str) -> ImageSet:
    images = read_reconstruction(source).image_set(up=cast(Axis, up) if up else None)
    warn_of_course(images, str(source))
    return images


def _known_positions(images: ImageSet, given: str) -> Poses:
    """Where images are known to be, by a table or by their own EXIF."""
    return exif_positions(images) if given == "exif" else known_positions(images, read_table(Path(given)))


def _write_gathered(gathered: Gathered, output: Path) -> dict[str, Any]:
    images = gathered.images
    output.parent.mkdir(parents=True, exist_ok=True)
    write_images(images, output)
    if gathered.rejects:
        write_rejects(output.parent / REJECTS, gathered.rejects)
    rotation = images.poses.rotation
    return {
        "table": str(output),
        "photos": len(images),
        "positions": int(images.poses.known.sum()),
        "headings": int((~np.isnan(images.poses.heading)).sum()),
        "rotations": 0 if rotation is None else int((~np.isnan(rotation[:, 0, 0])).sum()),
        "cameras": 0 if images.intrinsics is None else int((~np.isnan(images.intrinsics[:, 4])).sum()),
        "groups": len(images.group_names),
        "frame": images.poses.frame,
        "rejects": dict(Counter(r.reason for r in gathered.rejects)),
        "rejects_file": str(output.parent / REJECTS) if gathered.rejects else None,
    }
