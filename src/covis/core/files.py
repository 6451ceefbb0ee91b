"""Files of covis: written whole or not at all, hashed, and checked when they are read.

`replacing` is the only way in which covis puts a file in place: an exclusive temporary file beside it, synced, renamed,
and the folder synced, so that a reader or a power failure sees the old file or the new one. JSON objects carry a
checksum of themselves, manifests (`covis.core.artifacts`) those of the files beside them.
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
import stat
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import Damaged
from covis.core.foreign import first_line, open_regular, read_bounded
from covis.core.locking import LOCK

MAX_JSON_BYTES = 1 << 30
"""Larger JSON files are refused before they are read."""
_NAME_BYTES = 180
"""How much of a name goes into the name of its temporary file: file systems allow 255 bytes."""
_PARTIAL = re.compile(r"^\..+\.[0-9a-f]{16}\.partial(\.\w+)?$")
BAD_ARRAY = (
    ValueError, EOFError, KeyError, TypeError, SyntaxError, OverflowError, MemoryError, RuntimeError, NotImplementedError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What numpy raises on a damaged file."""


@contextlib.contextmanager
def with_path_in_errors(path: Path) -> Iterator[None]:
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
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # noqa: PTH114
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_partials(path)
    partial = partial_name(path, path.suffix)
    try:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
    except OSError as error:  # it names the temporary file, which means nothing to the user
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with with_path_in_errors(path):
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


def write_text(path: Path | str, content: str) -> None:
    """Writes UTF-8; a reader sees the old file or the new one. Names that are no UTF-8 keep their bytes."""
    with replacing(path) as partial:
        partial.write_text(content, encoding="utf-8", errors="surrogateescape", newline="")


def write_bytes(path: Path | str, content: bytes, *, mode: int = 0o666) -> None:
    """Writes bytes; a reader sees the old file or the new one."""
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(content)


def write_json(path: Path | str, value: Any, *, sealed: bool = True, mode: int = 0o666) -> None:
    """Writes JSON; a reader sees the old file or the new one. An object carries a checksum of itself if `sealed`."""
    plain = json.loads(json.dumps(value, ensure_ascii=False, default=str))
    if isinstance(plain, dict) and sealed:
        plain = {**plain, SEAL: seal_of(plain)}
    content = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    try:
        write_bytes(path, content.encode("utf-8"), mode=mode)
    except UnicodeEncodeError:  # a file name that is no UTF-8
        write_bytes(path, (json.dumps(plain, indent=2) + "\n").encode("ascii"), mode=mode)


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


def replace_folder(source: Path, target: Path) -> None:
    """Moves the folder `source` to `target` atomically, also over an existing folder, which is then removed.

    Where the system cannot exchange two names, the old folder waits as `.NAME.old` between two renames, and
    `finish_interrupted_replace` puts it back if the process dies in between.
    """
    if not target.exists():
        source.rename(target)
        sync(target.parent)
        return
    if _exchange(source, target):
        sync(target.parent)
        shutil.rmtree(source, ignore_errors=True)
        return
    old = _old(target)
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)
    source.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def finish_interrupted_replace(target: Path) -> None:
    """Puts back the folder that a process was replacing when it died (see `replace_folder`)."""
    if not os.path.lexists(target) and _old(target).is_dir():
        with contextlib.suppress(OSError):
            _old(target).rename(target)


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name[:_NAME_BYTES]}.old")


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names atomically; False where the system cannot."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(AttributeError):
        cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        status: int = ctypes.CDLL(None, use_errno=True).renameat2(cwd, os.fsencode(one), cwd, os.fsencode(other), swap)
        return status == 0
    return False


def partial_name(path: Path, suffix: str = "") -> Path:
    """A new temporary name for what will become `path`."""
    short = os.fsdecode(os.fsencode(path.name)[:_NAME_BYTES])
    return path.with_name(f".{short}.{secrets.token_hex(8)}.partial{suffix if len(suffix) < 16 else ''}")


def is_partial(path: Path) -> bool:
    """Whether a name is one that `partial_name` gives."""
    return _PARTIAL.match(path.name) is not None


