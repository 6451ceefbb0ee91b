"""Importing photos from anything that holds them into a table, as `covis data import` does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import Axis
from covis.reading.decoding import REJECTS, Rejected, write_rejects
from covis.reading.formats import colmap
from covis.reading.frames import Every
from covis.reading.georeference import exif_positions, georeference, known_positions, scaled
from covis.reading.photos import import_photos, parse_utc_offset
from covis.reading.sources import is_bag, is_video, read_posed
from covis.reading.table import read_table, write_images
from covis.reading.tracks import Track, names_images, read_track


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


def import_source(source: Path, output: Path, options: ImportOptions) -> dict[str, Any]:
    """Writes the images of a source as a table, with frames beside it; returns counts of what it holds."""
    images, rejects = _gather(source, output, options)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_images(images, output)
    if rejects:
        write_rejects(output.parent / REJECTS, rejects)
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
        "rejects": dict(Counter(r.reason for r in rejects)),
        "rejects_file": str(output.parent / REJECTS) if rejects else None,
    }


def _gather(source: Path, output: Path, options: ImportOptions) -> tuple[ImageSet, list[Rejected]]:
    """The images of any source, and what was left out."""
    frames = options.frames or output.with_suffix(".frames")
    if is_video(source):
        options.only("a video", "track", "every", "clock_offset", "mount", "frames")
        return _from_video(source, frames, options)
    if is_bag(source):
        from covis.reading.formats.bag import import_bag

        options.only("a bag", "every", "topic", "poses", "frames")
        every = Every.parse(options.every) if options.every else None
        return import_bag(source, frames, every, topic=options.topic, poses=options.poses)
    posed = _from_posed(source, options)
    if posed is not None:
        return posed, []
    options.only("a folder of photos", "track", "utc_offset")
    offset = parse_utc_offset(options.utc_offset)
    imported = import_photos(source, options.track, utc_offset_s=offset, output=output)
    return imported.images(), imported.rejects


def _from_video(source: Path, frames: Path, options: ImportOptions) -> tuple[ImageSet, list[Rejected]]:
    from covis.reading.formats.video import import_video

    track = _time_track(options.track)
    every = Every.parse(options.every or "2s")
    return import_video(source, frames, every, track=track, offset_s=options.clock_offset, mount_deg=options.mount)


def _time_track(path: Path | None) -> Track | None:
    if path is None:
        return None
    if names_images(path):
        raise InputError(f"{path} gives positions by image name; a video needs a track by time, such as GPX")
    return read_track(path)


def _from_posed(source: Path, options: ImportOptions) -> ImageSet | None:
    """Images of a source with poses, scaled and georeferenced as asked; None for a plain folder of photos."""
    up = cast(Axis, options.up) if options.up else None
    is_colmap = colmap.is_model(source)
    images = colmap.read_colmap(source, up) if is_colmap else read_posed(source)
    if images is None:
        return None
    options.only(f"a source like {source}", "scale", "georeference", *(["up"] if is_colmap else []))
    if options.scale is not None and options.georeference:
        raise InputError("give --scale or --georeference, not both: georeferenced images fix the scale too")
    if options.scale is not None:
        return replace(images, poses=scaled(images.poses, options.scale))
    if options.georeference:
        exif = options.georeference == "exif"
        known = exif_positions(images) if exif else known_positions(images, read_table(options.georeference))
        return georeference(images, known)
    return images
