"""Columns as other tools name and write them (exiftool, QGIS, Mapillary, drones, phone apps)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from covis.core.progress import say
from covis.reading.columns import ColumnKind, Columns, header, read_columns

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


def meanings_of(path: Path, meanings: Iterable[str]) -> dict[str, str]:
    """Name in a table → meaning, or the same name."""
    names = header(path)
    found = recognise(names, meanings)
    return {name: found.get(name, name) for name in names}


def read_meanings(path: Path, meanings: Mapping[str, ColumnKind], *, others: bool = True) -> Columns:
    """The columns of a table by their meaning, as `read_columns` gives them by name; says what was taken for what."""
    names = meanings_of(path, meanings)
    found = {name: meaning for name, meaning in names.items() if name != meaning}
    if found:
        say(f"{path}: " + ", ".join(f"{name} is read as {meaning}" for name, meaning in found.items()))
    signs = {name: sign for name in found if (sign := _reference_column(names, name)) is not None}
    kinds = {**meanings, **{name: meanings[meaning] for name, meaning in found.items()}}
    cells = read_columns(path, {**kinds, **dict.fromkeys(signs.values(), "text")}, others=others)
    for name, sign in signs.items():
        negative = [text.strip()[:1].upper() in ("S", "W") for text in cells[sign].tolist()]
        cells[name] = np.where(negative, -np.abs(cells[name]), cells[name])
    return {names[name]: values for name, values in cells.items()}


def _bare_name(name: str) -> str:
    """`EXIF:GPSLatitude`, `gps_latitude` → `gpslatitude`."""
    return re.sub(r"[^a-z]", "", name.rpartition(":")[2].lower())


def _reference_column(columns: Iterable[str], name: str) -> str | None:
    """The column that says north or south, east or west, for the one of this name."""
    return next((other for other in columns if _bare_name(other) == f"{_bare_name(name)}ref"), None)
