"""Fits against oracles, and promises that hold on data they were not made from."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression

from covis.logistic import Logistic, expected_calibration_error, reliability
from covis.maps.evidence import Falling, conformal_radius, threshold_for

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


@pytest.mark.parametrize("ceiling", [0.85, 1.0])
def test_a_ceiling_is_found_where_some_are_wrong_whatever_speaks_for_them(ceiling):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2))
    chance = ceiling / (1 + np.exp(-(2.0 * x[:, 0] - x[:, 1] + 2)))
    right = rng.random(len(x)) < chance
    fit = Logistic.fit_ceiling(x, right, np.arange(len(x)) % 40)
    assert fit.ceiling == pytest.approx(ceiling, abs=0.015)
    assert fit(x).max() <= fit.ceiling
    assert np.abs(fit(x) - chance).mean() < 0.01
    assert Logistic.from_dict(json.loads(json.dumps(asdict(fit)))) == fit


def test_a_long_walk_counts_no_more_than_a_short_one():
    rng = np.random.default_rng(0)
    walk = np.repeat(np.arange(10), [9_100, *[100] * 9])
    x = rng.normal(size=(len(walk), 1))
    right = rng.random(len(walk)) < np.where(walk == 0, 0.2, 0.9)
    p = Logistic.fit_ceiling(x, right, walk)(x)
    assert p.mean() == pytest.approx(np.mean([right[walk == one].mean() for one in range(10)]), abs=0.01)
    assert abs(p.mean() - right.mean()) > 0.5


@pytest.mark.parametrize("right", [np.zeros(30, bool), np.ones(30, bool), np.arange(30) >= 15])
def test_logistic_regression_survives_classes_that_do_not_overlap(right):
    p = Logistic.fit_ceiling(np.arange(30.0)[:, None], right, np.arange(30) // 6)(np.arange(30.0)[:, None])
    assert np.isfinite(p).all()
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
@given(
    st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40),
    st.sampled_from([0.3, 0.5, 0.6]),
)
def test_a_threshold_is_the_lowest_that_keeps_the_precision(data, precision):
    """By a loop over all thresholds: enough were right and enough are expected to be, with three quarters of an error to spare."""
    p, right, walk = (
        np.array([d[0] / 8 for d in data]),
        np.array([float(d[1]) for d in data]),
        np.array([d[2] for d in data]),
    )
    aim, unseen = precision + 0.05 * (1 - precision), 3 if (right == 0).sum() < 10 else 1

    def holds(t):
        sure = p >= t
        share = right[sure].mean()
        sums = [(right[sure & (walk == w)] - share).sum() for w in np.unique(walk)]
        error = np.sqrt(np.square(sums).sum()) / sure.sum()
        enough = right[sure].sum() / (sure.sum() + unseen) >= aim and p[sure].mean() >= aim
        return enough and sure.sum() >= len(p) / 4 and share - 0.75 * error >= precision

    naive = [t for t in np.unique(p) if holds(t)]
    assert threshold_for(precision, p, right, walk) == (min(naive) if naive else None)


def test_few_answers_never_promise_much():
    none = np.zeros(0)
    assert threshold_for(0.99, none, none, none.astype(int)) is None
    for count, sure in ((200, False), (400, True)):
        p = np.linspace(0.992, 0.999, count)
        threshold = threshold_for(0.99, p, np.ones(count), np.arange(count) // 10)
        assert threshold == (p[0] if sure else None)


def test_what_happened_to_be_right_is_not_promised_against_its_probability():
    p, right = np.linspace(0.3, 0.7, 400), np.ones(400)
    assert threshold_for(0.9, p, right, np.arange(400) // 10) is None


def test_promises_hold_on_walks_to_come():
    """Walks differ in how often they are right; P knows of each photo, not of its walk."""
    rng = np.random.default_rng(5)

    def photos():
        walk = np.repeat(np.arange(40), 25)
        p = rng.beta(4, 1, 1000)
        odds = np.log(p / (1 - p)) + rng.normal(0, 0.5, 40)[walk]
        return p, (rng.random(1000) < 1 / (1 + np.exp(-odds))).astype(float), walk

    kept, answered = [], 0
    for _ in range(40):
        threshold = threshold_for(0.9, *photos())
        if threshold is not None:
            p, right, _ = photos()
            kept += [right[p >= threshold].mean()]
            answered += (p >= threshold).mean() / 40
    assert np.mean(kept) >= 0.9
    assert answered > 0.4


def test_the_next_error_stays_within_the_radius_at_the_stated_rate():
    """Over many draws of a small set, heavy tails and all; each photo a walk of its own."""
    rng = np.random.default_rng(2)
    for rate, count in ((0.9, 30), (0.5, 9), (0.95, 19)):
        draws = rng.pareto(0.7, (8000, count + 1))
        inside = [row[-1] <= conformal_radius(row[:-1], rate, np.arange(count)) for row in draws]
        expected = np.ceil((count + 1) * rate - 1e-9) / (count + 1)
        assert np.mean(inside) == pytest.approx(expected, abs=0.02)
    assert conformal_radius(np.ones(8), 0.9, np.arange(8)) is None
    assert conformal_radius(np.zeros(0), 0.9, np.zeros(0, int)) is None


def test_the_errors_of_the_next_walk_stay_within_the_radius_at_the_stated_rate():
    """Photos of one walk err alike: counted one by one, they would promise too much."""
    rng = np.random.default_rng(3)
    walk = np.repeat(np.arange(12), 15)
    inside = []
    for _ in range(3000):
        scale = rng.pareto(1.0, 13)
        error = scale[walk] * rng.uniform(0.5, 1.5, len(walk))
        new = scale[12] * rng.uniform(0.5, 1.5, 15)
        inside.append([(new <= conformal_radius(error, 0.9, w)).mean() for w in (walk, np.arange(len(walk)))])
    by_walk, by_photo = np.mean(inside, axis=0)
    assert 0.895 <= by_walk <= 0.96
    assert by_photo < by_walk
    assert conformal_radius(error, 0.9, walk // 2) is None  # six walks cannot carry 90 %
