"""Differences between two models over queries and seeds, with intervals by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.evaluation.pairs import mean_ranks
from covis.evaluation.result import Evaluation
from covis.evaluation.statistics import t_interval

ORDER_FIGURES = ("ndcg@10", "median_error_m", "spearman_psi_distance_similar")
"""Figures of how well results are ordered by overlap; larger is better for the first, smaller for the others."""
SQUARE_M = 25.0
"""Side of the squares by which queries are drawn: all queries in one square are drawn together."""
_DRAWS = 1000


def paired_differences(first: Sequence[Evaluation], second: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """second − first of every figure over grades, with its 95 % interval, for seeds of two models on the same queries.

    Queries are drawn by place (squares of `SQUARE_M`), the same for both sides, so queries that are hard for both
    cancel out; the variance over seeds is added, by Student's t (as in `statistics.method_difference`). A side of one
    seed (nothing was trained) adds none.
    """
    if len({e.fingerprint for e in (*first, *second)}) != 1:
        raise InputError("evaluations of different protocols cannot be compared query by query")
    places = place_codes(first[0])
    count = int(places.max()) + 1
    rng = np.random.default_rng(0)
    weight = np.vstack([np.ones(count), rng.multinomial(count, np.full(count, 1 / count), _DRAWS)])
    sides = [[_weighted_figures(e, places, weight) for e in side] for side in (first, second)]
    out = {}
    for key in (k for k in sides[0][0] if k in sides[1][0]):
        values = [np.stack([figures[key] for figures in side]) for side in sides]
        gap = values[1].mean(axis=0) - values[0].mean(axis=0)
        variances = [(float(np.var(gap[1:])), max(count - 1, 1))]
        variances += [(float(v[:, 0].var(ddof=1)) / len(v), len(v) - 1) for v in values if len(v) > 1]
        low, high, _, _ = t_interval(float(gap[0]), variances)
        out[key] = {"difference": float(gap[0]), "low": low, "high": high}
    return out


def place_codes(evaluation: Evaluation) -> NDArray[np.int64]:
    """(Q,) the square of `SQUARE_M` that each query stands in; a query without a position gets one of its own."""
    xy = np.asarray(evaluation.arrays["query_xy"], np.float64)
    known = np.asarray(np.isfinite(xy).all(axis=1))
    cells = np.column_stack(
        [np.floor(np.where(known[:, None], xy, 0) / SQUARE_M), np.where(known, -1, np.arange(len(xy)))]
    )
    return np.asarray(np.unique(cells, axis=0, return_inverse=True)[1]).ravel()


def _weighted_figures(evaluation: Evaluation, places: NDArray[np.int64], weight: Floats) -> dict[str, Floats]:
    """Figure → (draws,) its value where each place counts as often as `weight` says."""
    a = evaluation.arrays
    truths = {"": "", **{f" {name}": f"_{name}" for name in evaluation.figures.stricter}}
    out = {
        f"recall@1{name}": 100 * _mean(a[f"first_hit{suffix}"] == 1, a[f"relevant{suffix}"] > 0, places, weight)
        for name, suffix in truths.items()
    }
    out["recall@5"] = 100 * _mean(evaluation.hits(5), evaluation.counted, places, weight)
    graded = np.isfinite(np.asarray(a["ndcg"]))
    out["ndcg@10"] = 100 * _mean(np.where(graded, a["ndcg"], 0), graded, places, weight)
    out["median_error_m"] = _median(np.asarray(a["error_m"], np.float64), places, weight)
    if "pair_psi" in a:
        similar = np.asarray(a["pair_psi"]) > 0
        psi, distance = (np.asarray(a[name])[similar] for name in ("pair_psi", "pair_distance"))
        at = places[np.asarray(a["pair_query"])[similar]]
        out["spearman_psi_distance_similar"] = _rank_correlation(psi, distance, at, weight)
    return out


def _mean(values: NDArray[Any], counted: NDArray[np.bool_], places: NDArray[np.int64], weight: Floats) -> Floats:
    size = weight.shape[1]
    total = np.bincount(places[counted], np.asarray(values, np.float64)[counted], size)
    number = np.bincount(places[counted], minlength=size)
    return np.asarray((weight @ total) / np.maximum(weight @ number, 1))


def _median(values: Floats, places: NDArray[np.int64], weight: Floats) -> Floats:
    """(draws,) the weighted median."""
    order = np.argsort(values)[: int(np.isfinite(values).sum())]
    total = np.cumsum(weight[:, places[order]], axis=1)
    return np.asarray(values[order][(total >= total[:, -1:] / 2).argmax(axis=1)])


def _rank_correlation(a: NDArray[Any], b: NDArray[Any], places: NDArray[np.int64], weight: Floats) -> Floats:
    """(draws,) Spearman's ρ with the ranks of the whole sample."""
    size = weight.shape[1]
    x, y = (mean_ranks(v) / len(v) - 0.5 for v in (a, b))
    n, sx, sy, xx, yy, xy = (
        weight @ np.bincount(places, v, size) for v in (np.ones(len(x)), x, y, x * x, y * y, x * y)
    )
    return np.asarray((xy - sx * sy / n) / np.sqrt((xx - sx * sx / n) * (yy - sy * sy / n)))
