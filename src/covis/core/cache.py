"""What covis keeps in the user's cache folder: entries by kind, their sizes, and deleting them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

KINDS = {
    "descriptors": "descriptors of images, by model",
    "features": "outputs of frozen network parts, for training",
    "local": "local features of images, for re-ranking",
    "onnx": "models in the ONNX format",
    "models": "published models that were fetched by their names",
    "downloads": "downloads that are not finished or not yet made into a model",
    "folders": "which folders of photos were given to which map",
    "geotag": "maps of photo libraries, for covis geotag",
    "town": "the simulated town",
    "elsewhere": "drawn pictures of no place",
}
"""Kinds of entries, by the folder that they lie in or the start of their name."""


class Entry(NamedTuple):
    """One file or folder in the cache."""

    kind: str
    path: Path
    size: int
    used: float
    """Seconds since the epoch."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"kind": self.kind, "name": self.path.name, "bytes": self.size, "days": round(self.days, 2)}

    @property
    def days(self) -> float:
        """Days since it was last written or read."""
        return max(0.0, time.time() - self.used) / 86400

    def delete(self) -> None:
        """Removes it from the disk."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, largest first; links and files of others are left alone."""
    present = []
    for kind in KINDS:
        inside = folder.glob(f"{kind}-*") if kind in ("town", "elsewhere") else (folder / kind).glob("[!.]*")
        present += [_entry(kind, path) for path in inside if not path.is_symlink()]
    return sorted(present, key=lambda entry: (-entry.size, entry.path.name))


def _entry(kind: str, path: Path) -> Entry:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = [file.lstat() for file in files]
    used = max((max(stat.st_mtime, stat.st_atime) for stat in stats), default=path.lstat().st_mtime)
    return Entry(kind, path, sum(stat.st_size for stat in stats), used)
