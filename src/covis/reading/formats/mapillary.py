"""Photos of Mapillary beside its JSON: mapillary_tools' descriptions, or answers of the API v4.

Where Mapillary gives a corrected position, that is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign_text
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.readers import READERS, Reader

_IMAGES = (".jpg", ".jpeg", ".png", ".webp")


class _Description(NamedTuple):
    """One photo as Mapillary describes it."""

    file: str
    """Its name, with or without suffix."""
    lat: float
    lon: float
    heading: float
    altitude: float
    time: str
    group: str
    panorama: bool = False


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if np.isfinite(number) else math.nan


def _from_tools(entries: Any) -> Iterator[_Description]:
    """mapillary_tools' descriptions; entries with an `error` are left out."""
    for entry in entries:
        if "error" in entry or "MAPLatitude" not in entry:
            continue
        compass = entry.get("MAPCompassHeading") or {}
        yield _Description(
            str(entry.get("filename", "")),
            _number(entry["MAPLatitude"]),
            _number(entry.get("MAPLongitude")),
            _number(compass.get("TrueHeading", compass.get("MagneticHeading"))),
            _number(entry.get("MAPAltitude")),
            _capture_time(str(entry.get("MAPCaptureTime", ""))),
            str(entry.get("MAPSequenceUUID", "")),
        )


def _capture_time(text: str) -> str:
    """`2024_05_01_12_30_05_250` (UTC) → ISO 8601."""
    try:
        return datetime.strptime(text, "%Y_%m_%d_%H_%M_%S_%f").replace(tzinfo=UTC).isoformat()
    except ValueError:
        return ""


def _from_api(answer: Any) -> Iterator[_Description]:
    for entry in answer["data"] if isinstance(answer, dict) else answer:
        geometry = entry.get("computed_geometry") or entry.get("geometry") or {}
        place = geometry.get("coordinates") or (math.nan, math.nan)
        taken = _number(entry.get("captured_at"))
        yield _Description(
            str(entry["id"]),
            _number(place[1]),
            _number(place[0]),
            _number(entry.get("computed_compass_angle", entry.get("compass_angle"))),
            _number(entry.get("computed_altitude", entry.get("altitude"))),
            "" if np.isnan(taken) else datetime.fromtimestamp(taken / 1000, UTC).isoformat(),
            str(entry.get("sequence", entry.get("sequence_id", ""))),
            bool(entry.get("is_pano")) or entry.get("camera_type") in ("spherical", "equirectangular"),
        )


def _first_entry(value: Any) -> Mapping[str, Any]:
    entries = value.get("data") if isinstance(value, dict) else value
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}


def _documents(folder: Path) -> dict[Path, Any]:
    """The folder's JSON files that Mapillary wrote, with their content."""
    documents = {}
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            document = json.loads(read_foreign_text(file))
        except (InputError, ValueError, RecursionError):
            continue
        if {"MAPLatitude", "error", "computed_geometry", "compass_angle"} & set(_first_entry(document)):
            documents[file] = document
    return documents


def _descriptions(file: Path, document: Any) -> list[_Description]:
    by_tools = {"MAPLatitude", "error"} & set(_first_entry(document))
    try:
        return list(_from_tools(document) if by_tools else _from_api(document))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, OSError) as error:
        raise InputError(f"{file} is not what Mapillary writes ({error!r})") from None


@foreign("photos of Mapillary")
def read_mapillary(folder: Path) -> ImageSet:
    """The photos of a folder that Mapillary's JSON describes; those without a description are counted and left out."""
    documents = _documents(folder)
    rows = [row for file, document in documents.items() for row in _descriptions(file, document)]
    on_disk: dict[str, str] = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in _IMAGES):
        name = path.relative_to(folder).as_posix()
        for key in (path.stem, path.name, name):
            on_disk.setdefault(key, name)
    keys = ((key, row) for row in rows for key in (row.file, row.file.rsplit("/", 1)[-1], Path(row.file).stem))
    described = {on_disk[key]: row for key, row in keys if key in on_disk}
    listing = next(iter(documents)).name if documents else "no JSON file"
    if not described:
        raise InputError(f"{folder}: none of the {len(rows)} photos that {listing} describes is there; download them")
    missing = len(set(on_disk.values())) - len(described)
    if missing:
        warn(f"{folder}: {missing} photos are not in {listing} and are left out")
    return _image_set(folder, described)


def _image_set(folder: Path, described: Mapping[str, _Description]) -> ImageSet:
    rows = list(described.values())
    lat, lon, heading, altitude = np.array([(r.lat, r.lon, r.heading, r.altitude) for r in rows]).T
    unknown = (np.abs(lat) > 90) | (np.abs(lon) > 180) | ((lat == 0) & (lon == 0)) | np.isnan(lat) | np.isnan(lon)
    lat, lon = np.where(unknown, np.nan, lat), np.where(unknown, np.nan, lon)
    heading = np.where(heading < 0, np.nan, heading)
    poses = Poses.from_latlon(lat, lon, heading, z=None if np.isnan(altitude).all() else altitude)
    columns = {
        "time": np.array([r.time for r in rows], dtype=str),
        "is_panorama": np.array([r.panorama for r in rows], np.bool_),
    }
    return ImageSet.of(folder, list(described), poses, [r.group for r in rows], columns=columns)


READERS.register("mapillary")(Reader(lambda path: bool(_documents(path)), read_mapillary))
