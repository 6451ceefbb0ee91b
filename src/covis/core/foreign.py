"""Files that someone else wrote or named: regular, bounded, and any fault in them an `InputError` that names the file."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from covis.core.errors import InputError


def open_regular(path: Path | str | bytes) -> IO[bytes]:
    """Opens a file that someone else named: never waits for a pipe, and refuses what is no regular file (`OSError`)."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "Is a directory" if stat.S_ISDIR(mode) else "Not a regular file", os.fspath(path))
        return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def read_bounded(path: Path | str | bytes, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; one that is larger raises `OSError` (EFBIG)."""
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if size <= limit:
            content = _read(handle, size, limit + 1)
            if len(content) <= limit:
                return content
    raise OSError(errno.EFBIG, f"File larger than {limit >> 20} MiB", os.fspath(path))


def _read(handle: IO[bytes], size: int, limit: int) -> bytes:
    """At most `limit` bytes; `size` are expected, and memory is first allocated for no more than these."""
    pieces: list[bytes] = []
    left, wanted = limit, size + 1
    while left > 0 and (piece := handle.read(min(left, wanted))):
        pieces.append(piece)
        left -= len(piece)
        wanted = 1 << 16
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


MAX_TEXT_BYTES = 1 << 30
"""Larger texts that others wrote are refused before they are read."""


def read_foreign(path: Path | str, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a file that someone else wrote: regular, and of at most `limit` bytes; else an `InputError`."""
    try:
        return read_bounded(path, limit)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check that the folder is complete") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({first_line(error)}); check the file") from None


def read_foreign_text(path: Path | str) -> str:
    """Like `read_foreign`, as UTF-8; invalid bytes are kept as surrogates."""
    return read_foreign(path).decode("utf-8-sig", "surrogateescape")


def check_regular(path: Path | str) -> None:
    """Refuses a pipe, device or folder that a library is about to open by its name."""
    try:
        open_regular(path).close()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({first_line(error)}); check the path") from None


_F = TypeVar("_F", bound=Callable[..., Any])


def foreign(what: str) -> Callable[[_F], _F]:
    """Decorates a reader of files that others wrote (its first argument): any failure is an `InputError` with the path.

    Readers report what is wrong as well as they can; this is for unforeseen failures. `--debug` shows the cause.
    """

    def decorate(reader: _F) -> _F:
        @functools.wraps(reader)
        def guarded(path: Any, *args: Any, **options: Any) -> Any:
            try:
                return reader(path, *args, **options)
            except (InputError, ImportError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the system's own message, with the path; errors about a file's content have no errno
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise InputError(f"{path} cannot be read as {what} ({reason}); check the file") from error

        return cast(_F, guarded)

    return decorate


def first_line(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())[:160]
    return text or type(error).__name__
