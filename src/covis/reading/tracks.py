"""Positions from a file beside the photos: a table by image name, or a track by time (GPX, CSV, Parquet).

A track gives positions only: which way the camera looked does not follow from which way it moved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign
from covis.core.progress import warn
from covis.reading.column_names import parse_cells, recognise, tell_recognised
from covis.reading.columns import header, read_columns, texts
from covis.reading.decoding import REJECTS

_SUFFIXES = (".gpx", ".csv", ".parquet", ".pq")
MAX_GAP_S = 60.0
"""Between two points further apart than this, a position is not interpolated."""


@dataclass(frozen=True, eq=False)
class Track:
    """Points in time order."""

    time_s: Floats
    """(N,) seconds since 1970."""
    lat: Floats
    lon: Floats
    altitude: Floats
    segment: NDArray[np.int64]
    """(N,) points of different segments are not joined."""

    def at(self, when_s: Floats) -> Floats:
        """(M, 3) latitude, longitude and altitude at each time; NaN outside the track or in a gap."""
        right = np.clip(np.searchsorted(self.time_s, when_s, side="left"), 1, max(1, len(self.time_s) - 1))
        left = right - 1
        if len(self.time_s) < 2:
            left = right = np.zeros(len(when_s), np.int64)
        span = self.time_s[right] - self.time_s[left]
        share = np.divide(when_s - self.time_s[left], span, out=np.zeros(len(when_s)), where=span > 0)
        exact = (when_s == self.time_s[left]) | (when_s == self.time_s[right])
        joined = (span <= MAX_GAP_S) & (self.segment[left] == self.segment[right])
        inside = (when_s >= self.time_s[0]) & (when_s <= self.time_s[-1]) & (joined | exact)
        columns = [
            _interpolate(self.lat, left, right, share),
            _interpolate_longitude(self.lon, left, right, share),
            _interpolate(self.altitude, left, right, share),
        ]
        return np.where(inside[:, None], np.column_stack(columns), np.nan)


@foreign("a table or track")
def names_images(path: Path) -> bool:
    """Whether the file gives positions by image name, rather than by time."""
    if path.suffix.lower() == ".gpx":
        return False
    names = header(path)
    return "image" in (*names, *recognise(names, ["image"]).values())


@foreign("a track")
def read_track(path: Path) -> Track:
    """The track of a GPX, CSV or Parquet file."""
    rows = _read_gpx(path) if path.suffix.lower() == ".gpx" else _read_columns(path)
    times, lat, lon, altitude, segment = rows
    lost = ((lat == 0) & (lon == 0)) | ~np.isfinite(lat) | ~np.isfinite(lon) | (np.abs(lat) > 90) | ~np.isfinite(times)
    if lost.any():
        warn(f"{path}: {int(lost.sum())} points without a position on Earth (exactly 0, 0 is none) are left out")
        times, lat, lon, altitude, segment = (column[~lost] for column in rows)
    if not len(times):
        raise InputError(f"{path} has no point with a position and a time; expected a track")
    order = np.argsort(times, kind="stable")
    return Track(times[order], lat[order], lon[order], altitude[order], segment[order])


TrackColumns = tuple[Floats, Floats, Floats, Floats, NDArray[np.int64]]


def _read_gpx(path: Path) -> TrackColumns:
    try:
        root = ElementTree.fromstring(read_foreign(path))
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is not a GPX file ({error})") from None
    points = []
    for number, segment in enumerate(e for e in root.iter() if _local_name(e.tag) == "trkseg"):
        for point in segment:
            inside = {_local_name(child.tag): (child.text or "").strip() for child in point}
            if _local_name(point.tag) == "trkpt" and inside.get("time"):
                where = (point.get("lat", ""), point.get("lon", ""), inside.get("ele", "nan") or "nan")
                points.append((_unix_seconds(path, inside["time"]), *_numbers(path, where), number))
    return _point_columns(points)


def _read_columns(path: Path) -> TrackColumns:
    columns = header(path)
    found = recognise(columns, ("time", "lat", "lon", "altitude"))
    at = {meaning: name for name, meaning in found.items()}
    lost = [name for name in ("time", "lat", "lon") if name not in (*columns, *at)]
    if lost:
        raise InputError(f"{path} has no column {lost[0]}; a track needs time,lat,lon and a table image,lat,lon")
    tell_recognised(path, found)
    wanted = [at.get(name, name) for name in ("time", "lat", "lon", "altitude")]
    cells = read_columns(path, dict.fromkeys(wanted, "text"), others=False)
    times = np.array([_unix_seconds(path, t) for t in texts(cells[wanted[0]])], np.float64)
    lat, lon, altitude = (
        parse_cells(path, name, texts(cells[name])) if name in cells else np.full(len(times), np.nan)
        for name in wanted[1:]
    )
    return times, lat, lon, altitude, np.zeros(len(times), np.int64)


def _point_columns(points: Sequence[Sequence[float]]) -> TrackColumns:
    table = np.array(points, np.float64).reshape(-1, 5)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4].astype(np.int64)


def _unix_seconds(path: Path, value: Any) -> float:
    """A time with its zone, or seconds since 1970."""
    text = str(value).strip()
    try:
        return float(text)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{path}: {text!r} is not a time; expected one like 2024-05-01T12:00:00Z") from None
    if when.tzinfo is None:
        raise InputError(f"{path}: {text!r} has no time zone; expected one like 2024-05-01T12:00:00Z")
    return when.timestamp()


def _numbers(path: Path, values: Sequence[Any]) -> list[float]:
    try:
        return [float(v) for v in values]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: a point has a wrong position ({error})") from None


def _interpolate(values: Floats, left: NDArray[np.int64], right: NDArray[np.int64], share: Floats) -> Floats:
    mixed: Floats = values[left] + share * (values[right] - values[left])
    return mixed


def _interpolate_longitude(values: Floats, left: NDArray[np.int64], right: NDArray[np.int64], share: Floats) -> Floats:
    """Along the shorter way round, also across the antimeridian."""
    turn = (values[right] - values[left] + 180.0) % 360.0 - 180.0
    mixed: Floats = (values[left] + share * turn + 180.0) % 360.0 - 180.0
    return mixed


def _local_name(tag: str) -> str:
    return tag.rsplit("}", 1)[-1]


def tracks_beside(folder: Path, output: Path | None = None) -> list[Path]:
    """Tables and tracks that lie directly in a folder; files that covis itself writes there do not count."""
    own = {folder / REJECTS, *([] if output is None else [output])}
    skipped = {path.resolve() for path in own}
    candidates = (p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES and not p.name.startswith("."))
    return sorted(p for p in candidates if p.resolve() not in skipped)


def same_file(name: str, base: Path) -> str:
    """A name relative to `base`, normalised to compare with others."""
    return os.path.normpath(os.path.join(base, name))  # noqa: PTH118 - normpath keeps odd bytes and does not resolve
