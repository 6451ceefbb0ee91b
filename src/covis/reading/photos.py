"""A folder of one's own photos → a table: positions and headings from EXIF, or from a table or track beside them.

Nothing is guessed: a photo without a usable position or heading keeps an empty one. A group is the folder a photo lies
in; `covis.reading.walks` cuts it further by clocks and cameras.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.listings import walk_images
from covis.core.machine import cpu_count, in_processes
from covis.core.progress import Meter, say, warn
from covis.images import ImageSet
from covis.poses import Poses, true_headings
from covis.reading import tracks
from covis.reading.decoding import Reject, Rejected
from covis.reading.exif import Photo, read_photo
from covis.reading.screening import check_limits
from covis.reading.table import read_table
from covis.reading.walks import seconds_of

LAYOUT = "PHOTOS/walk-1/IMG_0001.jpg … with GPS in EXIF, or PHOTOS/track.gpx or PHOTOS/positions.csv beside them"
_PIECE = 256


@dataclass(frozen=True, eq=False)
class Imported:
    """Photos of a folder and what is known of each."""

    root: Path
    names: list[str]
    lat: Floats
    lon: Floats
    heading: Floats
    reference: list[str]
    """`true`, `magnetic` or empty: what each heading is measured from."""
    altitude: Floats
    orientation: NDArray[np.int64]
    taken: list[str]
    camera: list[str]
    group: list[str]
    utc_s: Floats
    rejects: tuple[Rejected, ...]
    frame: str = ""
    """The metric frame that positions go into; empty: one around their middle."""

    @property
    def poses(self) -> Poses:
        """Poses in one local metric frame, headings turned to its north."""
        return Poses.from_latlon(self.lat, self.lon, self.heading, z=self.altitude, frame=self.frame)

    def images(self) -> ImageSet:
        """The photos as an image set."""
        columns = {
            "heading_reference": np.array(self.reference, dtype=str),
            "orientation": self.orientation,
            "time": np.array(self.taken, dtype=str),
            "camera": np.array(self.camera, dtype=str),
        }
        return ImageSet.of(self.root, self.names, self.poses, self.group, columns=columns)


def import_photos(
    folder: Path | str,
    track: Path | str | None = None,
    *,
    utc_offset_s: float | None = None,
    positions: bool = True,
    output: Path | None = None,
    workers: int | None = None,
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
    photos, rejects = _read_all(root, names, workers or cpu_count())
    check_limits([r for r in rejects if r.reason != "panorama"], len(names), root)
    if not photos:
        raise InputError(
            f"{root}: none of {len(names)} files is a usable photo ({rejects[0].reason}); expected {LAYOUT}"
        )
    imported = _collect(root, photos, rejects)
    file = Path(track) if track is not None else _found_track(root, imported, output)
    if file is not None:
        imported = _with_track(imported, file, utc_offset_s)
    if positions and np.isnan(imported.lat).all():
        raise InputError(f"{root}: no photo has a position{_why(imported, file)}; expected {LAYOUT}")
    _warn(imported)
    return imported


def _read_all(root: Path, names: list[str], workers: int) -> tuple[list[tuple[str, Photo]], list[Rejected]]:
    pieces = [names[start : start + _PIECE] for start in range(0, len(names), _PIECE)]
    photos: list[tuple[str, Photo]] = []
    rejects: list[Rejected] = []
    with Meter("reading photos", len(names), "photos") as meter:
        for piece in in_processes(partial(_read_piece, root), pieces, min(workers, len(pieces))):
            for name, outcome in piece:
                if isinstance(outcome, Rejected):
                    rejects.append(outcome)
                elif outcome.panorama:
                    rejects.append(Rejected(name, "panorama", "a full panorama has no heading of its own"))
                else:
                    photos.append((name, outcome))
            meter.advance(len(piece))
    return photos, rejects


def _read_piece(root: Path, names: list[str]) -> list[tuple[str, Photo | Rejected]]:
    outcomes: list[tuple[str, Photo | Rejected]] = []
    for name in names:
        try:
            outcomes.append((name, read_photo(root / name)))
        except Reject as reject:
            outcomes.append((name, Rejected(name, reject.reason, reject.detail)))
    return outcomes


def _collect(root: Path, named_photos: Iterable[tuple[str, Photo]], rejects: Iterable[Rejected]) -> Imported:
    names, photos = zip(*named_photos, strict=True)
    damaged = sum(p.damaged for p in photos)
    if damaged:
        warn(f"{root}: {damaged} photos have a damaged EXIF block; their position and heading are unknown")
    return Imported(
        root=root,
        names=list(names),
        lat=np.array([p.lat for p in photos]),
        lon=np.array([p.lon for p in photos]),
        heading=np.array([p.heading for p in photos]),
        reference=[p.reference for p in photos],
        altitude=np.array([p.altitude for p in photos]),
        orientation=np.array([p.orientation for p in photos], np.int64),
        taken=[p.taken for p in photos],
        camera=[p.camera for p in photos],
        group=[n.rpartition("/")[0] for n in names],
        utc_s=np.array([p.utc_s for p in photos]),
        rejects=tuple(rejects),
    )


def _found_track(root: Path, imported: Imported, output: Path | None) -> Path | None:
    """The one table or track in the folder, if photos lack positions; if there are several, the user must choose."""
    if not np.isnan(imported.lat).any():
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
    when = imported.utc_s.copy()
    if utc_offset_s is not None:
        when = np.where(np.isnan(when), seconds_of(np.array(imported.taken)) - utc_offset_s, when)
    positions = tracks.read_track(file).at(when)
    empty = np.isnan(imported.lat) & ~np.isnan(positions[:, 0])
    return replace(
        imported,
        lat=np.where(empty, positions[:, 0], imported.lat),
        lon=np.where(empty, positions[:, 1], imported.lon),
        altitude=np.where(np.isnan(imported.altitude) & empty, positions[:, 2], imported.altitude),
    )


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
    heading = true_headings(table.poses)
    groups = [table.group_names[g] for g in table.group]
    return replace(
        imported,
        lat=_preferred(degrees[:, 0], at, imported.lat),
        lon=_preferred(degrees[:, 1], at, imported.lon),
        heading=_preferred(heading, at, imported.heading),
        reference=[
            "true" if i >= 0 and not np.isnan(heading[i]) else r for i, r in zip(at, imported.reference, strict=True)
        ],
        altitude=imported.altitude if table.poses.z is None else _preferred(table.poses.z, at, imported.altitude),
        group=[groups[i] if i >= 0 and groups[i] else g for i, g in zip(at, imported.group, strict=True)],
    )


def _bare_names(names: Iterable[str]) -> dict[str, int]:
    """File name without folders → row; none where a name occurs twice."""
    bare = [PureWindowsPath(name).name for name in names]
    return {name: i for i, name in enumerate(bare)} if len(set(bare)) == len(bare) else {}


def _preferred(first: Floats, at: NDArray[np.int64], second: Floats) -> Floats:
    chosen = np.where(at >= 0, first[np.maximum(at, 0)], np.nan)
    return np.where(np.isnan(chosen), second, chosen)


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
    if np.isnan(imported.utc_s).all() and any(imported.taken):
        return f" at the times of {file.name}, because their clocks have no time zone (give --utc-offset +02:00)"
    return f" at the times of {file.name}"


def _warn(imported: Imported) -> None:
    unknown = int(np.isnan(imported.lat).sum())
    if unknown:
        warn(f"{imported.root}: {unknown} of {len(imported.names)} photos have no position; theirs stays empty")
    magnetic = imported.reference.count("magnetic")
    if magnetic:
        warn(f"{imported.root}: {magnetic} headings are relative to magnetic north and kept unchanged")
    known = imported.heading[~np.isnan(imported.heading)]
    if len(known) > 2 and (known == known[0]).all():
        warn(f"{imported.root}: every known heading is {known[0]:g}°; was the compass stuck?")
