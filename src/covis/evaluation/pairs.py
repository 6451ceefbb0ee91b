"""Figures over pairs of descriptors: precision and recall, average precision, and how distances follow ψ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.graph import SimilarityGraph

Floats32 = NDArray[np.float32]
_BLOCK = 1 << 24
"""Distances held at once: 64 MB."""


def average_precision(queries: Floats32, database: Floats32, relevant: SimilarityGraph, *, one_set: bool) -> float:
    """Average precision over all pairs of unit descriptors (Q, dim), (M, dim), ranked by distance; in [0, 1].

    `relevant` holds only the positive pairs. Exact at any size in bounded memory: the pairs are never sorted, each
    is counted at the first positive distance that accepts it. With `one_set` no image is paired with itself.
    """
    if not relevant.pairs:
        raise InputError("no pair is relevant, so there is no average precision; check the ground truth")
    levels, inverse, positives = _levels(queries, database, relevant)
    accepted = np.zeros(len(levels) + 1, np.int64)
    for start, block in distance_blocks(queries, database):
        if one_set:
            rows = np.arange(len(block))
            block[rows, start + rows] = np.inf
        accepted += np.bincount(np.searchsorted(levels, block.ravel()), minlength=len(accepted))
    total = np.cumsum(accepted[:-1])
    correct = np.cumsum(positives)
    return float((correct / total)[inverse].mean())


def _levels(
    q: Floats32, d: Floats32, relevant: SimilarityGraph
) -> tuple[Floats32, NDArray[np.int64], NDArray[np.int64]]:
    """Distinct positive distances, the level of each positive pair and how many positives each level holds."""
    distances = np.empty(relevant.pairs, np.float32)
    # The same arithmetic as in the counting pass: a positive must be found at exactly its own level.
    for start, block in distance_blocks(q, d):
        part = slice(int(relevant.indptr[start]), int(relevant.indptr[start + len(block)]))
        rows = np.repeat(np.arange(len(block)), np.diff(relevant.indptr[start : start + len(block) + 1]))
        distances[part] = block[rows, relevant.indices[part]]
    levels, inverse, counts = np.unique(distances, return_inverse=True, return_counts=True)
    return levels, inverse, counts


def distance_blocks(queries: Floats32, database: Floats32) -> Iterator[tuple[int, Floats32]]:
    """Squared distances of unit descriptors, some rows (start, (rows, M)) at a time."""
    step = max(1, _BLOCK // max(1, len(database)))
    for start in range(0, len(queries), step):
        block = np.asarray(queries[start : start + step], np.float32) @ np.asarray(database, np.float32).T
        yield start, np.maximum(2.0 - 2.0 * block, 0.0, dtype=np.float32)


def pair_distances(queries: Floats32, database: Floats32, rows: ArrayLike, columns: ArrayLike) -> Floats32:
    """(N,) distances of the given pairs of unit descriptors."""
    i, j = np.asarray(rows), np.asarray(columns)
    out = np.empty(len(i), np.float32)
    step = max(1, _BLOCK // max(1, queries.shape[1]))
    for start in range(0, len(i), step):
        part = slice(start, start + step)
        out[part] = np.linalg.norm(queries[i[part]] - database[j[part]], axis=1)
    return out


def rank_correlation(psi: ArrayLike, distance: ArrayLike) -> float:
    """Spearman's ρ between ψ and distance, −1 for a descriptor whose distance falls strictly as views share more."""
    a, b = (mean_ranks(np.asarray(v, np.float64)) for v in (psi, distance))
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def mean_ranks(values: Floats) -> Floats:
    """(N,) ranks from 1; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def sample_pairs(
    graph: SimilarityGraph,
    count: int,
    admissible: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats32]:
    """Query ids, map ids and ψ of up to `count` pairs: half drawn from those with ψ > 0, half from all pairs.

    Random ones that are not `admissible` are left out: an image with itself has no ψ, but is not dissimilar either.
    """
    rng = np.random.default_rng(0)
    stored = np.sort(rng.choice(graph.pairs, min(count // 2, graph.pairs), replace=False))
    drawn = rng.integers(0, graph.shape, (4 * (count - len(stored)), 2))
    if admissible is not None:
        drawn = drawn[admissible(drawn[:, 0], drawn[:, 1])]
    drawn = drawn[: count - len(stored)]
    rows = np.concatenate([np.searchsorted(graph.indptr, stored, side="right") - 1, drawn[:, 0]])
    columns = np.concatenate([graph.indices[stored].astype(np.int64), drawn[:, 1]])
    return rows, columns, graph.lookup(rows, columns)
