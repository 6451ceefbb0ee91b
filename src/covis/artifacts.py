"""A directory with a manifest: written atomically, checksummed, fingerprinted, verified on open.

Finished things (graphs, models, stores) are written whole through `create`. Things that live longer than one
write (training runs, maps) are claimed through `claim`, which binds the directory to one configuration and
locks it against a second process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import covis
from covis.errors import InputError

MANIFEST = "manifest.json"
SCHEMA = 1
_TRACKED = ("numpy", "numba", "scipy", "torch", "timm", "faiss-cpu")


class InUse(InputError):  # noqa: N818 - a state of affairs, read as one
    """Another process holds the directory."""


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

    Raises `InputError` if `path` exists, unless `replace` (the old one then stays until the new one is whole). What
    can be made again at will and has thousands of files need not be `durable`: it is then not forced onto the disk
    file by file, and only after a power failure `open_manifest` may find it damaged.
    """
    path = Path(path)
    if path.exists() and not replace and any(path.iterdir() if path.is_dir() else [path]):
        raise InputError(f"{path} exists already; choose another output or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Draft(path.parent / f".{path.name}.{os.getpid()}.partial", dict(facts or {}))
    shutil.rmtree(draft.path, ignore_errors=True)
    draft.path.mkdir()
    try:
        yield draft
        _seal(draft, kind, durable)
        _put_in_place(draft.path, path)
    except BaseException:
        shutil.rmtree(draft.path, ignore_errors=True)
        raise


def _seal(draft: Draft, kind: str, durable: bool) -> None:
    files = {str(f.relative_to(draft.path)): f for f in sorted(draft.path.rglob("*")) if f.is_file()}
    write_manifest(draft.path, kind, draft.facts, {name: file_entry(f) for name, f in files.items()})
    for file in files.values() if durable else ():
        _sync(file)
    _sync(draft.path)


def write_manifest(path: Path, kind: str, facts: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes `path` an artefact of `kind`: from this moment readers see exactly `files` (name → `file_entry`)."""
    head = {"kind": kind, "schema": SCHEMA, "created": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(path / MANIFEST, {**head, "versions": versions(), **facts, "files": dict(files)})


def file_entry(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"sha256": file_sha256(path), "bytes": path.stat().st_size}


def _put_in_place(source: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    source.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def open_manifest(path: Path | str, kind: str, *, verify: bool = True) -> dict[str, Any]:
    """The manifest of the artefact at `path`, after checking its kind, schema and (with `verify`) every file."""
    path = Path(path)
    if not (path / MANIFEST).is_file():
        raise InputError(f"{path} is not a covis {kind} (no {MANIFEST}); check the path")
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    if manifest.get("kind") != kind:
        raise InputError(f"{path} holds a {manifest.get('kind')!r}, not a {kind!r}; check the path")
    if manifest.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {manifest.get('schema')}, this covis reads {SCHEMA}; make it again")
    for name, entry in manifest["files"].items():
        file = path / name
        if not file.is_file() or file.stat().st_size != entry["bytes"]:
            raise InputError(f"{file} is missing or cut short; make {path} again")
        if verify and file_sha256(file) != entry["sha256"]:
            raise InputError(f"{file} is damaged (SHA-256 differs from its manifest); make {path} again")
    return manifest


@contextlib.contextmanager
def claim(path: Path | str, kind: str, config: Mapping[str, Any]) -> Iterator[Path]:
    """Holds the living directory at `path` for this process and this `config`; the same config resumes it."""
    path = Path(path)
    record = path / f"{kind}.json"
    if path.is_dir() and not record.exists() and any(not _begun(p, record) for p in path.iterdir()):
        raise InputError(f"{path} holds other files; choose another output folder")
    path.mkdir(parents=True, exist_ok=True)
    with lock(path):
        wanted = json.loads(json.dumps(config))
        if record.exists():
            found = read_json(record)["config"]
            if found != wanted:
                raise InputError(
                    f"{path} belongs to another {kind} ({_difference(found, wanted)}); choose another output folder"
                )
        else:
            write_json(record, {"kind": kind, "config": wanted, "versions": versions(), "command": command()})
        yield path


def _begun(file: Path, record: Path) -> bool:
    """Whether a file is what a claim leaves that was killed before its record was whole."""
    return file.name == ".lock" or (file.name.startswith(f".{record.name}.") and file.name.endswith(".partial"))


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process at a time in `path`; the system releases it even after SIGKILL."""
    with (path / ".lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise InUse(f"{path} is in use by process {handle.read().strip() or '?'}; wait or stop it") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    keys = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
    return ", ".join(f"{k}: {found.get(k)!r} there, {wanted.get(k)!r} now" for k in keys[:3])


def write_json(path: Path, value: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def read_json(path: Path) -> Any:
    """Reads JSON, with an error that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error})") from None


def cache_folder() -> Path:
    """Where things that can be made again are kept: COVIS_CACHE, or `covis` in the user's cache folder."""
    given = os.environ.get("COVIS_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covis"


def fingerprint(*parts: Any) -> str:
    """16 hex digits over arrays, bytes and JSON-able values, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if hasattr(part, "tobytes"):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(part.ravel().view("u1"))  # a copy only of scattered arrays
        else:
            digest.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@cache
def versions() -> dict[str, str]:
    """What made an artefact: covis, Python, platform and the libraries that decide its numbers."""
    found = {"covis": covis.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in _TRACKED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def code() -> str:
    """Fingerprint of this package's source: figures of one version number may come from different code."""
    root = Path(__file__).parent
    files = sorted(root.rglob("*.py"))
    return fingerprint(*(part for f in files for part in (f.relative_to(root).as_posix(), f.read_bytes())))


def command() -> str:
    """The command line of this process, with the program's short name."""
    program = Path(sys.argv[0]).name
    return " ".join(["covis" if program == "__main__.py" else program, *sys.argv[1:]])


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
