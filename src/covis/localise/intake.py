"""Small services of a change to a map: what files look like, what was left out, which name was meant."""

from __future__ import annotations

import csv
import difflib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.datasets.screening import REJECTS, Rejected, write_rejects
from covis.descriptors import DescriptorStore
from covis.images import ImageSet
from covis.progress import say

_NAMES_COMPARED = 10_000


def plain(images: ImageSet) -> ImageSet:
    """With heights always there, so that sets with and without them join."""
    poses = images.poses
    return replace(
        images, poses=replace(poses, z=np.full(len(poses), np.nan) if poses.z is None else poses.z, rotation=None)
    )


def stamps(files: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """(N, 2) size and time of files, so that a changed photo is embedded again."""
    found = []
    for file in files:
        try:
            status = os.stat(bytes(file))  # noqa: PTH116 - names may be bytes
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((-1, -1))
    return np.array(found, np.int64).reshape(-1, 2)


def listed(store: DescriptorStore, lost: list[Rejected]) -> list[Rejected]:
    """Rejects of a segment as it lists them, or `lost` where it lists none."""
    listing = store.path / REJECTS
    if not listing.is_file():
        return lost
    with listing.open(newline="", encoding="utf-8", errors="surrogateescape") as handle:
        return [Rejected(*line) for line in list(csv.reader(handle))[1:]]


def list_rejects(path: Path, rejects: list[Rejected]) -> None:
    """Writes what was left out, and says so; nothing where all were taken."""
    if rejects:
        write_rejects(path, rejects)
        say(f"{len(rejects)} photos left out, listed in {path}")


def nearest_name(name: str, images: ImageSet) -> str:
    """A hint for a name that is not there."""
    names = [images.name(i) for i in range(min(len(images), _NAMES_COMPARED))]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
