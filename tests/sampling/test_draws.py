"""Partners and random numbers against plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.images import Split
from covis.sampling import STRATEGIES
from covis.sampling.candidates import find_candidates, make_tables, pick, pick_zeros
from covis.sampling.draws import below, epoch_key, permute
from layouts.worlds import world

WORLDS = [
    {"one_set": True},
    {"one_set": False},
    {"one_set": True, "groups": 3, "within_group": True},
    {"one_set": False, "groups": 3, "within_group": True, "unknown": 4},
    {"one_set": True, "unknown": 5},
    {"one_set": True, "quantised": True},
]


def free_partners(w, i):
    """ψ = 0 partners of query i, by the definition."""
    group = [np.array(s.group_names)[s.group] for s in (w.queries, w.database)]
    within = w.graph.facts["within_group"]
    return [
        j
        for j in range(len(w.database))
        if w.dense[i, j] == 0
        and not (w.one_set and i == j)
        and not (within and group[0][i] != group[1][j])
        and w.queries.poses.known[i]
        and w.database.poses.known[j]
    ]


@pytest.mark.parametrize("kind", WORLDS, ids=str)
def test_partners_without_overlap_are_counted_and_listed_in_order(kind):
    w = world(**kind, n=30, m=25)
    tables = make_tables(w.graph, Split(w.queries, w.database))
    for i in range(len(w.queries)):
        expected = free_partners(w, i)
        assert tables.zeros[i] == len(expected)
        assert pick_zeros(tables, np.full(len(expected), i), np.arange(len(expected))).tolist() == expected


@pytest.mark.parametrize("kind", WORLDS, ids=str)
@pytest.mark.parametrize("name", ["B", "D"])
def test_candidates_of_each_band_are_those_of_the_dense_matrix(kind, name):
    w = world(**kind)
    c = find_candidates(make_tables(w.graph, Split(w.queries, w.database)), STRATEGIES[name])
    band_of = STRATEGIES[name].band_of(w.dense)
    for b, band in enumerate(STRATEGIES[name].bands):
        for i in range(len(w.queries)):
            stored = np.flatnonzero((band_of[i] == b) & (w.dense[i] > 0)).tolist()
            expected = stored + (free_partners(w, i) if band.zero else [])
            assert c.counts[i, b] == len(expected)
            count = len(expected)
            columns, psi = pick(c, np.full(count, i), np.full(count, b), np.arange(count))
            assert columns.tolist() == expected
            assert psi == pytest.approx(w.dense[i, expected])
        assert c.band_rows[b].tolist() == np.flatnonzero(c.counts[:, b] > 0).tolist()


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**62), epoch=st.integers(0, 1000))
def test_permutations_send_no_two_places_to_one(n, seed, epoch):
    assert np.array_equal(np.sort(permute(epoch_key(seed, epoch), np.arange(n), n)), np.arange(n))


def test_permutations_differ_between_seeds_epochs_and_purposes():
    keys = [epoch_key(s, e, p) for s in range(3) for e in range(3) for p in range(3)]
    orders = {permute(k, np.arange(50), 50).tobytes() for k in keys}
    assert len(orders) == len(keys)


def test_permutations_are_uniform():
    """Each of 6 places receives each of 6 numbers equally often: χ² with 25 degrees of freedom."""
    counts = np.zeros((6, 6))
    for k in range(6000):
        counts[np.arange(6), permute(epoch_key(k, 0), np.arange(6), 6)] += 1
    assert ((counts - 1000) ** 2 / 1000).sum() < 52.6  # p = 0.001


def test_draws_are_uniform_and_independent_of_neighbours():
    key = epoch_key(7, 0)
    drawn = below(key, np.arange(20000), 2, 10)
    assert ((np.bincount(drawn, minlength=10) - 2000) ** 2 / 2000).sum() < 27.9  # p = 0.001, 9 degrees of freedom
    both = np.bincount(drawn[:-1] * 10 + drawn[1:], minlength=100)
    assert ((both - 200) ** 2 / 200).sum() < 149  # p = 0.001, 99 degrees of freedom
