"""From scores to probabilities: logistic regression, monotone regression, and how well a probability holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats

_RIDGE = 1.0
_STEPS = 50
BINS = 10
_PARTS = 5
_ALLOWED = (1.0, 0.5, 0.25)
"""Shares of the allowed wrong answers that a threshold is tried with."""


@dataclass(frozen=True)
class Logistic:
    """P = 1 / (1 + e^−(w·z + b)) over standardised features."""

    weights: tuple[float, ...]
    bias: float
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, features: Floats, right: NDArray[Any]) -> Logistic:
        """Newton's method with a small ridge on the weights: features (N, F), right (N,) true or false."""
        mean, scale = features.mean(axis=0), features.std(axis=0)
        scale = np.where(scale > 1e-12, scale, 1.0)
        x = np.column_stack([(features - mean) / scale, np.ones(len(features))])
        y = np.asarray(right, np.float64)
        ridge = np.diag([_RIDGE] * features.shape[1] + [1e-3])
        w = np.zeros(x.shape[1])
        for _ in range(_STEPS):
            p = _sigmoid(x @ w)
            hessian = (x * (p * (1 - p))[:, None]).T @ x + ridge
            step = np.linalg.solve(hessian, x.T @ (y - p) - ridge @ w)
            # A damped step keeps far-off starts from overshooting where classes hardly overlap.
            w += step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
            if np.abs(step).max() < 1e-9:
                break
        return cls(tuple(w[:-1].tolist()), float(w[-1]), tuple(mean.tolist()), tuple(scale.tolist()))

    def __call__(self, features: Floats) -> Floats:
        """(..., F) → (...) probabilities, never exactly 0 or 1."""
        z = (features - np.array(self.mean)) / np.array(self.scale)
        return np.clip(_sigmoid(z @ np.array(self.weights) + self.bias), 1e-6, 1 - 1e-6)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


@dataclass(frozen=True)
class Falling:
    """A function that never rises, as knots joined by straight lines; flat outside them."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def fit(cls, x: Floats, y: Floats) -> Falling:
        """The least-squares falling function of y (N,) over x (N,): neighbours that rise are pooled."""
        order = np.argsort(x, kind="stable")
        blocks: list[list[float]] = []  # sum of x, sum of y, count
        for a, b in zip(x[order].tolist(), y[order].tolist(), strict=True):
            blocks.append([a, b, 1.0])
            while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] <= blocks[-1][1] / blocks[-1][2]:
                last = blocks.pop()
                blocks[-1] = [p + q for p, q in zip(blocks[-1], last, strict=True)]
        knots = [(sx / n, sy / n) for sx, sy, n in blocks]
        return cls(tuple(round(k[0], 6) for k in knots), tuple(round(k[1], 6) for k in knots))

    def __call__(self, x: Floats) -> Floats:
        """The function at x."""
        return np.asarray(np.interp(x, self.x, self.y))


def reliability(probability: Floats, right: NDArray[Any], bins: int = BINS) -> list[dict[str, float]]:
    """Mean probability beside the share that was right, in bins of equal count, low to high."""
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, min(bins, len(order))) if len(part)]
    return [
        {"probability": float(probability[part].mean()), "right": float(np.mean(right[part])), "count": len(part)}
        for part in parts
    ]


def expected_calibration_error(probability: Floats, right: NDArray[Any], bins: int = BINS) -> float:
    """Mean gap between probability and the share that was right, over the bins of `reliability`."""
    if not len(probability):
        return float("nan")
    rows = reliability(probability, right, bins)
    return sum(r["count"] * abs(r["probability"] - r["right"]) for r in rows) / len(probability)


def threshold_for(precision: float, probability: Floats, right: NDArray[Any], walk: NDArray[np.int64]) -> float | None:
    """The probability (N,) from which on answers are right at `precision` on walks not seen; None if none is.

    The lowest one above which the answers reach it is not enough: it was picked because it did. So whole walks (N,) are
    set aside, a bar is chosen without them, and what they say of it must reach the precision too; where it does not,
    half as many wrong answers are allowed, and half of that.
    """
    right = np.asarray(right, np.float64)
    part = np.random.default_rng(0).permutation(int(walk.max(initial=0)) + 1)[walk] % _PARTS
    for share in _ALLOWED:
        aim = 1 - share * (1 - precision)
        answers = hits = 0.0
        for one in range(_PARTS):
            away = part == one
            bar = lowest_bar(aim, probability[~away], right[~away], walk[~away])
            sure = away & (probability >= (np.inf if bar is None else bar))
            answers, hits = answers + sure.sum(), hits + right[sure].sum()
        if answers and hits / (answers + 1) >= precision:
            return lowest_bar(aim, probability, right, walk)
    return None


def lowest_bar(precision: float, probability: Floats, right: Floats, walk: NDArray[np.int64]) -> float | None:
    """The lowest probability above which right / answers reaches `precision`, with a wrong answer and a bad walk to come.

    The next photo is counted as wrong, so that few answers never promise much: 99 % needs at least 99 that were right.
    And the next walk is counted as the worst of those seen: wrong answers come many at once, from one walk.
    """
    order = np.argsort(-probability, kind="stable")
    seen, which = np.unique(walk[order], return_inverse=True)
    of_walk = np.zeros((2, len(seen), len(order)))
    of_walk[:, which, np.arange(len(order))] = np.stack([np.ones(len(order)), right[order]])
    count, hits = of_walk.cumsum(axis=2)
    alone = hits.sum(axis=0) / (count.sum(axis=0) + 1)
    twice = (hits.sum(axis=0) + hits) / (count.sum(axis=0) + count + 1)
    enough = np.minimum(alone, twice.min(axis=0, initial=1.0)) >= precision
    # Answers of one probability stand or fall together.
    last = np.append(np.diff(probability[order]) != 0, True) if len(order) else np.zeros(0, bool)
    at = np.flatnonzero(enough & last)
    return float(probability[order][at[-1]]) if len(at) else None


def conformal_radius(errors: Floats, rate: float, walk: NDArray[np.int64]) -> float | None:
    """The radius that an error on the next walk stays within at `rate`, by the rank of past ones; None if too few.

    errors (N,) metres, walk (N,). Errors of one walk are alike, so not one photo more but one walk more is counted as
    outside: 90 % takes at least nine walks.
    """
    if not len(errors):
        return None
    rank = int(np.ceil(len(errors) * (1 + 1 / len(np.unique(walk))) * rate - 1e-9))
    return None if rank > len(errors) or not rank else float(np.sort(errors)[rank - 1])
