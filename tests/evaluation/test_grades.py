"""Figures over pairs: curves worked by hand, average precision against a sort of all pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.evaluation import pairs
from covis.graph import SimilarityGraph


def unit(rng, *shape):
    z = rng.normal(size=shape).astype(np.float32)
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def sorted_average_precision(distance, correct):
    """Average precision by sorting, equal distances accepted together."""
    total = 0.0
    for d in distance[correct]:
        accepted = distance <= d
        total += correct[accepted].sum() / accepted.sum()
    return total / correct.sum()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_average_precision_equals_sorting_all_pairs(seed, coarse):
    rng = np.random.default_rng(seed)
    q, d = unit(rng, 9, 4), unit(rng, 14, 4)
    if coarse:  # few distinct descriptors make many ties
        q, d = q[rng.integers(0, 3, 9)], q[rng.integers(0, 3, 14)]
    truth = rng.random((9, 14)) < 0.2
    truth[0, 0] = True
    rows, columns = np.nonzero(truth)
    graph = SimilarityGraph.from_edges(rows, columns, np.ones(len(rows)), truth.shape)
    (_, block), *_ = pairs.distance_blocks(q, d)
    expected = sorted_average_precision(block.ravel(), truth.ravel())
    assert pairs.average_precision(q, d, graph, one_set=False) == pytest.approx(expected)


def test_average_precision_in_blocks_and_without_the_diagonal(monkeypatch):
    rng = np.random.default_rng(0)
    z = unit(rng, 30, 6)
    truth = (rng.random((30, 30)) < 0.1) & ~np.eye(30, dtype=bool)
    truth |= truth.T
    rows, columns = np.nonzero(truth)
    graph = SimilarityGraph.from_edges(rows, columns, np.ones(len(rows)), truth.shape)
    whole = pairs.average_precision(z, z, graph, one_set=True)
    off = ~np.eye(30, dtype=bool)
    distance = np.maximum(2 - 2 * (z @ z.T), 0)
    assert whole == pytest.approx(sorted_average_precision(distance[off], truth[off]), rel=1e-6)
    monkeypatch.setattr(pairs, "_BLOCK", 70)
    assert pairs.average_precision(z, z, graph, one_set=True) == pytest.approx(whole)


def test_a_perfect_descriptor_has_average_precision_one():
    z = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    graph = SimilarityGraph.from_edges([0, 1, 2, 3], [1, 0, 3, 2], np.ones(4), (4, 4))
    assert pairs.average_precision(z, z, graph, one_set=True) == 1.0


def test_pair_distances_are_those_of_the_vectors(monkeypatch):
    rng = np.random.default_rng(1)
    q, d = unit(rng, 5, 8), unit(rng, 7, 8)
    monkeypatch.setattr(pairs, "_BLOCK", 16)
    rows, columns = np.array([0, 4, 2]), np.array([6, 0, 3])
    expected = [np.linalg.norm(q[i] - d[j]) for i, j in zip(rows, columns, strict=True)]
    assert pairs.pair_distances(q, d, rows, columns) == pytest.approx(expected)


def test_rank_correlation_knows_direction_and_ties():
    from scipy.stats import spearmanr

    psi, distance = np.array([0, 0, 0.2, 0.5, 0.5, 1.0]), np.array([1.2, 1.3, 1.0, 0.8, 0.7, 0.1])
    assert pairs.rank_correlation(psi, distance) == pytest.approx(spearmanr(psi, distance).statistic)
    assert pairs.rank_correlation([0.1, 0.5, 0.9], [0.9, 0.5, 0.1]) == pytest.approx(-1)
    assert np.isnan(pairs.rank_correlation([0.5, 0.5], [1, 2]))


def test_sampled_pairs_carry_their_similarity():
    graph = SimilarityGraph.from_edges([0, 1, 1], [2, 0, 3], [0.5, 0.25, 1.0], (2, 5))
    rows, columns, psi = pairs.sample_pairs(graph, 40)
    assert len(rows) == 40
    assert psi.tolist() == graph.lookup(rows, columns).tolist()
    assert {(0, 2), (1, 0), (1, 3)} <= set(zip(rows.tolist(), columns.tolist(), strict=True))


def test_pairs_that_may_not_match_are_not_sampled():
    graph = SimilarityGraph.from_edges([0, 1], [1, 0], [0.5, 0.5], (6, 6))
    rows, columns, _ = pairs.sample_pairs(graph, 100, lambda q, m: q != m)
    assert len(rows) == 100
    assert (rows != columns).all()


def test_no_correct_pair_is_an_error_not_a_zero():
    empty = SimilarityGraph.from_edges([], [], [], (2, 2))
    with pytest.raises(InputError, match="no pair"):
        pairs.average_precision(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), empty, one_set=False)
