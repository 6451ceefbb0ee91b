"""Which files of a set can be used: a quick look at each before long work starts, and the limits that stop it.

The quick look reads a file's beginning and end. Odd-looking files are decoded to be sure, so a verdict here is final;
damage in the middle of a file shows only when it is decoded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.errors import InputError
from covis.core.foreign import open_regular
from covis.core.progress import say
from covis.images import ImageSet
from covis.reading.decoding import _MAX_BYTES, Reject, Rejected, decode

MISSING_LIMIT = 0.01
"""A larger share of absent images is an error."""
BAD_LIMIT = 0.05
"""A larger share of unusable images is an error."""
_TAIL = 64
_THREADS = 8
_PIECE = 4096


class Screened(NamedTuple):
    """The outcome of a quick look over a set."""

    ids: NDArray[np.int64]
    """(G,) usable images."""
    rejects: list[Rejected]


def screen(images: ImageSet, ids: ArrayLike | None = None) -> Screened:
    """Looks at the files at `ids` (all if None); raises `InputError` where too many are absent or bad."""
    screened = look_at_all(images, ids)
    check_limits(screened.rejects, len(images) if ids is None else np.size(ids), images.root)
    return screened


def look_at_all(images: ImageSet, ids: ArrayLike | None = None) -> Screened:
    """The same without limits."""
    wanted = np.arange(len(images)) if ids is None else np.asarray(ids, np.int64)
    pieces = [wanted[start : start + _PIECE] for start in range(0, len(wanted), _PIECE)]
    if len(pieces) > 1:
        say(f"checking {len(wanted)} files under {images.root}")
    with ThreadPoolExecutor(_THREADS) as pool:  # the time goes into waiting for the disk
        bad = [entry for part in pool.map(lambda piece: _bad(images, piece), pieces) for entry in part]
    rejects = [Rejected(images.name(i), v.reason, v.detail) for i, v in bad]
    return Screened(wanted[~np.isin(wanted, [i for i, _ in bad])] if bad else wanted, rejects)


def check_limits(rejects: Sequence[Rejected], total: int, root: Path) -> None:
    """Raises where more than 1 % of the images are absent, or more than 5 % unusable."""
    counts = Counter(r.reason for r in rejects)
    absent, bad = counts["missing"], len(rejects) - counts["missing"]
    if absent > MISSING_LIMIT * total:
        first = next(r.image for r in rejects if r.reason == "missing")
        raise InputError(
            f"{absent} of {total} images are not under {root} (first: {first}); more than {MISSING_LIMIT:.0%} stops the "
            "work, check the folder"
        )
    if bad > BAD_LIMIT * total:
        kinds = ", ".join(f"{n} {reason}" for reason, n in counts.most_common() if reason != "missing")
        first = next(r.image for r in rejects if r.reason != "missing")
        raise InputError(
            f"{bad} of {total} images under {root} cannot be used ({kinds}; first: {first}); more than {BAD_LIMIT:.0%} "
            "stops the work, fix or remove them"
        )


def look(path: Path | str) -> Reject | None:
    """What is wrong with a file, by its beginning and end; None if nothing seems to be."""
    try:
        if _sound(path):
            return None
        decode(path, (32, 32))
    except FileNotFoundError:
        return Reject("missing", str(path))
    except OSError as error:
        return Reject("unreadable", str(path), error.strerror or str(error))
    except Reject as reject:
        return reject
    return None


def _bad(images: ImageSet, ids: NDArray[np.int64]) -> list[tuple[int, Reject]]:
    """Those images that cannot be used, and why; at a million images the others must cost nothing."""
    return [(i, verdict) for i in ids.tolist() if (verdict := look(images.path(i)))]


def _sound(path: Path | str) -> bool:
    """Whether a file begins and ends as a whole JPEG or PNG does."""
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        head = handle.read(16)
        if size < 2 * _TAIL or size > _MAX_BYTES:
            return False
        handle.seek(-_TAIL, os.SEEK_END)
        tail = handle.read(_TAIL)
    if head.startswith(b"\xff\xd8\xff"):
        return b"\xff\xd9" in tail
    return head.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in tail
