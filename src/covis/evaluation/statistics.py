"""How certain a figure is: intervals over queries, and tests of two methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95
POWER = 0.8
FEWEST_SEEDS = 3
"""Networks that a method needs before a difference is called one of methods."""
_DRAWN = 1 << 22
"""Weights drawn at a time."""


def bootstrap_interval(outcomes: ArrayLike, clusters: ArrayLike | None = None) -> Floats:
    """(M, 2) percentile interval of the mean of each column of `outcomes` (Q, M), queries drawn with replacement.

    With `clusters` (Q,) whole clusters are drawn, because frames of one drive are not independent.
    """
    sums, sizes = _by_cluster(_columns(outcomes), clusters)
    n = len(sizes)
    rng = np.random.default_rng(0)
    step = max(1, _DRAWN // n)
    means = []
    for start in range(0, RESAMPLES, step):
        weight = rng.multinomial(n, np.full(n, 1.0 / n), size=min(step, RESAMPLES - start)).astype(np.float64)
        means.append(weight @ sums / (weight @ sizes)[:, None])
    tail = 50.0 * (1.0 - LEVEL)
    return np.asarray(np.percentile(np.concatenate(means), [tail, 100.0 - tail], axis=0).T)


@dataclass(frozen=True)
class Difference:
    """The difference second − first of two methods, its interval, and how likely chance alone causes it."""

    difference: float
    low: float
    high: float
    p_value: float
    seeds: tuple[int, int]
    """Networks of each method."""
    detectable: float | None
    """The smallest difference that such data shows in four of five cases; None below `FEWEST_SEEDS`."""

    @property
    def of_methods(self) -> bool:
        """Whether there are networks enough to speak of methods; else only these networks are compared."""
        return min(self.seeds) >= FEWEST_SEEDS


def method_difference(first: ArrayLike, second: ArrayLike, clusters: ArrayLike | None = None) -> Difference:
    """Compares two methods by their networks: `first` (S, Q) and `second` (T, Q) outcomes of the same queries.

    The variance is that over seeds plus that over queries (whole `clusters` of them), with Student's t: with three
    seeds a bootstrap is too narrow. Noise of a seed at a query counts in both, so the test is conservative. With few
    seeds the networks are taken as they are: only queries vary.
    """
    a, b = (np.atleast_2d(np.asarray(side, np.float64)) for side in (first, second))
    if a.shape[1:] != b.shape[1:] or a.ndim != 2 or not a.size:
        raise InputError(f"paired outcomes have shapes {a.shape} and {b.shape}; expected two (seeds, queries)")
    gap = b.mean(axis=0) - a.mean(axis=0)
    sums, sizes = _by_cluster(gap[:, None], clusters)
    mean, n = float(gap.mean()), len(sizes)
    residual = sums[:, 0] - mean * sizes
    over_queries = (float(residual @ residual) / len(gap) ** 2 * n / (n - 1), n - 1) if n > 1 else (np.inf, 1)
    seeds = (len(a), len(b))
    enough = min(seeds) >= FEWEST_SEEDS
    over_seeds = [(float(side.mean(axis=1).var(ddof=1)) / len(side), len(side) - 1) for side in (a, b) if enough]
    low, high, p, detectable = t_interval(mean, [over_queries, *over_seeds])
    return Difference(mean, low, high, p, seeds, detectable if enough else None)


def t_interval(mean: float, variances: Sequence[tuple[float, int]]) -> tuple[float, float, float, float]:
    """Interval, p-value (two-sided, of 0) and detectable difference of a mean with these (variance, freedom) parts."""
    from scipy.stats import t as student

    total = sum(variance for variance, _ in variances)
    if not total:
        return mean, mean, float(mean == 0), 0.0
    if not np.isfinite(total):
        return -np.inf, np.inf, 1.0, np.inf
    freedom = total**2 / sum(variance**2 / count for variance, count in variances)  # Welch and Satterthwaite
    error, limit = total**0.5, float(student.ppf((1 + LEVEL) / 2, freedom))
    p = float(2 * student.sf(abs(mean) / error, freedom))
    return mean - limit * error, mean + limit * error, p, (limit + float(student.ppf(POWER, freedom))) * error


def holm(p_values: ArrayLike) -> Floats:
    """p-values of several comparisons, raised so that together they keep the level (Holm)."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    raised = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(raised, 1.0)
    return out


def _columns(outcomes: ArrayLike) -> Floats:
    values: NDArray[Any] = np.asarray(outcomes, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not len(values) or not np.isfinite(values).all():
        raise InputError(f"outcomes have shape {values.shape}; expected (queries, figures), at least one query, no NaN")
    return values


def _by_cluster(values: Floats, clusters: ArrayLike | None) -> tuple[Floats, Floats]:
    if clusters is None:
        return values, np.ones(len(values))
    _, code = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.zeros((int(code.max()) + 1, values.shape[1]))
    np.add.at(sums, code, values)
    return sums, np.bincount(code).astype(np.float64)
