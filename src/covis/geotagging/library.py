"""A photo library as a list: each photo's content, clock, camera and position, read once and kept up to date."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from covis.core import files
from covis.core.errors import Damaged, InputError
from covis.core.listings import IMAGE_SUFFIXES, Listing, walk_images
from covis.core.machine import cpu_count, in_processes
from covis.core.progress import Meter
from covis.geotagging.raw import RAW_SUFFIXES, read_raw
from covis.geotagging.sidecars import read_position, sidecar_of
from covis.geotagging.xmp import METHOD
from covis.reading.decoding import Reject
from covis.reading.exif import read_photo
from covis.reading.walks import seconds_of

_PIECE, _SAVED_EVERY = 64, 2048
_BURST_S, _BURST_M = 2.0, 10.0
"""Photos of one camera this near to the one before are of one burst."""
_SCREENSHOT = re.compile(r"screen.?shot|bildschirmfoto|capture d.?.cran|scherm(afbeelding|opname)", re.IGNORECASE)


@dataclass(frozen=True)
class LibraryPhoto:
    """One photo of a library; None and empty mean unknown."""

    name: str
    """Its path in the library, or its identifier."""
    key: str
    """SHA-256 of its content."""
    stamp: tuple[int, ...] = ()
    """Sizes and times of the file and its sidecar, which change when they do."""
    lat: float | None = None
    lon: float | None = None
    own: bool = False
    """Whether the position is an earlier guess of covis, which nothing is learned from."""
    camera: str = ""
    local_s: float | None = None
    """Seconds since 1970 by the camera's clock, as if that showed UTC."""
    utc_s: float | None = None
    """Seconds since 1970, where the photo gives a time zone or has a GPS clock."""
    day: str = ""
    """The local date."""
    problem: str = ""
    """Why the photo cannot be used."""
    file: str = ""
    """The picture itself."""

    @property
    def place(self) -> tuple[float, float]:
        """Latitude and longitude of a photo that has them."""
        assert self.lat is not None
        assert self.lon is not None
        return self.lat, self.lon

    @property
    def album(self) -> str:
        """The folder that it is in."""
        return self.name.rpartition("/")[0]

    @property
    def known(self) -> bool:
        """Whether it has a position that can be learned from."""
        return self.lat is not None and not self.own and not self.problem

    @property
    def wanted(self) -> bool:
        """Whether a position is looked for."""
        return self.lat is None and not self.problem


@dataclass
class Library:
    """All photos of a folder, and what is remembered of them between runs."""

    root: Path
    photos: list[LibraryPhoto]
    regions: list[tuple[float, float]] = field(default_factory=list)
    """Centres of the local frames, as latitude and longitude (`covis.geotagging.regions`)."""
    mapped: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    """Name in the map → content and position that it was added with."""
    failed: set[str] = field(default_factory=set)
    """Content that could not be described."""

    def save(self, file: Path) -> None:
        """Writes what is remembered."""
        files.write_json(file, asdict(self) | {"failed": sorted(self.failed)})

    @classmethod
    def load(cls, file: Path, root: Path) -> Library:
        """What an earlier run remembered; nothing where there was none."""
        if not file.is_file():
            return cls(root, [])
        kinds = {"root": str, "photos": list, "regions": list, "mapped": dict, "failed": list}
        record = files.read_record(file, kinds, "remove it; the library is then read anew")
        if record["root"] != str(root):
            raise InputError(f"{file.parent} belongs to the library {record['root']}, not {root}; give another --map")
        try:
            photos = [LibraryPhoto(**{**photo, "stamp": tuple(photo["stamp"])}) for photo in record["photos"]]
        except (TypeError, KeyError):
            raise Damaged(f"{file} is of another version; remove it, and the library is read anew") from None
        mapped = {name: (key, lat, lon) for name, (key, lat, lon) in record["mapped"].items()}
        return cls(root, photos, [(lat, lon) for lat, lon in record["regions"]], mapped, set(record["failed"]))


