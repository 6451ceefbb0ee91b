"""`evaluate(ranking, benchmark)`: every figure that the protocol and the ranking allow, from one look at each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.metrics import Ranked, answerable, average_precision_at_k, first_hits, ndcg_at_k, ranked_psi
from covis.evaluation.pose_errors import limit_name, localised, pose_errors
from covis.evaluation.result import Evaluation, Figures
from covis.evaluation.statistics import LEVEL, bootstrap_interval
from covis.images import ImageSet

NDCG_K = 10
Arrays = dict[str, NDArray[Any]]


def evaluate(
    ranking: Ranked,
    benchmark: Benchmark,
    *,
    subject: Mapping[str, Any] | None = None,
    further: Mapping[str, Any] | None = None,
    samples: Mapping[str, NDArray[Any]] | None = None,
) -> Evaluation:
    """Scores a raw or settled ranking (Q, K) of the benchmark's map for each of its queries.

    `subject` says what made the ranking. `further` figures (such as average precision over pairs) and arrays (such as
    `samples` of pairs) are kept with the evaluation.
    """
    ids, distances = benchmark.settle(ranking)
    arrays = _outcomes(ids, distances, benchmark)
    figures = {**_head(benchmark, arrays), **_recalls(benchmark, arrays)}
    figures |= _graded_figures(benchmark, ids, arrays) | _errors(benchmark, arrays)
    figures |= {"breakdown": _parts(benchmark, arrays)} if benchmark.breakdown else {}
    figures |= {**(further or {}), "notes": [*benchmark.notes, *_warnings(benchmark, ids)]}
    figures["roots"] = {"query": str(benchmark.queries.root), "map": str(benchmark.database.root)}
    return Evaluation(
        Figures(figures), benchmark.facts(), {**arrays, **_side_arrays(benchmark), **(samples or {})}, subject or {}
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


def _recalls(benchmark: Benchmark, arrays: Arrays) -> dict[str, Any]:
    """The headline, the same over the other denominator, intervals, and the whole curve."""
    has, first, ks = arrays["relevant"] > 0, arrays["first_hit"], benchmark.ks
    every = np.ones_like(has)
    counted = every if benchmark.denominator == "all" else has
    hits = np.stack([(first > 0) & (first <= k) for k in ks], axis=1)[counted]
    clusters = benchmark.queries.group[counted] if _has_walks(benchmark) else None
    interval = 100.0 * bootstrap_interval(hits, clusters)
    figures = {
        "recall": recalls(first, ks, counted),
        "recall_interval": {str(k): row.tolist() for k, row in zip(ks, interval, strict=True)},
        "interval": f"{LEVEL:.0%} bootstrap over {'groups of ' if clusters is not None else ''}queries",
        "recall_over_answerable": recalls(first, ks, has),
        "recall_over_all": recalls(first, ks, every),
    }
    if benchmark.stricter:
        figures["recall_stricter"] = {name: _stricter_recall(name, benchmark, arrays) for name in benchmark.stricter}
    curve = recalls(first, range(1, max(ks) + 1), counted)
    precision = {k: average_precision_at_k(arrays["ids"], benchmark.positives, k) for k in ks}
    return figures | {
        "recall_curve": list(curve.values()),
        "map": {str(k): float(100.0 * np.nanmean(v)) for k, v in precision.items()},
    }


def _stricter_recall(name: str, benchmark: Benchmark, arrays: Arrays) -> dict[str, Any]:
    """Queries that a stricter truth can answer, and recall over them."""
    has = arrays[f"relevant_{name}"] > 0
    recall = recalls(arrays[f"first_hit_{name}"], benchmark.ks, has) if has.any() else {}
    return {"queries": int(has.sum()), "recall": recall}


def _has_walks(benchmark: Benchmark) -> bool:
    """Whether groups are walks or drives, whose frames are not independent."""
    return benchmark.groups == "other" and len(np.unique(benchmark.queries.group)) > 1


def _graded_figures(benchmark: Benchmark, ids: Ids, arrays: Arrays) -> dict[str, Any]:
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


def _parts(benchmark: Benchmark, arrays: Arrays) -> dict[str, dict[str, dict[str, Any]]]:
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


def _side_arrays(benchmark: Benchmark) -> Arrays:
    sides: dict[str, ImageSet] = {"query": benchmark.queries, "map": benchmark.database}
    out: Arrays = {}
    for side, images in sides.items():
        out |= {
            f"{side}_names": images.names,
            f"{side}_xy": images.poses.xy,
            f"{side}_heading": images.poses.heading.astype(np.float32),
        }
    return out | {"query_group": benchmark.group_codes[0]}
