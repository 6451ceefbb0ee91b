"""Positions from matches: the best match's place alone, weighted, in the right direction."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.maps.evidence import fuse, weights
from covis.poses import PLACE_M


def fused(points, heading, weight, found=None):
    xy = np.array([points], float)
    known = np.ones(xy.shape[:2], bool) if found is None else np.array([found])
    return fuse(xy, np.array([heading], float), np.array([weight], float), known)


def test_only_the_best_matchs_place_counts():
    result = fused([(0, 0), (10, 0), (200, 0), (205, 0)], [0, 90, 180, 180], [3, 1, 100, 100])
    assert result.xy[0] == pytest.approx([2.5, 0])
    assert result.count[0] == 2
    assert result.heading[0] == pytest.approx(np.degrees(np.arctan2(1, 3)))


def test_headings_go_round_and_may_be_unknown_or_cancel():
    assert fused([(0, 0), (1, 0)], [350, 10], [1, 1]).heading[0] % 360 == pytest.approx(0, abs=1e-6)
    assert fused([(0, 0), (1, 0)], [np.nan, 70], [1, 1]).heading[0] == pytest.approx(70)
    assert np.isnan(fused([(0, 0), (1, 0)], [np.nan, np.nan], [1, 1]).heading[0])
    assert np.isnan(fused([(0, 0), (1, 0)], [90, 270], [1, 1]).heading[0])


def test_no_match_has_no_position():
    result = fused([(5, 5)], [0], [1], [False])
    assert np.isnan(result.xy).all()
    assert result.count[0] == 0
    nothing = fuse(np.zeros((2, 0, 2)), np.zeros((2, 0)), np.zeros((2, 0)), np.zeros((2, 0), bool))
    assert np.isnan(nothing.xy).all()
    assert nothing.xy.shape == (2, 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-40, 40), st.floats(-40, 40), st.floats(0, 1)), min_size=1, max_size=12))
def test_a_position_lies_among_the_matches_that_made_it(rows):
    data = np.array(rows)
    result = fused(data[:, :2], np.full(len(data), np.nan), weights(np.ones(len(data)), data[:, 2]))
    near = np.hypot(*(data[:, :2] - data[0, :2]).T) <= PLACE_M
    assert result.count[0] == near.sum()
    assert np.all(result.xy[0] >= data[near, :2].min(0) - 1e-9)
    assert np.all(result.xy[0] <= data[near, :2].max(0) + 1e-9)


def test_nearer_descriptors_weigh_more():
    assert np.all(np.diff(weights(np.array([0.0, 0.1, 0.5, 1.5]), None)) < 0)
    assert np.all(weights(np.ones(2), np.array([0.0, 0.5])) > 0)
