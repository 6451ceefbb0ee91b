"""Intervals and paired tests: textbook values, coverage, and what they must not claim."""

import itertools

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.evaluation.statistics import bootstrap_interval, holm, mcnemar, paired_test, sign_flip


def test_interval_agrees_with_the_normal_one():
    outcomes = np.repeat([0.0, 1.0], [300, 700])
    low, high = bootstrap_interval(outcomes, resamples=4000)[0]
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert low == pytest.approx(0.7 - half, abs=0.004)
    assert high == pytest.approx(0.7 + half, abs=0.004)


def test_interval_is_the_same_every_time_and_each_column_its_own():
    outcomes = np.random.default_rng(1).random((50, 2)) < [0.2, 0.9]
    both = bootstrap_interval(outcomes, resamples=300)
    assert np.array_equal(both, bootstrap_interval(outcomes, resamples=300))
    assert both[0, 1] < both[1, 0]


def test_drawing_whole_clusters_widens_the_interval():
    """Ten drives of a hundred frames that all succeed or all fail: ten witnesses, not a thousand."""
    outcomes = np.repeat([1.0, 0.0] * 5, 100)
    drive = np.repeat(np.arange(10), 100)
    frames, drives = bootstrap_interval(outcomes)[0], bootstrap_interval(outcomes, drive)[0]
    assert np.ptp(drives) > 5 * np.ptp(frames)


def test_clusters_of_one_are_no_clusters():
    outcomes = np.random.default_rng(0).random(40)
    alone = bootstrap_interval(outcomes, np.arange(40), resamples=200)
    assert alone == pytest.approx(bootstrap_interval(outcomes, resamples=200))


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (3, 9), (10, 10), (2, 20)])
def test_mcnemar_sums_the_binomial_tail(b, c):
    n = b + c
    tail = sum(1 for bits in itertools.product((0, 1), repeat=min(n, 12)) if sum(bits) <= min(b, c)) / 2 ** min(n, 12)
    if n <= 12:
        assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail) if n else 1.0)
    assert mcnemar(b, c) == pytest.approx(mcnemar(c, b))


def test_sign_flip_approaches_the_count_over_all_signs():
    gaps = np.array([0.3, -0.1, 0.4, 0.25, 0.05, -0.02, 0.6])
    every = [abs(np.dot(s, gaps)) >= gaps.sum() - 1e-12 for s in itertools.product((-1, 1), repeat=len(gaps))]
    assert sign_flip(gaps, resamples=20_000) == pytest.approx(np.mean(every), abs=0.01)


def test_equal_models_differ_by_nothing():
    same = np.random.default_rng(0).random(100) < 0.5
    test = paired_test(same, same)
    assert (test.difference, test.p_value, test.only_first, test.only_second) == (0, 1, 0, 0)
    assert not test.significant


def test_a_clear_gain_is_found_and_says_which_way():
    first = np.zeros(200, bool)
    second = np.arange(200) < 30
    test = paired_test(first, second)
    assert test.difference == pytest.approx(0.15)
    assert test.low > 0
    assert test.significant
    assert (test.only_first, test.only_second, test.method) == (0, 30, "McNemar, exact")


def test_one_drive_proves_nothing_however_many_frames_it_has():
    drive = np.repeat(np.arange(5), 100)
    second = drive == 0
    assert paired_test(np.zeros(500, bool), second).significant
    assert not paired_test(np.zeros(500, bool), second, drive).significant


def test_chance_is_called_significant_no_more_often_than_the_level_says():
    rng = np.random.default_rng(5)
    found = [paired_test(*(rng.random((2, 60)) < 0.5), resamples=50).significant for _ in range(400)]
    assert np.mean(found) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_graded_outcomes_are_tested_by_signs():
    rng = np.random.default_rng(2)
    first = rng.random(80)
    assert paired_test(first, first + 0.1 + 0.01 * rng.random(80)).p_value < 0.01
    assert paired_test(first, first + 0.1).method == "sign-flip permutation"


def test_holm_worked_by_hand():
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("outcomes", [np.zeros(0), np.array([0.0, np.nan]), np.zeros((2, 2, 2))])
def test_outcomes_without_a_mean_are_refused(outcomes):
    with pytest.raises(InputError, match="outcomes have shape"):
        bootstrap_interval(outcomes)
