"""What a map takes in: images in its own frame, their files, where those may be shown from, and what is left out."""

from __future__ import annotations

import contextlib
import csv
import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import artifacts, machine
from covis.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses, true_headings
from covis.progress import say
from covis.reading.decoding import REJECTS, Rejected, write_rejects


def files_of(images: ImageSet) -> NDArray[np.bytes_]:
    """(N,) absolute path of each image as bytes."""
    base = os.fsencode(images.root.resolve())
    return np.array([os.path.normpath(os.path.join(base, bytes(n))) for n in images.names], dtype=bytes)  # noqa: PTH118


def reframed(poses: Poses, frame: str, what: str) -> Poses:
    """The same poses in the frame of a map, headings turned to its north."""
    if poses.frame == frame:
        return poses
    if not poses.frame or not frame:
        have, need = ("metres", "lat and lon") if frame else ("lat and lon", "metres (easting, northing)")
        raise InputError(f"{what} gives positions in {have}, the map is in {need}; use one kind")
    degrees = poses.latlon()
    return Poses.from_latlon(degrees[:, 0], degrees[:, 1], true_headings(poses), z=poses.z, frame=frame)


@dataclass(frozen=True)
class Pictures:
    """Folders whose photos may be shown: a map that someone else made must not put private files into a page.

    They are those that were given to the map on this machine, noted outside of it (in the cache folder), and those that
    the user names besides.
    """

    folders: frozenset[str]

    @classmethod
    def of(cls, map_path: Path, more: Iterable[Path] = ()) -> Pictures:
        """The folders of a map, and `more`."""
        given = [map_path, *more]
        return cls(frozenset(os.path.realpath(folder) for folder in given) | _noted(map_path))

    def shows(self, file: Path) -> bool:
        """Whether a file lies in one of the folders."""
        normal = os.path.normpath(file)
        return any(normal.startswith(folder.rstrip(os.sep) + os.sep) for folder in self.folders)


def note_folders(map_path: Path, folders: Iterable[str]) -> None:
    """Remembers on this machine that the photos in these folders were given to a map."""
    known = _noted(map_path)
    wanted = known | {os.path.realpath(folder) for folder in folders}
    if wanted != known:
        with contextlib.suppress(OSError):  # a cache that cannot be written; --pictures does it too
            artifacts.write_json(_note(map_path), {"map": os.path.realpath(map_path), "folders": sorted(wanted)})


def note_images(map_path: Path, images: ImageSet) -> None:
    """Remembers the folders of images that were given to a map: their root, and what a table names outside of it."""
    root = os.path.realpath(images.root)
    inside = os.fsencode(root).rstrip(b"/") + b"/"
    outside = {os.path.dirname(file) for file in files_of(images) if not bytes(file).startswith(inside)}  # noqa: PTH120
    note_folders(map_path, [root, *map(os.fsdecode, outside)])


def _noted(map_path: Path) -> frozenset[str]:
    try:
        note = artifacts.read_json(_note(map_path))
    except InputError:
        return frozenset()
    same = isinstance(note, dict) and note.get("map") == os.path.realpath(map_path)
    return frozenset(map(str, note.get("folders") or ())) if same else frozenset()


def _note(map_path: Path) -> Path:
    key = artifacts.fingerprint(os.fsencode(os.path.realpath(map_path)))
    return machine.cache_folder() / "folders" / f"{key}.json"


_NAMES_COMPARED = 10_000


def plain(images: ImageSet) -> ImageSet:
    """With heights always there, so that sets with and without them join."""
    poses = images.poses
    return replace(
        images, poses=replace(poses, z=np.full(len(poses), np.nan) if poses.z is None else poses.z, rotation=None)
    )


def stamps(files: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """(N, 2) size and time of files, so that a changed photo is embedded again."""
    found = []
    for file in files:
        try:
            status = os.stat(bytes(file))  # noqa: PTH116 - names may be bytes
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((-1, -1))
    return np.array(found, np.int64).reshape(-1, 2)


def listed(store: Path) -> list[Rejected]:
    """What a store's folder says was left out of it."""
    listing = store / REJECTS
    if not listing.is_file():
        return []
    with listing.open(newline="", encoding="utf-8", errors="surrogateescape") as handle:
        return [Rejected(*line) for line in list(csv.reader(handle))[1:]]


def list_rejects(path: Path, rejects: list[Rejected]) -> None:
    """Writes what was left out, and says so; nothing where all were taken."""
    if rejects:
        write_rejects(path, rejects)
        say(f"{len(rejects)} photos left out, listed in {path}")


def nearest_name(name: str, images: ImageSet) -> str:
    """A hint for a name that is not there."""
    names = [images.name(i) for i in range(min(len(images), _NAMES_COMPARED))]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
