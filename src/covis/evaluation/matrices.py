"""Descriptors that another tool wrote: a matrix and the names of its rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Descriptors
from covis.core.errors import InputError
from covis.core.files import load_array
from covis.core.foreign import read_foreign
from covis.images import ImageSet, encode_names


def read_descriptors(path: Path | str, images: ImageSet) -> Descriptors:
    """Descriptors that another tool wrote: `FILE.npy` (N, dim) beside `FILE.txt`, one image name per line, any order.

    Names are matched with the images' own by their whole path or, where that is unambiguous, by file name.
    """
    path = Path(path)
    matrix, given = open_matrix(path)
    rows = np.asarray(matrix[match_names(given, images, path.with_suffix(".txt"))], np.float32)
    return unit_rows(path, rows, images.name)


def open_matrix(path: Path) -> tuple[NDArray[Any], NDArray[np.bytes_]]:
    """`FILE.npy` (N, dim), memory-mapped, and the names of its rows in `FILE.txt`."""
    matrix = load_array(path, "fiu", mapped=True, remedy="write it with numpy.save")
    listing = path.with_suffix(".txt")
    if not listing.is_file():
        raise InputError(f"{listing} does not exist; write the image names of {path.name} into it, one per line")
    given = encode_names(read_foreign(listing).splitlines())
    if matrix.ndim != 2 or len(given) != len(matrix):
        raise InputError(f"{path} has shape {matrix.shape}, but {listing} names {len(given)} images; one row per name")
    return matrix, given


def unit_rows(path: Path, rows: NDArray[Any], name: Callable[[int], str]) -> Descriptors:
    """Rows of a matrix scaled to unit length; a row that is zero or not finite is an error that gives its `name`."""
    rows = np.asarray(rows, np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(length).all() or (length == 0).any():
        at = int(np.flatnonzero(~(np.isfinite(length[:, 0]) & (length[:, 0] > 0)))[0])
        raise InputError(f"{path}: the descriptor of {name(at)!r} is zero or not finite; compute it again")
    return np.asarray(rows / length, np.float32)


def match_names(given: NDArray[np.bytes_], images: ImageSet, listing: Path) -> NDArray[np.int64]:
    """Row of `given` for each image."""
    for view in (bytes, _basename):
        wanted = [view(name) for name in images.names]
        rows = {view(name): i for i, name in enumerate(given)}
        if len(rows) == len(given) and all(name in rows for name in wanted):
            return np.array([rows[name] for name in wanted], np.int64)
    known = set(given.tolist())
    missing = [i for i, name in enumerate(images.names) if name not in known]
    which = f"{images.name(missing[0])!r} is missing ({len(missing)} such)" if missing else "a name is there twice"
    raise InputError(f"{listing} does not name the benchmark's {len(images)} images: {which}")


def _basename(name: bytes) -> bytes:
    return os.path.basename(name)  # noqa: PTH119 (bytes)
