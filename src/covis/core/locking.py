"""One process at a time in a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from covis.core.errors import InputError

LOCK = ".lock"


class InUse(InputError):  # noqa: N818 - a state of affairs, read as one
    """Another process holds the directory."""


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process at a time in the folder `path`; the system releases it even after SIGKILL."""
    import filelock

    file = path / LOCK
    held_lock = filelock.FileLock(file)
    try:
        held_lock.acquire(blocking=False)
    except filelock.Timeout:
        raise InUse(f"{path} is in use by process {_holder(file)}; wait or stop it") from None
    try:
        with contextlib.suppress(OSError):
            file.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        held_lock.release()


def _holder(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()[:20] or "?"
    except OSError:
        return "?"