def is_transient(path: Path) -> bool:
    """Whether a file is a lock or a temporary one: all that is left by a process killed before it wrote anything."""
    return path.name == LOCK or is_partial(path)


def clear_partials(path: Path) -> None:
    """Removes what dead processes left behind while writing `path`; what is being written now stays."""
    start = f".{os.fsdecode(os.fsencode(path.name)[:_NAME_BYTES])}."
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        stale = [Path(e.path) for e in entries if e.name.startswith(start) and _PARTIAL.match(e.name)]
        for partial in stale:
            if partial.name[len(start) :].count(".") <= 2:  # not that of another file whose name begins the same way
                clear_partial(partial)


def clear_partial(partial: Path) -> None:
    """Removes a temporary file or folder unless a process still writes it; links are left alone."""
    with contextlib.suppress(OSError):
        handle = os.open(partial, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            if _hold(handle):
                if stat.S_ISDIR(os.fstat(handle).st_mode):
                    shutil.rmtree(partial, ignore_errors=True)
                else:
                    partial.unlink(missing_ok=True)
        finally:
            os.close(handle)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Marks a temporary folder as being written, so that `clear_partials` of another process leaves it."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _hold(handle)
        yield
    finally:
        os.close(handle)


def _hold(handle: int) -> bool:
    """Locks an open file until it is closed; False if another process has it."""
    if sys.platform == "win32":
        return True
    import fcntl

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


SEAL = "covis_checksum"
"""The key under which a JSON object that covis wrote carries a checksum of itself."""


def seal_of(value: Mapping[str, Any]) -> str:
    """The checksum that a JSON object carries of everything else in it."""
    plain = {k: v for k, v in value.items() if k != SEAL}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def read_json(path: Path | str, remedy: str = "check the file") -> Any:
    """Reads JSON; what cannot be read, or differs from the checksum that it carries, is an error that names the file."""
    return read_sealed(path, remedy)[0]


def read_sealed(path: Path | str, remedy: str = "check the file") -> tuple[Any, bool]:
    """Like `read_json`, and whether there was a checksum."""
    try:
        value = json.loads(read_bounded(path, MAX_JSON_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise Damaged(f"{path} cannot be read as JSON ({first_line(error)}); {remedy}") from None
    if isinstance(value, dict) and SEAL in value:
        if value[SEAL] != seal_of(value):
            raise Damaged(f"{path} is damaged or was edited (its checksum differs); {remedy}")
        del value[SEAL]
        return value, True
    return value, False


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
    try:
        with open_regular(path):
            pass
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except BAD_ARRAY as error:
        raise Damaged(f"{path} cannot be read as an array ({first_line(error)}); {remedy}") from None
    if not isinstance(array, np.ndarray):
        raise Damaged(f"{path} holds several arrays, not one; {remedy}")
    return _fitting(path, "", array, kinds, shape, remedy)


def load_arrays(
    path: Path | str, kinds: Mapping[str, tuple[str, Shape | None]], remedy: str = "make it again"
) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name, each with its kinds and shape as in `load_array`."""
    try:
        with open_regular(path):
            pass
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in kinds}
    except (*BAD_ARRAY, AttributeError) as error:
        raise Damaged(f"{path} cannot be read as arrays ({first_line(error)}); {remedy}") from None
    return {name: _fitting(path, name, arrays[name], *kinds[name], remedy) for name in kinds}


def _fitting(
    path: Path | str, name: str, array: NDArray[Any], kinds: str, shape: Shape | None, remedy: str
) -> NDArray[Any]:
    """`array` if it has one of the kinds and the shape."""
    place = f"{path}: {name}" if name else str(path)
    if kinds and array.dtype.kind not in kinds:
        raise Damaged(f"{place} holds {array.dtype}; {remedy}")
    if shape is not None and (
        array.ndim != len(shape) or any(w not in (None, n) for w, n in zip(shape, array.shape, strict=True))
    ):
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        raise Damaged(f"{place} has shape {array.shape}, expected {wanted}; {remedy}")
    return array
