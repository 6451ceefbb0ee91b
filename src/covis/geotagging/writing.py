"""Positions written into photos and sidecars, each file whole or not at all, with a journal that takes all of it back.

A line of the journal is on the disk before its file changes: the bytes that are replaced, and checksums of the file
before and after. So whenever the process dies, a file is as it was or as the journal says, and `undo` restores it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from covis.core import files
from covis.core.errors import Damaged, InputError
from covis.core.listings import Listing
from covis.core.progress import Meter
from covis.geotagging.exif import with_position
from covis.geotagging.library import LibraryPhoto, distance_m, stamp_of
from covis.geotagging.sidecars import merged, new_sidecar, sidecar_of
from covis.geotagging.suggestions import Suggestion
from covis.maps.outputs import to_csv
from covis.reading.decoding import Reject, read

JOURNAL = ".covis-geotag.journal"
"""In the library's own folder, so that it outlives caches."""
_SAME_M = 1.0
_LINE = {"file": str, "at": int, "before": (str, type(None)), "length": int, "old": str, "new": str, "mtime_ns": int}


@dataclass
class Written:
    """The outcome of writing, or of taking back."""

    files: list[str] = field(default_factory=list)
    """Those that were changed, relative to the library."""
    left: dict[str, str] = field(default_factory=dict)
    """Photo or file → why it was left alone."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"files": self.files, "left": self.left}


class Journal:
    """What was written into a library."""

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, root / JOURNAL
        self._whole = False  # a process that died may have left part of a line

    def lines(self) -> list[dict[str, Any]]:
        """All changes, the first one first; a last line that was not finished never took effect."""
        if not self.file.is_file():
            return []
        whole = self.file.read_bytes().rpartition(b"\n")[0]
        try:
            return [files.checked(self.file, json.loads(line), _LINE) for line in whole.splitlines()]
        except ValueError as error:
            raise Damaged(f"{self.file} is damaged ({error}); nothing was taken back") from None

    def append(self, line: dict[str, Any]) -> None:
        """Adds a line in place of one that was not finished, and waits until it is on the disk."""
        with self.file.open("a+b") as handle:
            if not self._whole:
                handle.seek(0)
                handle.truncate(handle.read().rfind(b"\n") + 1)
            self._whole = False
            handle.write(json.dumps(line).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
        self._whole = True
        files.sync(self.root)

    def positions(self) -> dict[str, tuple[float, float]]:
        """Photo → the position that was written for it."""
        return {line["photo"]: (line["lat"], line["lon"]) for line in self.lines() if "photo" in line}

    def undo(self) -> Written:
        """Restores every file that is still as it was written, the last one first; the journal keeps the others."""
        done, kept = Written(), list[dict[str, Any]]()
        for line in reversed(self.lines()):
            try:
                if _restore(self.root / line["file"], line):
                    done.files.append(line["file"])
            except (InputError, OSError) as error:
                done.left[line["file"]] = str(error)
                kept.insert(0, line)
        if kept:
            files.write_bytes(self.file, b"".join(json.dumps(line).encode() + b"\n" for line in kept))
        elif self.file.is_file():
            self.file.unlink()
            files.sync(self.root)
        return done


def _restore(path: Path, line: dict[str, Any]) -> bool:
    """Takes one change back; False where the file is already as it was before."""
    if not path.exists():
        if line["before"] is None:
            return False
        raise InputError("it is not there any more")
    content = path.read_bytes()
    if _digest(content) == line["old"]:
        return False
    if _digest(content) != line["new"]:
        raise InputError("it was changed since")
    if line["before"] is None:
        path.unlink()
        files.sync(path.parent)
        return True
    at = line["at"]
    before = content[:at] + base64.b64decode(line["before"]) + content[at + line["length"] :]
    if _digest(before) != line["old"]:
        raise InputError("the journal does not give back what it was")
    _replace(path, before, line["mtime_ns"])
    return True


def known_guesses(photos: Sequence[LibraryPhoto], root: Path) -> list[LibraryPhoto]:
    """Photos, those at positions of the journal marked as guesses: another program may have removed the mark."""
    earlier = Journal(root).positions()

    def is_guess(photo: LibraryPhoto) -> bool:
        return (
            photo.name in earlier and photo.lat is not None and distance_m(earlier[photo.name], photo.place) < _SAME_M
        )

    return [replace(photo, own=True) if is_guess(photo) else photo for photo in photos]


def write_positions(suggestions: Sequence[Suggestion], kind: str, root: Path) -> Written:
    """Writes positions into JPEG files (`exif`) or into XMP files beside the photos (`xmp`, and all other formats)."""
    journal, listing, done = Journal(root), Listing(root), Written()
    with Meter("writing positions", len(suggestions), "photos") as meter:
        for suggestion in suggestions:
            try:
                path, old, new = _change(suggestion, kind, root, listing)
                if old != new:
                    _apply(journal, suggestion, path, old, new)
                    done.files.append(path.relative_to(root).as_posix())
            except (InputError, Reject, OSError) as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                done.left[suggestion.photo.name] = str(error)
            meter.advance()
    return done


def _change(suggestion: Suggestion, kind: str, root: Path, listing: Listing) -> tuple[Path, bytes | None, bytes]:
    """The file to change, its content (None: there is none) and its new content."""
    photo = suggestion.photo
    path, beside = root / photo.name, sidecar_of(photo.name, listing)
    if stamp_of(path, beside) != photo.stamp:
        raise InputError("it was changed since it was read; run covis geotag again")
    if kind == "exif" and path.suffix.lower() in (".jpg", ".jpeg"):
        content = read(path)
        changed = with_position(content, suggestion.answer)
        if changed is not None:
            return path, content, changed
    sidecar = root / (beside or new_sidecar(photo.name))
    old = sidecar.read_bytes() if sidecar.exists() else None
    return sidecar, old, merged(old or b"", suggestion.answer, str(sidecar))


def _apply(journal: Journal, suggestion: Suggestion, path: Path, old: bytes | None, new: bytes) -> None:
    """Notes the change, and makes it. What differs lies between what both contents begin and end with."""
    before, mtime_ns = old or b"", 0 if old is None else path.stat().st_mtime_ns
    start = _alike(before, new)
    most = min(len(before), len(new)) - start
    end = _alike(before[::-1][:most], new[::-1][:most])
    replaced = None if old is None else base64.b64encode(before[start : len(before) - end]).decode()
    journal.append(
        {"file": path.relative_to(journal.root).as_posix(), "at": start, "before": replaced,
         "length": len(new) - start - end, "old": _digest(before), "new": _digest(new), "mtime_ns": mtime_ns,
         "photo": suggestion.photo.name, "lat": suggestion.answer.lat, "lon": suggestion.answer.lon}
    )  # fmt: skip
    _replace(path, new, None if old is None else mtime_ns)


def _alike(a: bytes, b: bytes) -> int:
    """How many bytes are the same at the beginning."""
    most = min(len(a), len(b))
    differ = np.frombuffer(a, np.uint8, most) != np.frombuffer(b, np.uint8, most)
    return int(differ.argmax()) if differ.any() else most


def _replace(path: Path, content: bytes, mtime_ns: int | None) -> None:
    """Puts new content in place of a file, with its rights and time stamps."""
    with files.replacing(path) as partial:
        partial.write_bytes(content)
        if mtime_ns is not None:
            status = path.stat()
            shutil.copystat(path, partial)
            os.utime(partial, ns=(status.st_atime_ns, mtime_ns))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_table(suggestions: Sequence[Suggestion], table: Path) -> Written:
    """Writes positions into a table; none where it holds them already."""
    answers = [replace(s.answer, photo=Path(s.photo.name)) for s in suggestions]
    content = to_csv(answers).encode("utf-8", "surrogateescape")
    if table.is_file() and table.read_bytes() == content:
        return Written()
    files.write_bytes(table, content)
    return Written([str(table)])
