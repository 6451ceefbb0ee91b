"""Files of covis: written whole or not at all, hashed, and checked when they are read.

`replacing` is the only way in which covis puts a file in place, `draft_folder` and `replace_folder` a folder: a temporary
one beside it, synced, renamed, and its parent synced, so that a reader or a power failure sees the old one or the new
one. A temporary one is locked while it is written; the next write of its name removes those of dead processes. JSON
objects carry a checksum of themselves, manifests (`covis.core.artifacts`) those of the files beside them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import Damaged
from covis.core.foreign import first_line, open_regular, read_bounded
from covis.core.locking import LOCK

_MAX_JSON_BYTES = 1 << 30
"""Larger JSON files are refused before they are read."""
_PARTIAL = re.compile(r"^\..+\.[0-9a-f]{16}\.partial(\.\w+)?$")


@contextlib.contextmanager
def _path_in_errors(path: Path) -> Iterator[None]:
    """Makes write errors that name no file (a full disk, numpy's short writes) name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextlib.contextmanager
def replacing(path: Path | str, *, durable: bool = True, mode: int = 0o666) -> Iterator[Path]:
    """A temporary file to write to that becomes `path` once all of it is written; nothing is left behind otherwise.

    The target of a link is replaced, not the link. Pipes and devices such as /dev/stdout are written to as they are.
    """
    path = _target_of(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    partial = _new_partial(path, path.suffix)
    try:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
    except OSError as error:  # it names the temporary file, which means nothing to the user
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with _path_in_errors(path):
            _hold(handle)
            yield partial
            if durable:
                sync(partial)
            partial.replace(path)
            if durable:
                sync(path.parent)
    finally:
        os.close(handle)
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside `path`, which goes with all that is in it unless it was moved."""
    draft = _new_partial(path)
    draft.mkdir()
    handle = None if sys.platform == "win32" else os.open(draft, os.O_RDONLY)
    try:
        with _path_in_errors(path):
            if handle is not None:
                _hold(handle)
            yield draft
    finally:
        if handle is not None:
            os.close(handle)
        shutil.rmtree(draft, ignore_errors=True)


def replace_folder(source: Path, target: Path) -> None:
    """Moves the folder `source` to `target` atomically; an existing folder is then at `source`, or gone.

    Where the system cannot exchange two names, the old folder waits as `.NAME.old` between two renames, and
    `finish_interrupted_replace` puts it back if the process dies in between.
    """
    if not target.exists():
        source.rename(target)
    elif not _exchange(source, target):
        old = _old(target)
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        source.rename(target)
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    sync(target.parent)


def finish_interrupted_replace(target: Path) -> None:
    """Puts back the folder that a process was replacing when it died (see `replace_folder`)."""
    if not os.path.lexists(target) and _old(target).is_dir():
        with contextlib.suppress(OSError):
            _old(target).rename(target)


def _old(target: Path) -> Path:
    return target.with_name(f".{_short(target)}.old")


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names atomically; False where the system cannot."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(AttributeError):
        cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        status: int = ctypes.CDLL(None, use_errno=True).renameat2(cwd, os.fsencode(one), cwd, os.fsencode(other), swap)
        return status == 0
    return False


def _target_of(path: Path | str) -> Path:
    """What a link leads to, also where that does not exist."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # noqa: PTH114


def _short(path: Path) -> str:
    """As much of a name as fits into the name of a temporary file: file systems allow 255 bytes."""
    return os.fsdecode(os.fsencode(path.name)[:180])


def _new_partial(path: Path, suffix: str = "") -> Path:
    """A new temporary name for what will become `path`; the temporary files of dead processes for it are removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_partials(path.parent, f".{_short(path)}.")
    return path.with_name(f".{_short(path)}.{secrets.token_hex(8)}.partial{suffix if len(suffix) < 16 else ''}")


def clear_partials(folder: Path, start: str = ".") -> None:
    """Removes the temporary files and folders in `folder`, of names with that start, that no process writes any more."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(start) and is_partial(entry) and not entry.is_symlink():
                _clear_partial(Path(entry.path))


def _clear_partial(partial: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(partial, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            if _hold(handle):
                shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
        finally:
            os.close(handle)


def is_partial(path: Path | os.DirEntry[str]) -> bool:
    """Whether a name is that of a temporary file or folder."""
    return _PARTIAL.match(path.name) is not None


def is_transient(path: Path) -> bool:
    """Whether a file is a lock or a temporary one: all that is left by a process killed before it wrote anything."""
    return path.name == LOCK or is_partial(path)


def _hold(handle: int) -> bool:
    """Locks an open file until it is closed; False if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def sync(path: Path) -> None:
    """Forces a file's content or a folder's names onto the disk."""
    if sys.platform == "win32" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has nothing to force
            raise
    finally:
        os.close(handle)


def write_text(path: Path | str, content: str) -> None:
    """Writes UTF-8; a reader sees the old file or the new one. Names that are no UTF-8 keep their bytes."""
    write_bytes(path, content.encode("utf-8", "surrogateescape"))


def write_bytes(path: Path | str, content: bytes, *, mode: int = 0o666) -> None:
    """Writes bytes; a reader sees the old file or the new one."""
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(content)


def write_json(path: Path | str, value: Any, *, mode: int = 0o666) -> None:
    """Writes JSON, an object with a checksum of itself; a reader sees the old file or the new one."""
    plain = json.loads(json.dumps(value, default=str))
    if isinstance(plain, dict):
        plain = {**plain, _SEAL: _seal_of(plain)}
    content = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    write_bytes(path, content.encode("utf-8", "backslashreplace"), mode=mode)  # as JSON escapes a name that is no UTF-8


@contextlib.contextmanager
def writing_hdf5(path: Path | str, **options: Any) -> Iterator[Any]:
    """An h5py file in memory that becomes `path` once it is whole.

    HDF5 that cannot flush a file because the disk is full takes the whole process down, so it never sees the disk.
    """
    import h5py

    with h5py.File(Path(path).name or "memory", "w", driver="core", backing_store=False, **options) as file:
        yield file
        file.flush()
        write_bytes(path, file.id.get_file_image())


class Stamp(NamedTuple):
    """What changes when a file does: bytes, time of writing, file number, time of any change."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


def stamp(path: Path | str | bytes) -> Stamp:
    """The stamp of a file; raises `OSError` where there is none."""
    status = os.stat(path)  # noqa: PTH116 - names may be bytes
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def sha256(path: Path | str) -> str:
    """SHA-256 of a file's content."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


_SEAL = "covis_checksum"
"""The key under which a JSON object that covis wrote carries a checksum of itself."""


def _seal_of(value: Mapping[str, Any]) -> str:
    plain = {k: v for k, v in value.items() if k != _SEAL}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def read_json(path: Path | str, remedy: str = "check the file", *, sealed: bool = False) -> Any:
    """Reads JSON; what cannot be read, or differs from the checksum that it carries, is an error that names the file.

    sealed: an object without a checksum is an error too.
    """
    try:
        value = json.loads(read_bounded(path, _MAX_JSON_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise Damaged(f"{path} cannot be read as JSON ({first_line(error)}); {remedy}") from None
    if isinstance(value, dict) and _SEAL in value:
        if value.pop(_SEAL) != _seal_of(value):
            raise Damaged(f"{path} is damaged or was edited (its checksum differs); {remedy}")
    elif sealed:
        raise Damaged(f"{path} is damaged or was edited (its checksum is gone); {remedy}")
    return value


def read_record(path: Path | str, kinds: Mapping[str, Any], remedy: str = "make it again") -> dict[str, Any]:
    """A JSON object with these keys, each of the type (or tuple of types) given."""
    return checked(path, read_json(path, remedy), kinds, remedy)


def checked(path: Path | str, value: Any, kinds: Mapping[str, Any], remedy: str = "make it again") -> dict[str, Any]:
    """`value` of `path` as a JSON object with these keys, each of the type (or tuple of types) given."""
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged (holds a {type(value).__name__}, not an object); {remedy}")
    for key, kind in kinds.items():
        if key not in value:
            raise Damaged(f"{path} is damaged (no {key!r} in it); {remedy}")
        if not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is int):
            raise Damaged(f"{path} is damaged ({key!r} is {str(value[key])[:40]!r}); {remedy}")
    return value


Shape = Sequence[int | None]


def load_array(
    path: Path | str,
    kinds: str = "",
    shape: Shape | None = None,
    *,
    mapped: bool = False,
    remedy: str = "make it again",
) -> NDArray[Any]:
    """The array of a .npy file; never a pickle.

    kinds: letters of numpy kinds that it may have (`f`, `iu`, `S`); empty: any. shape: None in it means any length.
    mapped: memory-mapped, read-only.
    """
    with _loading(path, remedy):
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise Damaged(f"{path} holds several arrays, not one; {remedy}")
    return _fitting(str(path), array, kinds, shape, remedy)


def load_arrays(
    path: Path | str, kinds: Mapping[str, tuple[str, Shape | None]], remedy: str = "make it again"
) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name, each with its kinds and shape as in `load_array`."""
    with _loading(path, remedy), np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in kinds}
    return {name: _fitting(f"{path}: {name}", array, *kinds[name], remedy) for name, array in arrays.items()}


@contextlib.contextmanager
def _loading(path: Path | str, remedy: str) -> Iterator[None]:
    """Names the file where numpy fails on a damaged one, in whatever way; a file that is not there is an `OSError`."""
    open_regular(path).close()
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Damaged(f"{path} cannot be read as an array ({first_line(error)}); {remedy}") from None


def _fitting(place: str, array: NDArray[Any], kinds: str, shape: Shape | None, remedy: str) -> NDArray[Any]:
    """`array` if it has one of the kinds and the shape."""
    if kinds and array.dtype.kind not in kinds:
        raise Damaged(f"{place} holds {array.dtype}; {remedy}")
    if shape is not None and (
        array.ndim != len(shape) or any(w not in (None, n) for w, n in zip(shape, array.shape, strict=True))
    ):
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        raise Damaged(f"{place} has shape {array.shape}, expected {wanted}; {remedy}")
    return array
