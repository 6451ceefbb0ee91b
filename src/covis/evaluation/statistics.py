"""How sure a figure is: intervals over queries, paired tests between two models, and what a mixture of pairs consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.arrays import Floats
from covis.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95
_BLOCK = 1 << 22
"""Weights drawn in one go."""


def bootstrap_interval(
    outcomes: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Floats:
    """(M, 2) percentile interval of the mean of each column of `outcomes` (Q, M), queries drawn with replacement.

    With `clusters` (Q,) whole clusters are drawn: frames of one drive are no independent witnesses.
    """
    sums, sizes = _by_cluster(_columns(outcomes), clusters)
    n = len(sizes)
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // n)
    means = []
    for start in range(0, resamples, step):
        weight = rng.multinomial(n, np.full(n, 1.0 / n), size=min(step, resamples - start)).astype(np.float64)
        means.append(weight @ sums / (weight @ sizes)[:, None])
    tail = 50.0 * (1.0 - level)
    return np.asarray(np.percentile(np.concatenate(means), [tail, 100.0 - tail], axis=0).T)


@dataclass(frozen=True)
class PairedTest:
    """The difference of two models on one outcome: b − a, its interval and how likely chance alone makes it."""

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
        """At the level of the interval."""
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
    """Two-sided exact p-value that the queries only one model solved fall evenly on both."""
    from scipy.stats import binomtest

    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def sign_flip(gaps: Floats, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of a mean as far from 0 as that of `gaps` (n,) under random signs; never below 1 in resamples."""
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    rng = np.random.default_rng(seed)
    seen, extreme = abs(gaps.sum()) * (1 - 1e-12), 0
    step = max(1, _BLOCK // len(gaps))
    for start in range(0, resamples, step):
        signs = rng.integers(0, 2, size=(min(step, resamples - start), len(gaps)), dtype=np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ gaps) >= seen).sum())
    return (extreme + 1) / (resamples + 1)


def holm(p_values: ArrayLike) -> Floats:
    """p-values of several comparisons, raised so that all of them together keep the level (Holm)."""
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


@dataclass(frozen=True, eq=False)
class Agreement:
    """How descriptor distances tell pairs that look alike from pairs that do not: two histograms.

    The distances of some pairs are taken for a mixture of the two, so the share of pairs that look alike can be read off
    without deciding on any single one of them.
    """

    edges: Floats
    """(bins + 1,) of distances."""
    alike: Floats
    """(bins,) frequencies of pairs taken at one place, looking the same way."""
    unlike: Floats
    """(bins,) frequencies of pairs taken far apart."""

    @classmethod
    def fit(cls, near: ArrayLike, far: ArrayLike, bins: int = 40) -> Agreement:
        """From the distances of pairs that surely look alike and of pairs that surely do not."""
        near, far = (np.asarray(d, np.float64) for d in (near, far))
        if not len(near) or not len(far):
            raise InputError("agreement needs pairs at one place and pairs far apart; one of them is missing here")
        each = [np.quantile(d, np.linspace(0, 1, bins // 2 + 1)) for d in (near, far)]
        edges = np.unique(np.concatenate(each))
        edges[0], edges[-1] = -np.inf, np.inf
        counts = [np.histogram(d, edges)[0] + 1.0 for d in (near, far)]
        return cls(edges, *(count / count.sum() for count in counts))

    def frequencies(self, distance: ArrayLike) -> tuple[Floats, Floats]:
        """(N,) how frequent each distance is among pairs that look alike, and among those that do not."""
        at = np.clip(np.searchsorted(self.edges, np.asarray(distance), side="right") - 1, 0, len(self.alike) - 1)
        return self.alike[at], self.unlike[at]

    def share(self, distance: ArrayLike, rounds: int = 200) -> float:
        """The share of pairs that look alike among pairs of these distances (N,), by maximum likelihood."""
        alike, unlike = self.frequencies(distance)
        share = 0.5
        for _ in range(rounds):
            share = float(np.mean(share * alike / (share * alike + (1 - share) * unlike)))
        return share

    def log_likelihood(self, distance: ArrayLike, share: ArrayLike, least: float = 1e-4) -> float:
        """The mean log-likelihood of distances (N,) if each pair looks alike with probability `share` (N,) or ()."""
        alike, unlike = self.frequencies(distance)
        share = np.clip(np.asarray(share, np.float64), least, 1 - least)
        return float(np.mean(np.log(share * alike + (1 - share) * unlike)))
