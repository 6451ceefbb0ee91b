"""Fits against oracles, and promises that hold on data they were not made from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression

from covis.localise.probability import (
    Falling,
    Logistic,
    conformal_radius,
    expected_calibration_error,
    reliability,
    threshold_for,
)

unit = st.floats(0, 1, allow_nan=False, width=32)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(arrays(np.float64, n, elements=unit, unique=True), arrays(np.float64, n, elements=unit))))  # fmt: skip
def test_a_falling_function_is_isotonic_regression_turned_round(data):
    x, y = data
    order = np.argsort(x)
    expected = -isotonic_regression(-y[order]).x
    fitted = Falling.fit(x, y)
    assert np.all(np.diff(fitted.y) <= 1e-9)
    # One knot for each level of the regression, in the same order.
    levels = expected[np.r_[True, np.abs(np.diff(expected)) > 1e-12]]
    assert np.allclose(np.unique(np.round(fitted.y, 5)), np.unique(np.round(levels, 5)), atol=2e-5)
    at = np.linspace(-0.5, 1.5, 50)
    assert np.all(np.diff(fitted(at)) <= 1e-9)


def test_logistic_regression_finds_the_odds_that_made_the_data():
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (20_000, 2))
    odds = 0.7 * x[:, 0] - 1.1 * x[:, 1] + 0.4
    right = rng.random(len(x)) < 1 / (1 + np.exp(-odds))
    fit = Logistic.fit(x, right)
    slope = np.array(fit.weights) / np.array(fit.scale)
    assert slope == pytest.approx([0.7, -1.1], abs=0.06)
    assert fit(x).mean() == pytest.approx(right.mean(), abs=1e-3)
    assert expected_calibration_error(fit(x), right) < 0.01


@pytest.mark.parametrize("right", [np.zeros(30, bool), np.ones(30, bool), np.arange(30) >= 15])
def test_logistic_regression_survives_classes_that_do_not_overlap(right):
    p = Logistic.fit(np.arange(30.0)[:, None], right)(np.arange(30.0)[:, None])
    assert np.isfinite(p).all()
    assert np.all((p > 0) & (p < 1))
    assert np.all(np.diff(p) >= -1e-9)


def test_calibration_error_sees_boasting():
    rng = np.random.default_rng(1)
    p = rng.random(20_000)
    assert expected_calibration_error(p, rng.random(20_000) < p) < 0.02
    assert expected_calibration_error(p, rng.random(20_000) < p**2) > 0.1
    rows = reliability(p, rng.random(20_000) < p)
    assert [r["count"] for r in rows] == [2000] * 10
    assert np.all(np.diff([r["probability"] for r in rows]) > 0)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=40), st.sampled_from([0.5, 0.8, 0.9]))
def test_a_threshold_is_the_lowest_that_keeps_the_precision(data, precision):
    p = np.array([v / 8 for v, _ in data])
    right = np.array([r for _, r in data])
    naive = [t for t in np.unique(p) if right[p >= t].sum() / ((p >= t).sum() + 1) >= precision]
    assert threshold_for(precision, p, right) == (min(naive) if naive else None)


def test_few_answers_never_promise_much():
    assert threshold_for(0.99, np.linspace(0.5, 1, 98), np.ones(98)) is None
    assert threshold_for(0.99, np.linspace(0.5, 1, 99), np.ones(99)) == 0.5
    assert threshold_for(0.99, np.zeros(0), np.zeros(0)) is None


def test_the_next_error_stays_within_the_radius_at_the_stated_rate():
    """Over many draws of a small set, heavy tails and all."""
    rng = np.random.default_rng(2)
    for rate, count in ((0.9, 30), (0.5, 9), (0.95, 19)):
        draws = rng.pareto(0.7, (8000, count + 1))
        inside = [row[-1] <= conformal_radius(row[:-1], rate) for row in draws]
        expected = np.ceil((count + 1) * rate - 1e-9) / (count + 1)
        assert np.mean(inside) == pytest.approx(expected, abs=0.02)
    assert conformal_radius(np.ones(8), 0.9) is None
    assert conformal_radius(np.zeros(0), 0.9) is None
