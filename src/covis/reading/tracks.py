"""Positions from a file beside the photos: a table by image name, or a track by time (GPX, CSV, Parquet).

A track gives positions only: which way the camera looked does not follow from which way it moved.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign
from covis.core.progress import warn
from covis.reading.column_names import meanings_of, read_meanings
from covis.reading.columns import ColumnKind
from covis.reading.decoding import REJECTS

_SUFFIXES = (".gpx", ".csv", ".parquet", ".pq")
_KINDS: dict[str, ColumnKind] = {"time": "text", "lat": "number", "lon": "number", "altitude": "number"}
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
        right = np.clip(np.searchsorted(self.time_s, when_s), 0, len(self.time_s) - 1)
        left = np.maximum(right - 1, 0)
        near = self.time_s[right] - self.time_s[left] <= MAX_GAP_S
        joined = near & (self.segment[left] == self.segment[right]) | (self.time_s[right] == when_s)
        known = (when_s >= self.time_s[0]) & (when_s <= self.time_s[-1]) & joined
        shorter_way = np.unwrap(self.lon, period=360.0)
        place = [np.interp(when_s, self.time_s, values) for values in (self.lat, shorter_way, self.altitude)]
        place[1] = (place[1] + 180.0) % 360.0 - 180.0
        return np.where(known[:, None], np.column_stack(place), np.nan)


@foreign("a table or track")
def names_images(path: Path) -> bool:
    """Whether the file gives positions by image name, rather than by time."""
    return path.suffix.lower() != ".gpx" and "image" in meanings_of(path, ["image"]).values()


@foreign("a track")
def read_track(path: Path) -> Track:
    """The track of a GPX, CSV or Parquet file."""
    points = _read_gpx(path) if path.suffix.lower() == ".gpx" else _read_columns(path)
    times, lat = points[:, 0], points[:, 1]
    lost = (points[:, 1:3] == 0).all(axis=1) | ~np.isfinite(points[:, :3]).all(axis=1) | (np.abs(lat) > 90)
    if lost.any():
        warn(f"{path}: {int(lost.sum())} points without a position on Earth (exactly 0, 0 is none) are left out")
    if lost.all():
        raise InputError(f"{path} has no point with a position and a time; expected a track")
    points = points[~lost][np.argsort(times[~lost], kind="stable")]
    time_s, lat, lon, altitude, segment = points.T
    return Track(time_s, lat, lon, altitude, segment.astype(np.int64))


def _read_gpx(path: Path) -> Floats:
    """(N, 5) time, latitude, longitude, altitude and segment of each point."""
    try:
        root = ElementTree.fromstring(read_foreign(path))
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is not a GPX file ({error})") from None
    points = []
    for number, segment in enumerate(root.iterfind(".//{*}trkseg")):
        for point in segment.iterfind("{*}trkpt"):
            time = point.findtext("{*}time", "").strip()
            if time:
                altitude = point.findtext("{*}ele", "").strip() or "nan"
                try:
                    place = [float(value) for value in (point.get("lat", ""), point.get("lon", ""), altitude)]
                except ValueError as error:
                    raise InputError(f"{path}: a point has a wrong position ({error})") from None
                points.append([_unix_seconds(path, time), *place, number])
    return np.array(points, np.float64).reshape(-1, 5)


def _read_columns(path: Path) -> Floats:
    """The same of a table."""
    present = meanings_of(path, _KINDS).values()
    lost = [name for name in ("time", "lat", "lon") if name not in present]
    if lost:
        raise InputError(f"{path} has no column {lost[0]}; a track needs time,lat,lon and a table image,lat,lon")
    cells = read_meanings(path, _KINDS, others=False)
    times = np.array([_unix_seconds(path, text) for text in cells["time"].tolist()], np.float64)
    altitude = cells.get("altitude", np.full(len(times), np.nan))
    return np.column_stack([times, cells["lat"], cells["lon"], altitude, np.zeros(len(times))])


def _unix_seconds(path: Path, text: str) -> float:
    """A time with its zone, or seconds since 1970."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(f"{path}: {text!r} is not a time; expected one like 2024-05-01T12:00:00Z") from None
    if when.tzinfo is None:
        raise InputError(f"{path}: {text!r} has no time zone; expected one like 2024-05-01T12:00:00Z")
    return when.timestamp()


def tracks_beside(folder: Path, output: Path | None = None) -> list[Path]:
    """Tables and tracks that lie directly in a folder; files that covis itself writes there do not count."""
    own = {folder / REJECTS, *([] if output is None else [output])}
    skipped = {path.resolve() for path in own}
    candidates = (p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES and not p.name.startswith("."))
    return sorted(p for p in candidates if p.resolve() not in skipped)


def same_file(name: str, base: Path) -> str:
    """A name relative to `base`, normalised to compare with others."""
    return os.path.normpath(os.path.join(base, name))  # noqa: PTH118 - normpath keeps odd bytes and does not resolve
