"""Intervals and paired tests: textbook values, coverage, and what they must not claim."""

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from covis.core.errors import InputError
from covis.evaluation.statistics import bootstrap_interval, holm, method_difference


def test_interval_agrees_with_the_normal_one():
    outcomes = np.repeat([0.0, 1.0], [300, 700])
    low, high = bootstrap_interval(outcomes)[0]
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert low == pytest.approx(0.7 - half, abs=0.004)
    assert high == pytest.approx(0.7 + half, abs=0.004)


def test_interval_is_the_same_every_time_and_each_column_its_own():
    outcomes = np.random.default_rng(1).random((50, 2)) < [0.2, 0.9]
    both = bootstrap_interval(outcomes)
    assert np.array_equal(both, bootstrap_interval(outcomes))
    assert both[0, 1] < both[1, 0]


def test_drawing_whole_clusters_widens_the_interval():
    """Ten drives of a hundred frames that all succeed or all fail: ten witnesses, not a thousand."""
    outcomes = np.repeat([1.0, 0.0] * 5, 100)
    drive = np.repeat(np.arange(10), 100)
    frames, drives = bootstrap_interval(outcomes)[0], bootstrap_interval(outcomes, drive)[0]
    assert np.ptp(drives) > 5 * np.ptp(frames)


def test_clusters_of_one_are_no_clusters():
    outcomes = np.random.default_rng(0).random(40)
    alone = bootstrap_interval(outcomes, np.arange(40))
    assert alone == pytest.approx(bootstrap_interval(outcomes))


def test_equal_networks_differ_by_nothing():
    same = np.random.default_rng(0).random(100) < 0.5
    test = method_difference(same, same)
    assert (test.difference, test.low, test.high, test.p_value) == (0, 0, 0, 1)


def test_a_clear_gain_of_one_network_is_found_and_not_ascribed_to_the_method():
    test = method_difference(np.zeros(200), np.arange(200) < 30)
    assert test.difference == pytest.approx(0.15)
    assert test.low > 0
    assert test.p_value < 0.01
    assert not test.of_methods
    assert test.detectable is None


def test_one_drive_proves_nothing_however_many_frames_it_has():
    drive = np.repeat(np.arange(5), 100)
    second = drive == 0
    assert method_difference(np.zeros(500), second).p_value < 0.05
    assert method_difference(np.zeros(500), second, drive).p_value > 0.05


def test_over_seeds_alone_it_is_welchs_test():
    """Every query alike: all variance is over seeds."""
    first, second = np.array([0.1, 0.2, 0.4]), np.array([0.5, 0.55, 0.7, 0.62])
    found = method_difference(*(np.repeat(side[:, None], 50, axis=1) for side in (first, second)))
    assert found.p_value == pytest.approx(ttest_ind(second, first, equal_var=False).pvalue)
    assert found.of_methods


def test_over_queries_alone_it_is_the_paired_t_test():
    a, b = np.random.default_rng(3).random((2, 80)) * np.array([[1.0], [1.3]])
    found = method_difference(*(np.tile(side, (3, 1)) for side in (a, b)))
    assert found.p_value == pytest.approx(ttest_rel(b, a).pvalue)
    assert found.low == pytest.approx(ttest_rel(b, a).confidence_interval().low)


def outcomes(rng, hard, places, seed_noise, method_noise, shift=0.0):
    """(3, Q) networks of a method: queries with a difficulty, a method's own luck at places, a seed's own luck."""
    luck = method_noise * rng.normal(size=int(places.max()) + 1)[places]
    noise = seed_noise * rng.normal(size=(3, 1)) + rng.normal(size=(3, len(hard)))
    return hard + luck + noise + shift > 0


@pytest.mark.parametrize("seed_noise", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("method_noise", [0.0, 1.0])
@pytest.mark.parametrize("frames", [1, 4])
def test_without_a_true_difference_stars_are_rare(seed_noise, method_noise, frames):
    rng, places, cases = np.random.default_rng(7), np.arange(200) // frames, 400
    stars = 0
    for _ in range(cases):
        hard = 1.5 * rng.normal(size=200)
        sides = [outcomes(rng, hard, places, seed_noise, method_noise) for _ in range(2)]
        stars += method_difference(*sides, places).p_value < 0.05
    assert stars / cases <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / cases)


def test_the_detectable_difference_is_found_in_most_cases():
    rng, places = np.random.default_rng(1), np.arange(200)
    tests = []
    for _ in range(100):
        hard = 1.5 * rng.normal(size=200)
        tests.append(method_difference(*(outcomes(rng, hard, places, 0.1, 0.3, s) for s in (0.0, 0.5)), places))
    gain = np.mean([t.difference for t in tests])
    assert gain > np.median([t.detectable for t in tests])
    assert np.mean([t.p_value < 0.05 for t in tests]) > 0.7


def test_holm_worked_by_hand():
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("outcomes", [np.zeros(0), np.array([0.0, np.nan]), np.zeros((2, 2, 2))])
def test_outcomes_without_a_mean_are_refused(outcomes):
    with pytest.raises(InputError, match="outcomes have shape"):
        bootstrap_interval(outcomes)
