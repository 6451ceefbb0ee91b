"""Logistic regression with a small ridge, and how well its probabilities hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids

RIDGE = 1.0
"""Weight of the squared coefficients of standardised features beside the log-likelihood."""
CEILING_PRIOR = (20.0, 1.0)
"""Prior of the ceiling: as if this many sure answers had been seen right and wrong."""
BINS = 10


@dataclass(frozen=True)
class Logistic:
    """P = ceiling / (1 + e^−(w·z + b)) over standardised features."""

    weights: tuple[float, ...]
    bias: float
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    ceiling: float = 1.0
    """P of a match with perfect evidence: below 1 where some positions are wrong, whatever the photos show."""

    @classmethod
    def fit(cls, features: Floats, right: NDArray[Any], weight: Floats | None = None) -> Logistic:
        """Newton's method with a small ridge on the weights: features (N, F), right (N,) true or false, weight (N,)."""
        weight = np.ones(len(features)) if weight is None else weight
        mean = np.average(features, axis=0, weights=weight)
        scale = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=weight))
        scale = np.where(scale > 1e-12, scale, 1.0)
        x = np.column_stack([(features - mean) / scale, np.ones(len(features))])
        y = np.asarray(right, np.float64)
        ridge = np.diag([RIDGE] * features.shape[1] + [1e-3])
        w = np.zeros(x.shape[1])
        for _ in range(50):
            p = _sigmoid(x @ w)
            hessian = (x * (weight * p * (1 - p))[:, None]).T @ x + ridge
            step = np.linalg.solve(hessian, x.T @ (weight * (y - p)) - ridge @ w)
            # A damped step keeps far-off starts from overshooting where classes hardly overlap.
            w += step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
            if np.abs(step).max() < 1e-9:
                break
        return cls(tuple(w[:-1].tolist()), float(w[-1]), tuple(mean.tolist()), tuple(scale.tolist()))

    @classmethod
    def fit_ceiling(cls, features: Floats, right: NDArray[Any], walk: Ids) -> Logistic:
        """`fit` with a ceiling, which a few walks with a poor position fix make lower; by maximum likelihood.

        walk (N,): all walks count the same, however many photos they have, since the next photo will be of a new walk.
        """
        start = cls.fit(features, right)
        y, (seen_right, seen_wrong) = np.asarray(right, np.float64), CEILING_PRIOR
        x, weight = start._standardised(features), _by_walk(walk)

        def loss(point: Floats) -> tuple[float, Floats]:
            ceiling = float(_sigmoid(point[-1]))
            value, turn, lift = _capped_loss(point[:-1], x, y, ceiling, weight)
            value -= seen_right * np.log(ceiling) + seen_wrong * np.log(1 - ceiling)
            lift = lift * ceiling * (1 - ceiling) - seen_right * (1 - ceiling) + seen_wrong * ceiling
            return value, np.append(turn, lift)

        point = minimise(loss, np.array([*start.weights, start.bias, 3.0]))
        return cls(tuple(point[:-2].tolist()), float(point[-2]), start.mean, start.scale, float(_sigmoid(point[-1])))

    @classmethod
    def fit_below(cls, features: Floats, right: NDArray[Any], cap: Floats) -> Logistic:
        """The factor by which `cap` (N,), a probability that is not exceeded, is multiplied; by maximum likelihood."""
        start = cls.fit(features, right)
        x, y = start._standardised(features), np.asarray(right, np.float64)
        point = minimise(lambda w: _capped_loss(w, x, y, cap)[:2], np.array([*start.weights, start.bias]))
        return cls(tuple(point[:-1].tolist()), float(point[-1]), start.mean, start.scale)

    def _standardised(self, features: Floats) -> Floats:
        """(N, F + 1) features as the weights take them, and ones for the bias."""
        return np.column_stack([(features - np.array(self.mean)) / np.array(self.scale), np.ones(len(features))])

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Logistic:
        """Back from JSON."""
        mean, scale = tuple(record["mean"]), tuple(record["scale"])
        return cls(tuple(record["weights"]), record["bias"], mean, scale, record.get("ceiling", 1.0))

    def shifted(self, log_odds: float) -> Logistic:
        """The same with `log_odds` added, as for another share of the class in the population."""
        return replace(self, bias=self.bias + log_odds)

    def __call__(self, features: Floats) -> Floats:
        """(..., F) → (...) probabilities, never exactly 0 or 1."""
        z = (features - np.array(self.mean)) / np.array(self.scale)
        return np.clip(self.ceiling * _sigmoid(z @ np.array(self.weights) + self.bias), 1e-6, 1 - 1e-6)


