"""`evaluate(ranking, benchmark)`: every figure that the protocol and the ranking allow, from one look at each query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.metrics import (
    LEVEL,
    RESAMPLES,
    Ranked,
    answerable,
    average_precision_at_k,
    bootstrap_interval,
    first_hits,
    limit_name,
    localised,
    ndcg_at_k,
    nearest_admissible,
    pose_errors,
    ranked_psi,
    recall_by_radius,
)
from covis.evaluation.result import Evaluation, Figures
from covis.graph import SimilarityGraph
from covis.images import ImageSet

Floats32 = NDArray[np.float32]
_BLOCK = 1 << 24
"""Distances held at once: 64 MB."""


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision and recall when every match up to a distance is accepted; one point per distinct distance."""

    distance: Floats
    precision: Floats
    recall: Floats

    @property
    def average_precision(self) -> float:
        """Σ (recall step) · precision: the area under the curve without interpolation."""
        return float(np.sum(np.diff(self.recall, prepend=0.0) * self.precision))

    @property
    def recall_at_full_precision(self) -> float:
        """The largest recall that still has no false match."""
        return float(self.recall[self.precision >= 1.0].max(initial=0.0))


def precision_recall(distance: ArrayLike, correct: ArrayLike, possible: int | None = None) -> PrecisionRecall:
    """The curve of matches (N,) with their `distance` and whether each is `correct`, the nearest accepted first.

    `possible` is how many correct ones could be found at best (default: those given). Ties are accepted together.
    """
    d, hit = np.asarray(distance, np.float64), np.asarray(correct, bool)
    if d.shape != hit.shape or d.ndim != 1:
        raise InputError(f"distances {d.shape} and outcomes {hit.shape} must be two lists of one length")
    possible = int(hit.sum()) if possible is None else possible
    if possible < 1:
        raise InputError("no pair is correct, so precision and recall say nothing; check the ground truth")
    order = np.argsort(d, kind="stable")
    d = d[order]
    last = np.flatnonzero(np.append(np.diff(d) > 0, len(d) > 0))
    hits = np.cumsum(hit[order])[last]
    return PrecisionRecall(d[last], hits / (last + 1.0), hits / possible)


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
    from scipy.stats import rankdata

    a, b = (rankdata(np.asarray(v, np.float64)) for v in (psi, distance))
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def sample_pairs(
    graph: SimilarityGraph,
    count: int,
    admissible: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]] | None = None,
    seed: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats32]:
    """Query ids, map ids and ψ of up to `count` pairs: half drawn from those with ψ > 0, half from all pairs.

    Random ones that are not `admissible` are left out: an image with itself has no ψ, but is not dissimilar either.
    """
    rng = np.random.default_rng(seed)
    stored = np.sort(rng.choice(graph.pairs, min(count // 2, graph.pairs), replace=False))
    drawn = rng.integers(0, graph.shape, (4 * (count - len(stored)), 2))
    if admissible is not None:
        drawn = drawn[admissible(drawn[:, 0], drawn[:, 1])]
    drawn = drawn[: count - len(stored)]
    rows = np.concatenate([np.searchsorted(graph.indptr, stored, side="right") - 1, drawn[:, 0]])
    columns = np.concatenate([graph.indices[stored].astype(np.int64), drawn[:, 1]])
    return rows, columns, graph.lookup(rows, columns)


# `evaluate(ranking, benchmark)`: every figure that the protocol and the ranking allow, from one look at each query.


NDCG_K = 10
Arrays = dict[str, NDArray[Any]]


def evaluate(
    ranking: Ranked,
    benchmark: Benchmark,
    *,
    subject: Mapping[str, Any] | None = None,
    further: Mapping[str, Any] | None = None,
    samples: Mapping[str, NDArray[Any]] | None = None,
    resamples: int = RESAMPLES,
) -> Evaluation:
    """Scores a raw or settled ranking (Q, K) of the benchmark's map for each of its queries.

    `subject` says what made the ranking. `further` figures (such as average precision over pairs) and arrays (such as
    `samples` of pairs) are kept with the evaluation.
    """
    ids, distances = benchmark.settle(ranking)
    arrays = _outcomes(ids, distances, benchmark)
    figures = {**_head(benchmark, arrays), **_recalls(benchmark, arrays, resamples)}
    figures |= _graded(benchmark, ids, arrays) | _errors(benchmark, arrays) | _matches(arrays)
    figures |= {"breakdown": _breakdown(benchmark, arrays)} if benchmark.breakdown else {}
    if benchmark.queries.poses.known.any() and benchmark.database.poses.known.any():
        figures["recall_by_radius"] = _by_radius(benchmark, ids)
    figures |= {**(further or {}), "notes": [*benchmark.notes, *_warnings(benchmark, ids)]}
    figures["roots"] = {"query": str(benchmark.queries.root), "map": str(benchmark.database.root)}
    return Evaluation(
        Figures(figures), benchmark.facts(), {**arrays, **_sides(benchmark), **(samples or {})}, subject or {}
    )


def _outcomes(ids: Ids, distances: NDArray[np.float32], benchmark: Benchmark) -> Arrays:
    """The outcome of each query; raises where none has a relevant image."""
    graph = benchmark.positives
    answerable(graph)
    metres, degrees = pose_errors(benchmark.queries.poses, benchmark.database.poses, ids[:, 0])
    stricter: Arrays = {}
    for name, truth in benchmark.stricter.items():
        stricter |= {
            f"first_hit_{name}": first_hits(ids, truth),
            f"relevant_{name}": np.diff(truth.indptr).astype(np.int32),
        }
    return {
        **stricter,
        "ids": ids.astype(np.int32),
        "distances": distances,
        "psi": ranked_psi(ids, benchmark.graded),
        "first_hit": first_hits(ids, graph),
        "relevant": np.diff(graph.indptr).astype(np.int32),
        "error_m": metres.astype(np.float32),
        "error_deg": degrees.astype(np.float32),
    }


def _head(benchmark: Benchmark, arrays: Arrays) -> dict[str, Any]:
    total, with_positive = len(arrays["relevant"]), int((arrays["relevant"] > 0).sum())
    return {
        "benchmark": benchmark.name,
        "fingerprint": benchmark.fingerprint,
        "queries": total if benchmark.denominator == "all" else with_positive,
        "database": len(benchmark.database),
        "queries_total": total,
        "queries_without_positive": total - with_positive,
        "relevant_pairs": int(arrays["relevant"].sum()),
        "denominator": benchmark.denominator,
        "rule": benchmark.rule,
        "groups": benchmark.groups,
    }


def recalls(first_hit: NDArray[Any], ks: Sequence[int], counted: NDArray[np.bool_]) -> dict[str, float]:
    """Recall@k in percent over the `counted` queries."""
    first = first_hit[counted]
    return {str(k): float(100.0 * ((first > 0) & (first <= k)).mean()) for k in ks}


def _recalls(benchmark: Benchmark, arrays: Arrays, resamples: int) -> dict[str, Any]:
    """The headline, the same over the other denominator, intervals, and the whole curve."""
    has, first, ks = arrays["relevant"] > 0, arrays["first_hit"], benchmark.ks
    every = np.ones_like(has)
    counted = every if benchmark.denominator == "all" else has
    hits = np.stack([(first > 0) & (first <= k) for k in ks], axis=1)[counted]
    clusters = benchmark.queries.group[counted] if _clustered(benchmark) else None
    interval = 100.0 * bootstrap_interval(hits, clusters, resamples=resamples)
    figures = {
        "recall": recalls(first, ks, counted),
        "recall_interval": {str(k): row.tolist() for k, row in zip(ks, interval, strict=True)},
        "interval": f"{LEVEL:.0%} bootstrap over {'groups of ' if clusters is not None else ''}queries",
        "recall_over_answerable": recalls(first, ks, has),
        "recall_over_all": recalls(first, ks, every),
    }
    if benchmark.stricter:
        figures["recall_stricter"] = {name: _stricter(name, benchmark, arrays) for name in benchmark.stricter}
    curve = recalls(first, range(1, max(ks) + 1), counted)
    precision = {k: average_precision_at_k(arrays["ids"], benchmark.positives, k) for k in ks}
    return figures | {
        "recall_curve": list(curve.values()),
        "map": {str(k): float(100.0 * np.nanmean(v)) for k, v in precision.items()},
    }


def _stricter(name: str, benchmark: Benchmark, arrays: Arrays) -> dict[str, Any]:
    """Queries that a stricter truth can answer, and recall over them."""
    has = arrays[f"relevant_{name}"] > 0
    recall = recalls(arrays[f"first_hit_{name}"], benchmark.ks, has) if has.any() else {}
    return {"queries": int(has.sum()), "recall": recall}


def _clustered(benchmark: Benchmark) -> bool:
    """Whether groups are walks or drives, whose frames are not independent."""
    return benchmark.groups == "other" and len(np.unique(benchmark.queries.group)) > 1


def _graded(benchmark: Benchmark, ids: Ids, arrays: Arrays) -> dict[str, Any]:
    arrays["ndcg"] = ndcg_at_k(ids, benchmark.graded, NDCG_K).astype(np.float32)
    return {f"ndcg@{NDCG_K}": float(np.nanmean(arrays["ndcg"]) * 100.0)}


def _errors(benchmark: Benchmark, arrays: Arrays) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, key in (("error_m", "median_error_m"), ("error_deg", "median_error_deg")):
        known = arrays[name][~np.isnan(arrays[name])]
        figures[key] = float(np.median(known)) if len(known) else None
    if benchmark.thresholds:
        within = localised(arrays["error_m"], arrays["error_deg"], benchmark.thresholds)
        figures["localised"] = _percent(benchmark, within[benchmark.queries.poses.known])
    return figures


def _percent(benchmark: Benchmark, within: NDArray[np.bool_]) -> dict[str, float]:
    names = [limit_name(limit) for limit in benchmark.thresholds]
    return {name: float(v) for name, v in zip(names, 100.0 * within.mean(axis=0), strict=True)}


def _matches(arrays: Arrays) -> dict[str, Any]:
    """Precision and recall of accepting each query's best match up to a distance; needs distances."""
    distance = arrays["distances"][:, 0]
    given = np.isfinite(distance)
    if not given.any():
        return {}
    correct = arrays["first_hit"] == 1
    curve = precision_recall(distance[given], correct[given], int((arrays["relevant"] > 0).sum()))
    return {
        "match_auc": 100.0 * curve.average_precision,
        "recall_at_100_precision": 100.0 * curve.recall_at_full_precision,
    }


def _by_radius(benchmark: Benchmark, ids: Ids) -> dict[str, list[float]]:
    queries, database = benchmark.queries.poses, benchmark.database.poses
    possible = nearest_admissible(queries, database, benchmark.admissible)
    return recall_by_radius(ids, queries, database, possible, benchmark.radii_m)


def _breakdown(benchmark: Benchmark, arrays: Arrays) -> dict[str, dict[str, dict[str, Any]]]:
    """Counts, recall and share localised for each value of each label."""
    within = localised(arrays["error_m"], arrays["error_deg"], benchmark.thresholds)
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for label, values in benchmark.breakdown.items():
        out[label] = {}
        for value in np.unique(values).tolist():
            mine = values == value
            counted = mine if benchmark.denominator == "all" else mine & (arrays["relevant"] > 0)
            entry: dict[str, Any] = {"queries": int(counted.sum())}
            if counted.any():
                entry["recall"] = recalls(arrays["first_hit"], benchmark.ks, counted)
            if benchmark.thresholds:
                entry["localised"] = _percent(benchmark, within[mine])
            out[label][str(value)] = entry
    return out


def _warnings(benchmark: Benchmark, ids: Ids) -> list[str]:
    """What a reader should know about this ranking and these images."""
    warnings = []
    short = int((ids[:, min(max(benchmark.ks), len(benchmark.database)) - 1] < 0).sum())
    if short:
        warnings.append(f"{short} queries have fewer than {max(benchmark.ks)} results")
    twice = _in_both(benchmark)
    if twice:
        warnings.append(f"{twice} queries may find the very file that was asked about: the same image is in the map")
    return warnings


def _in_both(benchmark: Benchmark) -> int:
    """How many queries are map images too, and may match themselves there."""
    queries, database = benchmark.queries, benchmark.database
    if benchmark.one_set or queries.root != database.root:
        return 0
    _, mine, theirs = np.intersect1d(queries.names, database.names, return_indices=True)
    return int(benchmark.admissible(mine, theirs).sum())


def _sides(benchmark: Benchmark) -> Arrays:
    sides: dict[str, ImageSet] = {"query": benchmark.queries, "map": benchmark.database}
    out: Arrays = {}
    for side, images in sides.items():
        out |= {
            f"{side}_names": images.names,
            f"{side}_xy": images.poses.xy,
            f"{side}_heading": images.poses.heading.astype(np.float32),
        }
    return out | {"query_group": benchmark.group_codes[0]}
