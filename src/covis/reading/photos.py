"""A folder of one's own photos → a table: positions and headings from EXIF, or from a table or track beside them.

Nothing is guessed: a photo without a usable position or heading keeps an empty one. A group is the folder a photo lies
in; `covis.reading.walks` cuts it further by clocks and cameras.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.listings import walk_images
from covis.core.machine import cpu_count, in_processes
from covis.core.progress import Meter, say, warn
from covis.images import ImageSet
from covis.poses import Poses, true_headings
from covis.reading import tracks
from covis.reading.decoding import Reject, Rejected
from covis.reading.exif import ExifData, read_photo
from covis.reading.screening import check_limits
from covis.reading.table import read_table, warn_if_stuck
from covis.reading.walks import seconds_of

LAYOUT = "PHOTOS/walk-1/IMG_0001.jpg … with GPS in EXIF, or PHOTOS/track.gpx or PHOTOS/positions.csv beside them"
_PIECE = 256


class Imported(NamedTuple):
    """Photos of a folder and what is known of each."""

    root: Path
    names: list[str]
    photos: list[ExifData]
    groups: list[str]
    rejects: list[Rejected]

    def column(self, name: str) -> NDArray[Any]:
        """(N,) one field of all photos."""
        return np.array([getattr(photo, name) for photo in self.photos])

    def images(self, frame: str = "") -> ImageSet:
        """The photos as an image set in one metric frame, by default one around their middle, headings turned to its north."""
        lat, lon, heading, altitude = map(self.column, ("lat", "lon", "heading", "altitude"))
        poses = Poses.from_latlon(lat, lon, heading, z=altitude, frame=frame)
        columns = {
            "heading_reference": self.column("reference"),
            "orientation": self.column("orientation"),
            "time": self.column("taken"),
            "camera": self.column("camera"),
        }
        return ImageSet.of(self.root, self.names, poses, self.groups, columns=columns)


def import_photos(
    folder: Path | str,
    track: Path | str | None = None,
    *,
    utc_offset_s: float | None = None,
    positions: bool = True,
    output: Path | None = None,
) -> Imported:
    """Reads every photo below `folder`.

    `track` is a table or track file; without one, a single such file in the folder is used where photos lack a
    position. `utc_offset_s` is the camera clock's offset where photos do not say it. With `positions`, a folder where
    nothing has a position is an error. `output` is the table to be written, which is never a source, even if it exists.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; expected {LAYOUT}")
    names = walk_images(root)
    if not names:
        raise InputError(f"{root} has no photos; expected {LAYOUT}")
    photos, rejects = _read_all(root, names)
    check_limits([r for r in rejects if r.reason != "panorama"], len(names), root)
    if not photos:
        raise InputError(
            f"{root}: none of {len(names)} files is a usable photo ({rejects[0].reason}); expected {LAYOUT}"
        )
    imported = Imported(
        root, [n for n, _ in photos], [p for _, p in photos], [_label(n.rpartition("/")[0]) for n, _ in photos], rejects
    )
    file = Path(track) if track is not None else _found_track(root, imported, output)
    if file is not None:
        imported = _with_track(imported, file, utc_offset_s)
    if positions and np.isnan(imported.column("lat")).all():
        raise InputError(f"{root}: no photo has a position{_why(imported, file)}; expected {LAYOUT}")
    _warn(imported)
    return imported


def _read_all(root: Path, names: list[str]) -> tuple[list[tuple[str, ExifData]], list[Rejected]]:
    pieces = [names[start : start + _PIECE] for start in range(0, len(names), _PIECE)]
    photos: list[tuple[str, ExifData]] = []
    rejects: list[Rejected] = []
    with Meter("reading photos", len(names), "photos") as meter:
        for piece in in_processes(partial(_read_piece, root), pieces, min(cpu_count(), len(pieces))):
            for name, outcome in piece:
                if isinstance(outcome, Rejected):
                    rejects.append(outcome)
                elif outcome.panorama:
                    rejects.append(Rejected(name, "panorama", "a full panorama has no heading of its own"))
                else:
                    photos.append((name, outcome))
            meter.advance(len(piece))
    return photos, rejects


def _read_piece(root: Path, names: list[str]) -> list[tuple[str, ExifData | Rejected]]:
    outcomes: list[tuple[str, ExifData | Rejected]] = []
    for name in names:
        try:
            outcomes.append((name, read_photo(root / name)))
        except Reject as reject:
            outcomes.append((name, Rejected(name, reject.reason, reject.detail)))
    return outcomes


def _label(folder: str) -> str:
    """A folder's name as a group's: bytes that are no UTF-8, which no table holds, are spelt out."""
    return os.fsencode(folder).decode("utf-8", "backslashreplace")


def _found_track(root: Path, imported: Imported, output: Path | None) -> Path | None:
    """The one table or track in the folder, if photos lack positions; if there are several, the user must choose."""
    if not np.isnan(imported.column("lat")).any():
        return None
    candidates = tracks.tracks_beside(root, output)
    if len(candidates) > 1:
        listed = ", ".join(p.name for p in candidates)
        raise InputError(f"{root} has {len(candidates)} files with positions ({listed}); choose one with --track")
    if candidates:
        say(f"missing positions are taken from {candidates[0]}")
    return candidates[0] if candidates else None


