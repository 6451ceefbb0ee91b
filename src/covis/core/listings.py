"""Names in folders, read once, instead of a million queries to the file system."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path, PurePosixPath

SWAPPED = {".jpg": (".jpg", ".png", ".jpeg"), ".png": (".png", ".jpg", ".jpeg")}
"""Endings to try where a list says one and the disk has another."""
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".heic", ".heif", ".ppm"}
)


class Listing:
    """Names in folders below `root`; each folder is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[str, frozenset[str]] = {}

    def has(self, name: str) -> bool:
        """Whether `root / name` is there."""
        folder, _, base = name.rpartition("/")
        return base in self.folder(folder)

    def folder(self, folder: str) -> frozenset[str]:
        """What lies in a folder; nothing if it does not exist."""
        if folder not in self._folders:
            try:
                self._folders[folder] = frozenset(os.listdir(self.root / folder))  # noqa: PTH208 - names are enough
            except (FileNotFoundError, NotADirectoryError):
                self._folders[folder] = frozenset()
        return self._folders[folder]


def existing_names(root: Path, names: Sequence[str], folders: Iterable[str] = ()) -> list[str]:
    """`names` as they are on disk: with another ending, or below one of `folders`; as listed where nothing is found.

    The folder is chosen once for the whole list, by its first name that is found; the ending for each name.
    """
    listing = Listing(root)
    prefixes = ["", *(f"{folder}/" for folder in folders)]
    prefix = next((p for name in names[:1000] for p in prefixes if _ending(listing, p + name)), "")
    return [_ending(listing, prefix + name) or prefix + name for name in names]


def _ending(listing: Listing, name: str) -> str | None:
    path = PurePosixPath(name)
    for suffix in SWAPPED.get(path.suffix.lower(), (path.suffix,)):
        candidate = name[: len(name) - len(path.suffix)] + suffix
        if listing.has(candidate):
            return candidate
    return None


def walk_images(root: Path, suffixes: Container[str] = IMAGE_SUFFIXES) -> list[str]:
    """Files with these endings below `root`, relative to it, sorted; hidden ones left out, links to folders followed once."""
    names: list[str] = []
    seen: set[tuple[int, int]] = set()
    for folder, inside, files in os.walk(root, followlinks=True):
        status = os.stat(folder)  # noqa: PTH116 - a Path for each of a million folders would cost more than the walk
        if (status.st_dev, status.st_ino) in seen:
            inside.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        prefix = os.path.relpath(folder, root)
        for file in files:
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in suffixes:  # noqa: PTH122
                names.append(file if prefix == "." else f"{prefix}/{file}")
    return sorted(names, key=os.fsencode)
