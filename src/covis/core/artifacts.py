"""A directory with a manifest: written atomically, checksummed, fingerprinted, verified on open.

Finished things (graphs, models, stores) are written whole through `create`. Things that live longer than one
write (training runs, maps) are claimed through `claim`, which binds the directory to one configuration and
locks it against a second process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import covis
from covis.core import files, machine
from covis.core.addresses import without_password
from covis.core.errors import Damaged, InputError
from covis.core.files import read_json as read_json
from covis.core.files import write_json as write_json
from covis.core.locking import InUse as InUse
from covis.core.locking import lock as lock

MANIFEST = "manifest.json"
_SCHEMA = 2
SMALL_BYTES = 1 << 20
"""Smaller files are checked against their checksum on every open, larger ones only if changed since the last check."""
_SETTLED_S = 2.0
"""A file that was written less than this ago may change again without a new time stamp."""
_TRUSTED_S = 7 * 24 * 3600
"""How long a large file is trusted by its stamp, which damage below the file system does not change."""
_TRACKED = ("numpy", "numba", "scipy", "torch", "timm", "faiss-cpu")


@dataclass
class Draft:
    """An artefact being written: files go under `path`, facts into `facts`."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def create(
    path: Path | str,
    kind: str,
    facts: Mapping[str, Any] | None = None,
    *,
    replace: bool = False,
    durable: bool = True,
) -> Iterator[Draft]:
    """Writes an artefact of `kind` at `path`: all of it, or nothing.

    Raises `InputError` if `path` exists, unless `replace` (the old one then stays until the new one is whole). An
    artefact that is easy to make again and has thousands of files need not be `durable`: its files are then not synced
    to disk one by one, and only after a power failure may `open_manifest` find it damaged.
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # noqa: PTH114
    files.finish_interrupted_replace(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} already exists and is not a folder; choose another output or remove it")
    if path.exists() and not replace and any(path.iterdir()):
        raise InputError(f"{path} already exists; choose another output or remove it")
    with files.draft_folder(path) as folder:
        draft = Draft(folder, dict(facts or {}))
        yield draft
        inside = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        for place in [*inside, *sorted({file.parent for file in inside})] if durable else ():
            files.sync(place)
        entries = {file.relative_to(folder).as_posix(): file_entry(file) for file in inside}
        write_manifest(folder, kind, draft.facts, entries)
        files.replace_folder(folder, path)


def write_manifest(path: Path, kind: str, facts: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes `path` an artefact of `kind`: from this moment readers see exactly `entries` (name → `file_entry`)."""
    head = {"kind": kind, "schema": _SCHEMA, "created": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(path / MANIFEST, {**head, "versions": versions(), **facts, "files": dict(entries)})


def file_entry(path: Path) -> dict[str, Any]:
    """The entry of a file in a manifest."""
    return {"sha256": files.sha256(path), "bytes": path.stat().st_size}


def open_manifest(
    path: Path | str,
    kind: str,
    *,
    facts: Mapping[str, Any] | None = None,
    verify: bool = True,
    links: bool = True,
    written: bool = False,
    skip: Collection[str] = (),
) -> dict[str, Any]:
    """The manifest of the artefact at `path`, after checking its kind, its `facts` (key → type) and its files.

    With `verify` every file is checked against its checksum; without it, only small files, and larger ones that
    changed since they were last checked on this machine, or were so a week ago. `written`: this process has just
    written it, so only sizes are compared. Without `links`, any link inside it is refused. Files in the folders `skip`
    are not checked.
    """
    path = Path(path)
    files.finish_interrupted_replace(path)
    if not links:
        _refuse_links(path)
    remedy = f"make {path} again"
    if not (path / MANIFEST).is_file():
        raise InputError(f"{path} is not a covis {kind} (no {MANIFEST}); check the path")
    manifest = files.checked(
        path / MANIFEST, files.read_json(path / MANIFEST, remedy, sealed=True), {"kind": str}, remedy
    )
    if manifest["kind"] != kind:
        raise InputError(f"{path} holds a {manifest['kind']!r}, not a {kind!r}; check the path")
    if manifest.get("schema") != _SCHEMA:
        raise InputError(f"{path} has schema {manifest.get('schema')}, this covis reads {_SCHEMA}; make it again")
    files.checked(path / MANIFEST, manifest, {"files": dict, **(facts or {})}, remedy)
    for name, entry in manifest["files"].items():
        files.checked(path / MANIFEST, entry, {"sha256": str, "bytes": int}, remedy)
        if name.split("/")[0] not in skip:
            _check_file(path, name, entry, verify, written)
    return manifest


def _check_file(path: Path, name: str, entry: Mapping[str, Any], verify: bool, written: bool) -> None:
    """Refuses a file of an artefact that is not what was written, or not inside it."""
    file = path / name
    if name.startswith(("/", "\\")) or ".." in Path(name).parts or "\0" in name:
        raise InputError(f"{path} names {name!r}, which is outside it; do not trust where it came from")
    if not file.exists():
        raise Damaged(f"{file} is missing; make {path} again")
    if not file.is_file() or file.stat().st_size != entry["bytes"]:
        raise Damaged(f"{file} is cut short or another file; make {path} again")
    if written:
        return
    note = _note_of(file, entry["sha256"]) if entry["bytes"] > SMALL_BYTES else None
    if note is not None and not verify and _is_recent(note):
        return
    if files.sha256(file) != entry["sha256"]:
        raise Damaged(f"{file} is damaged (SHA-256 differs from its manifest); make {path} again")
    if note is not None and abs(time.time() - file.stat().st_mtime) > _SETTLED_S:
        _write_note(note)


def _refuse_links(path: Path) -> None:
    """Refuses an artefact that is, or holds, a link to another place."""
    for place in (path, *path.rglob("*")):
        if place.is_symlink():
            raise InputError(f"{place} is a link; covis reads nothing outside {path}: put the file itself there")


def _note_of(file: Path, digest: str) -> Path:
    """The note that a file, with the stamp that it has now, was found to have this SHA-256."""
    key = fingerprint(os.fsencode(file.resolve()), list(files.stamp(file)), digest)
    return machine.cache_folder() / "verified" / key


def _is_recent(note: Path) -> bool:
    try:
        return time.time() - note.stat().st_mtime < _TRUSTED_S
    except OSError:
        return False


def _write_note(note: Path) -> None:
    """Writes a note and clears old ones; a cache that cannot be written costs another look only."""
    with contextlib.suppress(OSError):
        files.write_bytes(note, b"")
        for other in [other for other in note.parent.iterdir() if not _is_recent(other)]:
            other.unlink()


@contextlib.contextmanager
def claim(path: Path | str, kind: str, config: Mapping[str, Any]) -> Iterator[Path]:
    """Holds the living directory at `path` for this process and this `config`; the same config resumes it.

    A claim under which nothing was written is not binding: another config may take over the folder.
    """
    path = Path(path)
    record = path / f"{kind}.json"
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} already exists and is not a folder; choose another output or remove it")
    if path.is_dir() and not record.exists() and not all(map(files.is_transient, path.iterdir())):
        raise InputError(f"{path} holds other files; choose another output folder")
    path.mkdir(parents=True, exist_ok=True)
    with lock(path):
        wanted = json.loads(json.dumps(config))
        if record.exists() and not _unused(path, record):
            remedy = f"choose another output folder or remove {path}"
            stored = files.read_record(record, {"config": dict}, remedy)["config"]
            if stored != wanted:
                changes = difference(stored, wanted)
                raise InputError(f"{path} belongs to another {kind} ({changes}); choose another output folder")
        else:
            write_json(record, {"kind": kind, "config": wanted, "versions": versions(), "command": command()})
        try:
            yield path
        except BaseException:
            if _unused(path, record):
                record.unlink(missing_ok=True)
            raise