def _with_track(imported: Imported, file: Path, utc_offset_s: float | None) -> Imported:
    if not file.is_file():
        raise InputError(f"{file} does not exist; check --track")
    if tracks.names_images(file):
        return _with_table(imported, file)
    when = imported.column("utc_s")
    if utc_offset_s is not None:
        when = np.where(np.isnan(when), seconds_of(imported.column("taken")) - utc_offset_s, when)
    photos = []
    for photo, (lat, lon, altitude) in zip(imported.photos, tracks.read_track(file).at(when).tolist(), strict=True):
        if np.isnan(photo.lat) and not np.isnan(lat):
            known = photo.altitude if np.isnan(altitude) or not np.isnan(photo.altitude) else altitude
            photo = photo._replace(lat=lat, lon=lon, altitude=known)
        photos.append(photo)
    return imported._replace(photos=photos)


def _refuse_two_places(file: Path, table: ImageSet) -> None:
    """A photo that a table names twice must have the same position both times."""
    first: dict[bytes, int] = {}
    for i, name in enumerate(table.names.tolist()):
        j = first.setdefault(name, i)
        if j != i and not np.allclose(table.poses.xy[i], table.poses.xy[j], atol=0.01, equal_nan=True):
            raise InputError(
                f"{file}: rows {j + 2} and {i + 2} give {table.name(i)!r} two positions; keep the right one"
            )


def _with_table(imported: Imported, file: Path) -> Imported:
    """The photos with the table's values; where the table is empty, a photo keeps its own."""
    table = read_table(file)
    if not table.poses.frame:
        raise InputError(f"{file} gives metres, not lat and lon; it is already a table; use it directly")
    degrees = table.poses.latlon()
    _refuse_two_places(file, table)
    place: dict[str, int] = {}
    for i in range(len(table)):
        for base in (file.parent, imported.root):
            place.setdefault(tracks.same_file(table.name(i), base), i)
    at = np.array([place.get(tracks.same_file(n, imported.root), -1) for n in imported.names])
    if (at < 0).all():  # paths of another machine, or relative to where another tool was run
        bare = _bare_names(table.name(i) for i in range(len(table)))
        at = np.array([bare.get(Path(n).name, -1) for n in imported.names])
    if (at < 0).all():
        raise InputError(
            f"{file} names none of the photos in {imported.root} (its first: {table.name(0)}); check its paths"
        )
    height = np.full(len(table), np.nan) if table.poses.z is None else table.poses.z
    rows = np.column_stack([degrees, true_headings(table.poses), height]).tolist()
    photos, groups = imported.photos.copy(), imported.groups.copy()
    for k, i in enumerate(at.tolist()):
        if i >= 0:
            photos[k] = _completed(photos[k], *rows[i])
            groups[k] = table.group_names[table.group[i]] or groups[k]
    return imported._replace(photos=photos, groups=groups)


def _completed(photo: ExifData, lat: float, lon: float, heading: float, altitude: float) -> ExifData:
    """A photo with what a table knows of it."""
    given = {"lat": lat, "lon": lon, "heading": heading, "altitude": altitude}
    known: dict[str, Any] = {name: value for name, value in given.items() if not np.isnan(value)}
    return photo._replace(**known, reference="true" if "heading" in known else photo.reference)


def _bare_names(names: Iterable[str]) -> dict[str, int]:
    """File name without folders → row; none where a name occurs twice."""
    bare = [PureWindowsPath(name).name for name in names]
    return {name: i for i, name in enumerate(bare)} if len(set(bare)) == len(bare) else {}


def parse_utc_offset(text: str) -> float | None:
    """`+02:00` → 7200; None without one."""
    if not text:
        return None
    sign, rest = text[:1], text[1:].split(":")
    if sign not in "+-" or len(rest) != 2 or not all(part.isdigit() for part in rest):
        raise InputError(f"--utc-offset {text!r} is not an offset; expected one like +02:00")
    seconds = 3600.0 * int(rest[0]) + 60.0 * int(rest[1])
    return -seconds if sign == "-" else seconds


def _why(imported: Imported, file: Path | None) -> str:
    """Why a track gave nothing, where that is known."""
    if file is None or tracks.names_images(file):
        return ""
    if np.isnan(imported.column("utc_s")).all() and any(photo.taken for photo in imported.photos):
        return f" at the times of {file.name}, because their clocks have no time zone (give --utc-offset +02:00)"
    return f" at the times of {file.name}"


def _warn(imported: Imported) -> None:
    damaged = sum(photo.damaged for photo in imported.photos)
    if damaged:
        warn(f"{imported.root}: {damaged} photos have a damaged EXIF block; their position and heading are unknown")
    unknown = int(np.isnan(imported.column("lat")).sum())
    if unknown:
        warn(f"{imported.root}: {unknown} of {len(imported.names)} photos have no position; theirs stays empty")
    magnetic = sum(photo.reference == "magnetic" for photo in imported.photos)
    if magnetic:
        warn(f"{imported.root}: {magnetic} headings are relative to magnetic north and kept unchanged")
    warn_if_stuck(imported.column("heading"), str(imported.root))
