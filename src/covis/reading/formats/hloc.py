"""hloc's lists of queries with intrinsics."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from covis.core.errors import InputError
from covis.core.foreign import foreign, open_regular
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.cameras import MODELS, calibration, camera
from covis.reading.readers import READERS, Reader
from covis.reading.textfile import cells_of

_HEAD_BYTES = 1 << 16
_LIST_LINE = re.compile(rf"^\S+ ({'|'.join(MODELS)}) \d+ \d+( \S+)+$")


def is_query_list(path: Path) -> bool:
    """Whether a text file lists `name MODEL width height parameters…`."""
    try:
        with open_regular(path) as handle:
            head = handle.read(_HEAD_BYTES).decode("utf-8", "surrogateescape").split("\n")
    except (OSError, ValueError):
        return False
    first = next((line.strip() for line in head if line.strip() and not line.startswith("#")), "")
    return bool(_LIST_LINE.match(first))


@foreign("a list of queries")
def read_query_list(path: Path, root: Path | None = None) -> ImageSet:
    """hloc's list of queries with intrinsics; poses are unknown. `root`: folder of the images. [default: the list's]"""
    listed = cells_of(path)
    where = [f"{path}: line {number}" for number, _ in listed]
    short = next((w for w, (_, cells) in zip(where, listed, strict=True) if len(cells) < 5), None)
    if short or not listed:
        raise InputError(f"{short or path}: expected `name MODEL width height parameters…` on each line")
    cameras = [camera(c[1], c[2], c[3], c[4:], w) for w, (_, c) in zip(where, listed, strict=True)]
    intrinsics, columns = calibration(cameras)
    nowhere = Poses(np.full((len(listed), 2), np.nan), np.full(len(listed), np.nan))
    names = [cells[0] for _, cells in listed]
    return ImageSet.of(root or path.parent, names, nowhere, intrinsics=intrinsics, columns=columns)


READERS.register("hloc")(Reader(lambda path: path.suffix == ".txt" and is_query_list(path), read_query_list))
