"""Lists of image pairs that structure from motion should match, as hloc and COLMAP read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.files import write_text
from covis.graph import SimilarityGraph
from covis.images import ImageSet

ImagePairs = NDArray[np.int64]
"""(P, 2) ids of images, best first for each image."""
EXHAUSTIVE = 30
"""Sets of up to this many images are paired exhaustively: 435 pairs."""


def exhaustive(queries: int, database: int | None = None) -> ImagePairs:
    """Every pair of two sets, or every pair i < j of one."""
    if database is None:
        return np.stack(np.triu_indices(queries, 1), axis=1).astype(np.int64)
    grid = np.indices((queries, database)).reshape(2, -1).T
    return np.ascontiguousarray(grid, np.int64)


def by_ranking(ids: NDArray[np.int64], per_image: int, *, one_set: bool) -> ImagePairs:
    """Each image with its first `per_image` of a ranking (N, K), −1 for none; within one set, no image with itself."""
    usable = ids >= 0
    if one_set:
        usable &= ids != np.arange(len(ids))[:, None]
    kept = usable & (np.cumsum(usable, axis=1) <= per_image)
    rows, columns = np.nonzero(kept)
    return unique(np.column_stack([rows, ids[rows, columns]]), one_set=one_set)


def by_overlap(graph: SimilarityGraph, per_image: int, least: float = 0.0, *, one_set: bool) -> ImagePairs:
    """Each image with the `per_image` that it shares most with, of those with ψ ≥ `least`."""
    rows, columns, psi = graph.rows, np.asarray(graph.indices, np.int64), graph.psi
    use = (psi >= least) & (psi > 0)
    if one_set:
        use &= rows != columns
    rows, columns, psi = rows[use], columns[use], psi[use]
    order = np.lexsort((columns, -psi, rows))
    rows, columns = rows[order], columns[order]
    first = np.searchsorted(rows, rows)
    kept = np.arange(len(rows)) - first < per_image
    return unique(np.column_stack([rows[kept], columns[kept]]), one_set=one_set)


def unique(pairs: ImagePairs, *, one_set: bool) -> ImagePairs:
    """Each pair once, in the order of its first mention; in one set (i, j) and (j, i) are one pair."""
    key = np.sort(pairs, axis=1) if one_set else pairs
    _, first = np.unique(key, axis=0, return_index=True)
    return np.ascontiguousarray(pairs[np.sort(first)], np.int64)


def joined_pairs(*parts: ImagePairs, one_set: bool) -> ImagePairs:
    """The pairs of all lists, each once, image by image."""
    whole = np.concatenate(parts)
    return unique(whole[np.argsort(whole[:, 0], kind="stable")], one_set=one_set)


def write_pairs(path: Path | str, pairs: ImagePairs, queries: ImageSet, database: ImageSet) -> None:
    """`query map` on each line: what hloc, and COLMAP as a match list, read."""
    write_text(Path(path), pairs_text(pairs, queries, database))


def pairs_text(pairs: ImagePairs, queries: ImageSet, database: ImageSet) -> str:
    """The lines of such a file."""
    return "".join(f"{a} {b}\n" for a, b in _pair_names(pairs, queries, database))


def _pair_names(pairs: ImagePairs, queries: ImageSet, database: ImageSet) -> Iterator[tuple[str, str]]:
    spaced = {side.name(int(i)): None for side, ids in ((queries, pairs[:, 0]), (database, pairs[:, 1])) for i in np.unique(ids)
              if any(c in b" \t\r\n" for c in side.names[i])}  # fmt: skip
    if spaced:
        raise InputError(
            f"{len(spaced)} names have spaces, which lists of pairs cannot hold (first: {next(iter(spaced))!r}); rename those files"
        )
    for i, j in pairs:
        yield queries.name(int(i)), database.name(int(j))
