"""Labels on disk with the images they are about: a graph's folder, with names and poses beside its arrays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covis.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses

_ARRAYS = ("names", "xy", "heading")


class Labels(NamedTuple):
    """A graph and what its rows and columns are."""

    graph: SimilarityGraph
    queries: ImageSet
    database: ImageSet


def save_labels(labels: Labels, path: Path | str) -> None:
    """Writes the graph and, beside it, its images' names, positions and headings."""
    sides = {"queries": labels.queries}
    if labels.database is not labels.queries:
        sides["database"] = labels.database
    beside = {
        f"{side}_{name}": array
        for side, images in sides.items()
        for name, array in zip(_ARRAYS, (images.names, images.poses.xy, images.poses.heading), strict=True)
    }
    labels.graph.save(path, beside=beside)


def open_labels(path: Path | str) -> Labels:
    """Opens what `save_labels` wrote; one object twice where a set was matched with itself."""
    path = Path(path)
    graph = SimilarityGraph.open(path)
    queries = _side(path, "queries", graph.shape[0])
    one_set = not (path / "database_names.npy").exists()
    return Labels(graph, queries, queries if one_set else _side(path, "database", graph.shape[1]))


def _side(path: Path, side: str, n: int) -> ImageSet:
    try:
        names, xy, heading = (np.load(path / f"{side}_{name}.npy", allow_pickle=False) for name in _ARRAYS)
    except FileNotFoundError:
        raise InputError(f"{path} does not name its images; make it again with `covis label`") from None
    if len(names) != n:
        raise InputError(f"{path} names {len(names)} {side}, its graph has {n}; make it again")
    return ImageSet.of(path, names, Poses(xy, heading))


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """A path to write to that becomes `path` once all of it is written; nothing is left behind otherwise.

    Links, pipes and devices such as /dev/stdout are written to as they are: they must not be replaced by a file.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