def _unused(path: Path, record: Path) -> bool:
    """Whether a claimed folder holds nothing but its claim."""
    return all(file == record or files.is_transient(file) for file in path.iterdir())


_SHOWN, _SHOWN_CHARACTERS = 6, 60
"""How many fields of a difference are printed, and how many characters of each value."""
_RECIPE = "recipe."
"""Prefix that is not printed before the fields of a recipe, so that their names are those that `--set` takes."""


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The fields in which two configurations differ, as readable text.

    >>> difference({"model": {"backbone": "vgg16", "weights": "pretrained"}}, {"model": {"backbone": "vgg16"}, "seed": 1})
    'model.weights: pretrained → –, seed: – → 1'
    """
    other = differences([stored, wanted])
    changes = [
        f"{name.removeprefix(_RECIPE)}: {_short(before)} → {_short(now)}"
        for name, (before, now) in list(other.items())[:_SHOWN]
    ]
    return ", ".join([*changes, *([f"and {len(other) - _SHOWN} more"] if len(other) > _SHOWN else [])])


def differences(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values that are not the same everywhere, by dotted name, one per entry of `facts`; None where absent."""
    named = [flat(f) for f in facts]
    names = dict.fromkeys(name for f in named for name in f)
    return {n: [f.get(n) for f in named] for n in names if any(f.get(n) != named[0].get(n) for f in named)}


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested facts by dotted name."""
    out: dict[str, Any] = {}
    for key, value in facts.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def _short(value: Any) -> str:
    text = "–" if value is None or value == "" else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def fingerprint(*parts: Any) -> str:
    """16 hex digits over arrays, bytes and JSON-able values, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if hasattr(part, "tobytes"):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(part.ravel().view("u1"))  # copies only arrays that are not contiguous
        else:
            digest.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    """What made an artefact: covis, Python, platform and the libraries that decide its numbers."""
    numbers = {"covis": covis.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in _TRACKED:
        with contextlib.suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


@cache
def code() -> str:
    """Fingerprint of this package's source: figures of one version number may come from different code."""
    root = Path(covis.__file__).parent
    sources = sorted(root.rglob("*.py"))
    return fingerprint(*(part for f in sources for part in (f.relative_to(root).as_posix(), f.read_bytes())))


def command() -> str:
    """The command line of this process, with the program's short name and without passwords in addresses."""
    program = Path(sys.argv[0]).name
    return " ".join(["covis" if program == "__main__.py" else program, *map(without_password, sys.argv[1:])])