def minimise(loss: Callable[[Floats], tuple[float, Floats]], point: Floats, steps: int = 500) -> Floats:
    """The point of least loss near `point`, by quasi-Newton steps (BFGS); `loss` gives a value and its slope."""
    value, slope = loss(point)
    inverse = np.eye(len(point)) / max(1.0, float(np.linalg.norm(slope)))
    for _ in range(steps):
        direction = -inverse @ slope
        if not direction @ slope < 0:
            inverse, direction = np.eye(len(point)), -slope
        share, gain = 1.0, float(direction @ slope)
        while (ahead := loss(point + share * direction))[0] > value + 1e-4 * share * gain and share > 1e-12:
            share /= 2
        step, turn, fell = share * direction, ahead[1] - slope, value - ahead[0]
        if fell < 0:
            break
        point, (value, slope) = point + step, ahead
        if np.abs(slope).max() < 1e-7 or fell <= 1e-12 * max(1.0, abs(value)):
            break
        if (curve := float(turn @ step)) > 1e-12:
            moved = np.eye(len(point)) - np.outer(step, turn) / curve
            inverse = moved @ inverse @ moved.T + np.outer(step, step) / curve
    return point


def _by_walk(walk: Ids) -> Floats:
    """(N,) weights of photos, 1 on average, that give each walk (N,) the same sum."""
    _, position, count = np.unique(walk, return_inverse=True, return_counts=True)
    return np.asarray(len(walk) / (len(count) * count[position]))


def _capped_loss(
    w: Floats, x: Floats, y: Floats, cap: Floats | float, weight: Floats | float = 1.0
) -> tuple[float, Floats, float]:
    """For P = cap · σ(x·w): its negative log-likelihood with the ridge, the slope by w, and the slope by the cap."""
    s = _sigmoid(x @ w)
    p = np.clip(cap * s, 1e-9, 1 - 1e-9)
    value = -np.sum(weight * (y * np.log(p) + (1 - y) * np.log(1 - p))) + RIDGE / 2 * np.sum(w[:-1] ** 2)
    slope = weight * ((1 - y) / (1 - p) - y / p)
    turn = x.T @ (slope * cap * s * (1 - s))
    turn[:-1] += RIDGE * w[:-1]
    return float(value), turn, float(np.sum(slope * s))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def reliability(
    probability: Floats, right: NDArray[Any], bins: int = BINS, weight: Floats | None = None
) -> list[dict[str, float]]:
    """Mean probability beside the share that was right, in bins of equal weight (of equal count without), low to high."""
    order = np.argsort(probability, kind="stable")
    if weight is None:
        parts = np.array_split(order, min(bins, len(order)))
        weight = np.ones(len(order))
    else:
        passed = weight[order].cumsum() - weight[order] / 2
        parts = [order[np.floor(bins * passed / weight.sum()).astype(int) == b] for b in range(bins)]
    return [
        {
            "probability": float(np.average(probability[part], weights=weight[part])),
            "right": float(np.average(np.asarray(right, np.float64)[part], weights=weight[part])),
            "count": len(part),
            "share": float(weight[part].sum() / weight.sum()),
        }
        for part in parts
        if len(part)
    ]


def expected_calibration_error(
    probability: Floats, right: NDArray[Any], bins: int = BINS, weight: Floats | None = None
) -> float:
    """Mean gap between probability and the share that was right, over the bins of `reliability`."""
    if not len(probability):
        return float("nan")
    return sum(r["share"] * abs(r["probability"] - r["right"]) for r in reliability(probability, right, bins, weight))
