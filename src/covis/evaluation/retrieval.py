"""From descriptors of any tool to figures: search as the protocol says, score, and sweep descriptor sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Descriptors
from covis.core.errors import InputError
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.metrics import KS, recall_at_k
from covis.evaluation.pairs import average_precision, pair_distances, rank_correlation, sample_pairs
from covis.evaluation.result import Evaluation
from covis.evaluation.scoring import evaluate
from covis.images import ImageSet
from covis.poses import PLACE_M
from covis.ranking import Ranking
from covis.search import rank

SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Descriptor sizes that a sweep tries, up to the descriptor's own."""
SAMPLED_PAIRS = 20_000
UNIT_TOLERANCE = 1e-3


def recall(
    zq: ArrayLike,
    zdb: ArrayLike,
    xyq: ArrayLike,
    xydb: ArrayLike,
    *,
    ks: Sequence[int] = KS,
    radius_m: float = PLACE_M,
) -> dict[int, float]:
    """Recall@k in percent of unit descriptors (Q, dim) and (M, dim) taken at positions (Q, 2) and (M, 2) in metres.

    A map image within `radius_m` is right; queries without one do not count. For named protocols see `covis.evaluate`.

    >>> import numpy as np
    >>> recall(np.eye(3), np.eye(3), [[0, 0], [50, 0], [90, 0]], [[9, 0], [49, 0], [500, 0]], ks=(1,))
    {1: 100.0}
    """
    queries, database = (np.asarray(z, np.float32) for z in (zq, zdb))
    here, there = (np.asarray(xy, np.float64) for xy in (xyq, xydb))
    for z, xy, name in ((queries, here, "queries"), (database, there, "map")):
        if z.ndim != 2 or xy.shape != (len(z), 2):
            raise InputError(f"{name}: descriptors {z.shape} and positions {xy.shape}; expected (N, dim) and (N, 2)")
    near = [np.flatnonzero(np.hypot(*(there - xy).T) <= radius_m) for xy in here]
    ranking = rank(queries, database, min(max(ks), len(database)))
    return recall_at_k(ranking.ids, near, ks)


def rank_descriptors(queries: Descriptors, database: Descriptors, benchmark: Benchmark, depth: int = 0) -> Ranking:
    """The exact ranking of unit descriptors (Q, dim), (M, dim), as deep as the protocol needs and at least `depth`."""
    mine, theirs = benchmark.group_codes
    itself = np.arange(len(queries)) if benchmark.one_set else None
    depth = max(depth, benchmark.depth)
    return rank(queries, database, depth, mine, theirs, groups=benchmark.groups, exclude=itself)


def evaluate_descriptors(
    queries: Descriptors,
    database: Descriptors,
    benchmark: Benchmark,
    subject: Mapping[str, Any] | None = None,
    *,
    ranking: Ranking | None = None,
    further: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Scores unit descriptors of the benchmark's images by the exact ranking, or by a `ranking` made from it."""
    check_pair(queries, database, benchmark)
    size = {"dim": int(queries.shape[1])}
    figures, samples = pair_figures(queries, database, benchmark)
    ranking = rank_descriptors(queries, database, benchmark) if ranking is None else ranking
    all_figures = size | figures | dict(further or {})
    return evaluate(ranking, benchmark, subject={**(subject or {}), **size}, further=all_figures, samples=samples)


def check_pair(queries: Descriptors, database: Descriptors, benchmark: Benchmark) -> None:
    """Refuses descriptors that are not one unit vector per image, or differ in size between queries and map."""
    check_descriptors(queries, benchmark.queries, "queries")
    if database is not queries:
        check_descriptors(database, benchmark.database, "map")
    if queries.shape[1] != database.shape[1]:
        raise InputError(f"query descriptors have {queries.shape[1]} dims, those of the map {database.shape[1]}")


def pair_figures(
    queries: Descriptors, database: Descriptors, benchmark: Benchmark
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Spearman between ψ and distance over sampled pairs, average precision over all where the protocol has it.

    Also the sample itself: `pair_query`, `pair_map`, `pair_psi`, `pair_distance`, each (N,).
    """
    figures: dict[str, Any] = {}
    samples: dict[str, NDArray[Any]] = {}
    if benchmark.relevance is None:
        return figures, samples
    if benchmark.graded.has_grades:
        rows, columns, psi = sample_pairs(benchmark.graded, SAMPLED_PAIRS, benchmark.admissible)
        distance = pair_distances(queries, database, rows, columns)
        similar = psi > 0
        figures["spearman_psi_distance"] = rank_correlation(psi, distance)
        figures["spearman_psi_distance_similar"] = rank_correlation(psi[similar], distance[similar])
        samples = {"pair_query": rows, "pair_map": columns, "pair_psi": psi, "pair_distance": distance}
    if benchmark.pairs:
        ap = average_precision(queries, database, benchmark.positives, one_set=benchmark.one_set)
        figures["average_precision"] = 100.0 * ap
    return figures, samples


def check_descriptors(descriptors: Descriptors, images: ImageSet, side: str) -> None:
    """Refuses descriptors that are not one unit vector per image."""
    if descriptors.ndim != 2 or len(descriptors) != len(images):
        raise InputError(f"descriptors of the {side} have shape {descriptors.shape}; expected ({len(images)}, dim)")
    norm = np.linalg.norm(descriptors, axis=1)
    wrong = ~(np.abs(norm - 1.0) <= UNIT_TOLERANCE)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"the descriptor of {side} image {images.name(at)!r} has length {norm[at]:.4g}, not 1 ({int(wrong.sum())} such)"
        )