def scan(library: Library, file: Path) -> None:
    """Brings the list up to date with the folder: files that changed are read again, others are not opened.

    What was read is kept in `file` now and then, so that an interrupted scan resumes.
    """
    names = walk_images(library.root, IMAGE_SUFFIXES | RAW_SUFFIXES)
    if not names:
        raise InputError(f"{library.root} has no photos; give the folder of a library, such as Pictures/")
    listing = Listing(library.root)
    stamps = {name: stamp_of(library.root / name, sidecar_of(name, listing)) for name in names}
    before = {photo.name: photo for photo in library.photos}
    now = {n: before[n] for n in names if n in before and before[n].stamp == stamps[n]}
    left = [(n, stamps[n], sidecar_of(n, listing)) for n in names if n not in now]
    pieces = [left[i : i + _PIECE] for i in range(0, len(left), _PIECE)]
    unsaved = 0
    with Meter("reading photos", len(left), "photos") as meter:
        for piece in in_processes(partial(_read_piece, library.root), pieces, min(cpu_count(), max(1, len(pieces)))):
            now |= {photo.name: photo for photo in piece}
            meter.advance(len(piece))
            unsaved += len(piece)
            if unsaved >= _SAVED_EVERY:
                unsaved = 0
                replace(library, photos=list(now.values())).save(file)
    library.photos = [now[name] for name in names]
    library.save(file)


def stamp_of(path: Path, sidecar: str | None) -> tuple[int, ...]:
    """Changes when a photo or its sidecar (a name beside it) does."""
    try:
        beside = () if sidecar is None else files.stamp(path.with_name(Path(sidecar).name))
        return (*files.stamp(path), *beside)
    except OSError:
        return ()


def _read_piece(root: Path, piece: Sequence[tuple[str, tuple[int, ...], str | None]]) -> list[LibraryPhoto]:
    return [_read(root, name, stamp, sidecar) for name, stamp, sidecar in piece]


def _read(root: Path, name: str, stamp: tuple[int, ...], sidecar: str | None) -> LibraryPhoto:
    path = root / name
    unread = LibraryPhoto(name, "", stamp, file=str(path))
    try:
        key = files.sha256(path)
        exif = read_raw(path) if path.suffix.lower() in RAW_SUFFIXES else read_photo(path)
    except Reject as reject:
        return replace(unread, problem=str(reject.reason))
    except OSError as error:
        return replace(unread, problem=error.strerror or str(error))
    beside = None if sidecar is None else read_position(root / sidecar)
    lat, lon, method = beside or (_finite(exif.lat), _finite(exif.lon), exif.method)
    return replace(
        unread, key=key, lat=lat, lon=lon, own=METHOD in method,
        camera="" if _SCREENSHOT.search(path.name) else exif.camera,
        local_s=_finite(float(seconds_of(np.array([exif.taken]))[0])), utc_s=_finite(exif.utc_s), day=exif.taken[:10],
        problem="panorama" if exif.panorama and lat is None else "",
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def bursts(photos: Sequence[LibraryPhoto]) -> Iterator[LibraryPhoto]:
    """The photos that can be learned from, duplicates and bursts (one camera, seconds and metres apart) once."""
    seen = set[str]()
    last: dict[str, LibraryPhoto] = {}
    for photo in sorted(photos, key=lambda p: (p.camera, p.local_s or 0.0, p.name)):
        if not photo.known or photo.key in seen or Path(photo.file).suffix.lower() in RAW_SUFFIXES:
            continue
        seen.add(photo.key)
        before = last.get(photo.camera)
        if photo.camera and photo.local_s is not None:
            last[photo.camera] = photo
            soon = before is not None and photo.local_s - (before.local_s or 0.0) <= _BURST_S
            if before is not None and soon and distance_m(before.place, photo.place) <= _BURST_M:
                continue
        yield photo


def distance_m(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Metres between two places (lat, lon), on a sphere."""
    lat, other = math.radians(a[0]), math.radians(b[0])
    chord = math.sin((other - lat) / 2) ** 2
    chord += math.cos(lat) * math.cos(other) * math.sin(math.radians(b[1] - a[1]) / 2) ** 2
    return 2 * 6_371_000 * math.asin(min(1.0, math.sqrt(chord)))
