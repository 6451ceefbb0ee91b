"""Folders whose photos may be shown in pages: those that were given to a map on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from covis.core import artifacts, machine
from covis.core.errors import InputError
from covis.images import ImageSet
from covis.maps.photos import files_of


@dataclass(frozen=True)
class Pictures:
    """Folders whose photos may be shown: a map that someone else made must not put private files into a page.

    They are those that were given to the map on this machine, noted outside of it (in the cache folder), and those that
    the user names in addition.
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
