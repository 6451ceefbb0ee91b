"""How certain a figure is: intervals over queries, and paired tests of two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95
_DRAWN = 1 << 22
"""Weights drawn at a time."""


def bootstrap_interval(
    outcomes: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Floats:
    """(M, 2) percentile interval of the mean of each column of `outcomes` (Q, M), queries drawn with replacement.

    With `clusters` (Q,) whole clusters are drawn, because frames of one drive are not independent.
    """
    sums, sizes = _by_cluster(_columns(outcomes), clusters)
    n = len(sizes)
    rng = np.random.default_rng(seed)
    step = max(1, _DRAWN // n)
    means = []
    for start in range(0, resamples, step):
        weight = rng.multinomial(n, np.full(n, 1.0 / n), size=min(step, resamples - start)).astype(np.float64)
        means.append(weight @ sums / (weight @ sizes)[:, None])
    tail = 50.0 * (1.0 - level)
    return np.asarray(np.percentile(np.concatenate(means), [tail, 100.0 - tail], axis=0).T)


@dataclass(frozen=True)
class PairedTest:
    """The difference b − a of two models on one outcome, its interval, and how likely chance alone causes it."""

    difference: float
    low: float
    high: float
    p_value: float
    method: str
    only_first: int
    """Queries where the first model did better."""
    only_second: int
    queries: int

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at the level of the interval."""
        return self.p_value < 1.0 - LEVEL


def paired_test(
    first: ArrayLike,
    second: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedTest:
    """Compares two models query by query: `first`, `second` (Q,) outcomes of the same queries.

    Outcomes of 0 and 1: McNemar's exact test. Others, or with `clusters`: signs of the (cluster) differences are
    flipped at random.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InputError(f"paired outcomes have shapes {a.shape} and {b.shape}; expected two (queries,)")
    gap = b - a
    low, high = bootstrap_interval(gap, clusters, resamples=resamples, seed=seed)[0]
    worse, better = int((gap < 0).sum()), int((gap > 0).sum())
    if clusters is None and np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        p, method = mcnemar(worse, better), "McNemar, exact"
    else:
        p, method = sign_flip(_by_cluster(gap[:, None], clusters)[0][:, 0], resamples, seed), "sign-flip permutation"
    return PairedTest(float(gap.mean()), float(low), float(high), p, method, worse, better, len(gap))


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of the hypothesis that the queries solved by one model only split evenly between both."""
    from scipy.stats import binomtest

    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def sign_flip(gaps: Floats, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """p-value (two-sided) of a mean as far from 0 as that of `gaps` (n,) under random signs; ≥ 1 / (resamples + 1)."""
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    rng = np.random.default_rng(seed)
    seen, extreme = abs(gaps.sum()) * (1 - 1e-12), 0
    step = max(1, _DRAWN // len(gaps))
    for start in range(0, resamples, step):
        signs = rng.integers(0, 2, size=(min(step, resamples - start), len(gaps)), dtype=np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ gaps) >= seen).sum())
    return (extreme + 1) / (resamples + 1)


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
