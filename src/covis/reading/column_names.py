"""Columns as other tools name and write them (exiftool, QGIS, Mapillary, drones, phone apps)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.progress import say

_NAMES: dict[str, tuple[str, ...]] = {
    "image": (
        "image", "sourcefile", "photo", "imagepath", "imagename", "imagefile", "filepath", "filename", "file", "path", "name",
    ),
    "lat": ("lat", "gpslatitude", "latitude", "gpslat", "maplatitude", "latdeg"),
    "lon": ("lon", "gpslongitude", "longitude", "lng", "long", "gpslon", "gpslng", "maplongitude", "londeg"),
    "easting": ("easting", "utmeasting", "utmeast", "east"),
    "northing": ("northing", "utmnorthing", "utmnorth", "north"),
    "heading": (
        "heading", "gpsimgdirection", "gimbalyawdegree", "compassangle", "compassheading", "compass", "ca", "bearing", "azimuth",
        "yaw", "direction", "flightyawdegree",
    ),
    "altitude": ("altitude", "gpsaltitude", "absolutealtitude", "elevation", "height", "alt", "ele"),
    "time": ("time", "timestamp", "datetime", "utc"),
}  # fmt: skip
"""Meaning → names in lower case without punctuation, the best first where a table has several."""
_ANGLE = re.compile(
    r"""\s*([+-]?[\d.]+)\s*(?:(?:deg|°|d)\s*(?:([\d.]+)\s*['′m]\s*)?(?:([\d.]+)\s*["″s]\s*)?)?([NSEW])?[a-z]*\s*""",
    re.IGNORECASE,
)
_HEIGHT = re.compile(r"\s*([+-]?[\d.]+)\s*m?\s*(above sea level|below sea level)?\s*", re.IGNORECASE)


def recognise(columns: Sequence[str], meanings: Iterable[str]) -> dict[str, str]:
    """Name in the file → meaning, for those of `meanings` that no column states by its own name."""
    plain = {name: _bare_name(name) for name in columns}
    found: dict[str, str] = {}
    for meaning in meanings:
        known = _NAMES.get(meaning, ())
        if meaning in columns:
            continue
        ranked = [(known.index(text), name) for name, text in plain.items() if text in known]
        if ranked:
            found[min(ranked)[1]] = meaning
    if found.get("name") == "image" and "time" in (*columns, *recognise(columns, ["time"]).values()):
        del found["name"]  # of a point in a track
    return found


def tell_recognised(path: Path, found: Mapping[str, str]) -> None:
    """Says what was taken for what."""
    if found:
        say(f"{path}: " + ", ".join(f"{name} is read as {meaning}" for name, meaning in found.items()))


def _bare_name(name: str) -> str:
    """`EXIF:GPSLatitude`, `gps_latitude` → `gpslatitude`."""
    return re.sub(r"[^a-z]", "", name.rpartition(":")[2].lower())


def reference_column(columns: Sequence[str], name: str) -> str | None:
    """The column that says north or south, east or west, for the one of this name."""
    return next((other for other in columns if _bare_name(other) == f"{_bare_name(name)}ref"), None)


def parse_cells(path: Path, name: str, cells: Iterable[str], references: Iterable[str] | None = None) -> Floats:
    """(N,) numbers, angles such as `55 deg 42' 16.92" N` in degrees, or heights such as `12 m Above Sea Level`; NaN if empty."""
    values = np.array([_parse_cell(path, name, at, cell) for at, cell in enumerate(cells, start=2)], np.float64)
    if references is not None:
        negative = np.array([text.strip()[:1].upper() in ("S", "W") for text in references], bool)
        values = np.where(negative, -np.abs(values), values)
    return values


def _parse_cell(path: Path, name: str, row: int, cell: str) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        pass
    angle, height = _ANGLE.fullmatch(cell), _HEIGHT.fullmatch(cell)
    try:
        if height:
            return float(height[1]) * (-1 if (height[2] or "").lower().startswith("below") else 1)
        if angle:
            degrees = abs(float(angle[1])) + float(angle[2] or 0) / 60 + float(angle[3] or 0) / 3600
            negative = angle[1].startswith("-") or (angle[4] or "").upper() in ("S", "W")
            return -degrees if negative else degrees
    except ValueError:
        pass
    raise InputError(f"{path}: row {row}, column {name}: {str(cell)!r} is neither a number nor an angle; fix that cell")
