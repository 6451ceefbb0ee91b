"""Answers as files, in the format that a file's ending names.

Coordinates are WGS84 degrees, headings degrees clockwise from true north.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import Answer
from covis.maps.outputs import exif, geojson, geopose, page, table
from covis.maps.outputs.geojson import to_geojson
from covis.maps.outputs.geopose import to_geopose
from covis.maps.outputs.page import write_map
from covis.maps.outputs.table import to_csv

FOLDER = "/"
"""In place of an ending: a folder of copies of the photos."""


@dataclass(frozen=True)
class Located:
    """Answers for photos, and what a page of them shows."""

    answers: Sequence[Answer]
    images: ImageSet
    """The photos of the map that gave the answers."""
    tiles: str = ""
    """Map tiles: `osm`, or an address with {z}, {x} and {y}."""
    pictures: Sequence[Path] = ()
    """Further folders whose photos may be shown."""


FORMATS = {
    ".csv": "table, one line per photo",
    ".json": "answers as --json prints them",
    ".html": "page with a map and the photos side by side",
    ".geojson": "positions, radii, matches and lines",
    ".gpkg": "positions and matches as a GeoPackage layer",
    ".geopose.json": "OGC GeoPoses",
    FOLDER: "folder of copies of the photos with GPS (EXIF)",
}
"""Ending → what is written; "/" stands for a folder."""
_WITHOUT_EARTH = (".csv", ".json", ".html")
_WRITERS: dict[str, Callable[[Path, Sequence[Answer]], str | None]] = {
    ".csv": table.write_csv,
    ".json": table.write_json,
    ".geojson": geojson.write_geojson,
    ".gpkg": geojson.write_geopackage,
    ".geopose.json": geopose.write_geopose,
    FOLDER: exif.write_copies,
}
"""Each may return what it wrote, in words, where the file's name does not say it."""


def ending_of(path: Path) -> str:
    """The key of `FORMATS` that a path is written as."""
    name = path.name.lower()
    known = [ending for ending in FORMATS if name.endswith(ending)]
    if known:
        return max(known, key=len)
    if path.is_file():
        raise InputError(f"{path} is a file; give a folder for the copies with GPS, or an ending of {_endings()}")
    if path.is_dir() or not path.suffix:
        return FOLDER
    raise InputError(f"{path} must end in {_endings()}, or be a folder for copies of the photos with GPS")


def _endings() -> str:
    *others, last = (ending for ending in FORMATS if ending != FOLDER)
    return f"{', '.join(others)} or {last}"


def check(path: Path, photos: Sequence[Path], sources: Sequence[Path] = ()) -> None:
    """Refuses, before any work, a path that cannot be written or would overwrite a photo or another of the `sources`."""
    if ending_of(path) == FOLDER:
        exif.check_folder(path, photos)
    elif path.is_dir():
        raise InputError(f"{path} is a folder; give a file")
    elif path.is_file() and any(source.is_file() and path.samefile(source) for source in (*photos, *sources)):
        raise InputError(f"{path} would overwrite a file that is read; give another output")


def check_earth(path: Path, images: ImageSet) -> None:
    """Refuses a file of degrees for a map that has no place on Earth."""
    if not images.poses.frame and ending_of(path) not in _WITHOUT_EARTH:
        raise InputError(
            f"{path} cannot show a map in metres without a place on Earth; write {', '.join(_WITHOUT_EARTH)}"
        )


def write(path: Path, located: Located) -> str:
    """Writes one file, whole or not at all (or a folder of copies); returns a line about it."""
    check_earth(path, located.images)
    if ending_of(path) == ".html":
        page.write_answers(path, located.answers, located.images, tiles=located.tiles, pictures=located.pictures)
        return f"wrote {path}"
    summary = _WRITERS[ending_of(path)](path, located.answers)
    return f"wrote {summary} to {path}" if summary else f"wrote {path}"


__all__ = [
    "FORMATS",
    "Located",
    "check",
    "check_earth",
    "ending_of",
    "to_csv",
    "to_geojson",
    "to_geopose",
    "write",
    "write_map",
]
