"""SHA-256 of files that are downloaded: those that covis knows, and those that this machine's user has accepted.

Weights run no code (they are read as tensors alone), so a file of unknown SHA-256 is taken at the first download; its
SHA-256 is printed, and required from then on.
"""

from __future__ import annotations

import re
from pathlib import Path

from covis.core.errors import InputError
from covis.core.files import read_json, sha256, write_json
from covis.core.machine import cache_folder
from covis.core.progress import say

UNPINNED = "unpinned"
"""`NAME:unpinned` is the same as NAME; it says aloud that the first download is not compared with anything."""
PINS: dict[str, str] = {}
"""Address, or repository of the model hub → SHA-256 of the file that is taken from there, where covis knows it."""
_PINNED = "pins.json"
"""File in the cache folder: what `PINS` lacks and this machine's user has accepted."""


def wanted_sha256(source: str, pin: str) -> str | None:
    """The SHA-256 that a file from `source` must have: `pin`, or the one that is known; None if any will do."""
    if pin and pin != UNPINNED:
        if not re.fullmatch(r"[0-9a-f]{64}", pin):
            raise InputError(f"{pin!r} is no SHA-256 (64 characters, 0 to 9 and a to f); give that, or `{UNPINNED}`")
        return pin
    return _accepted().get(source) or PINS.get(source)


def check_pinned(source: str, path: Path, pin: str) -> None:
    """Refuses a file from `source` that has another SHA-256 than the known one; accepts and prints an unknown one."""
    digest, wanted = sha256(path), wanted_sha256(source, pin)
    if wanted is not None and digest != wanted:
        raise InputError(
            f"{path.name} of {source} has the SHA-256 {digest}, expected {wanted}; it was changed there or damaged here "
            f"({path}): delete it to fetch it again, or give the weights as a file"
        )
    if wanted_sha256(source, "") is None:
        write_json(cache_folder() / _PINNED, {**_accepted(), source: digest})
        say(f"{source}: {path.name} has the SHA-256 {digest}, which later downloads must match")


def _accepted() -> dict[str, str]:
    """Source → SHA-256 that this machine's user accepted before."""
    file = cache_folder() / _PINNED
    if not file.is_file():
        return {}
    pins = read_json(file, f"delete {file}, and compare the SHA-256 that the next download says", sealed=True)
    return {str(k): str(v) for k, v in pins.items()}
