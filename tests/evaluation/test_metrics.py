"""Ranking metrics against loops written out by hand, and against tables worked out on paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.evaluation import metrics
from covis.evaluation.metrics import recall_at_k
from covis.graph import SimilarityGraph


def loop_recall_server(ranking, relevant, ks):
    """The MSLS evaluator in words: queries without positives are dropped first, then the share with a hit."""
    kept = [(r, set(p)) for r, p in zip(ranking, relevant, strict=True) if len(p)]
    return {k: 100 * sum(any(i in p for i in r[:k]) for r, p in kept) / len(kept) for k in ks}


def loop_recall_folder(ranking, relevant, ks):
    """The 25 m folder evaluator in words: every query counts, one without positives is a miss."""
    return {
        k: 100 * sum(any(i in p for i in r[:k]) for r, p in zip(ranking, relevant, strict=True)) / len(ranking)
        for k in ks
    }


def loop_average_precision(row, relevant, k):
    hits, score, seen = 0, 0.0, set()
    for place, image in enumerate(row[:k], 1):
        if image in relevant and image not in seen:
            hits += 1
            score += hits / place
        seen.add(image)
    return score / min(len(relevant), k) if relevant else math.nan


def loop_ndcg(row, psi, k):
    gain, seen = 0.0, set()
    for place, image in enumerate(row[:k], 1):
        gain += psi.get(image, 0.0) / math.log2(place + 1) if image not in seen else 0.0
        seen.add(image)
    ideal = sum(p / math.log2(n + 1) for n, p in enumerate(sorted(psi.values(), reverse=True)[:k], 1))
    return gain / ideal if ideal else math.nan


@st.composite
def rankings(draw):
    """Random rankings with padding and repeats, and random relevant ids, often none."""
    queries, images, depth = draw(st.integers(1, 8)), draw(st.integers(1, 12)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ranking = rng.integers(0, images, (queries, depth))
    for row in ranking:
        row[depth - rng.integers(0, depth + 1) :] = -1
    relevant = [np.flatnonzero(rng.random(images) < rng.choice([0.0, 0.2, 0.6])) for _ in range(queries)]
    return ranking, relevant


@settings(max_examples=150, deadline=None)
@given(rankings())
def test_recall_equals_the_loop_of_the_server_evaluator(case):
    ranking, relevant = case
    if not any(map(len, relevant)):
        with pytest.raises(InputError, match="nothing to score"):
            recall_at_k(ranking, relevant, (1,))
        return
    ks = (1, 2, 3, 5, 20)
    assert recall_at_k(ranking, relevant, ks) == pytest.approx(loop_recall_server(ranking, relevant, ks))


@settings(max_examples=100, deadline=None)
@given(rankings(), st.integers(1, 12))
def test_average_precision_equals_the_loop(case, k):
    ranking, relevant = case
    graph = metrics.positives(relevant)
    loop = [loop_average_precision(r.tolist(), set(p.tolist()), k) for r, p in zip(ranking, relevant, strict=True)]
    np.testing.assert_allclose(metrics.average_precision_at_k(ranking, graph, k), loop)


@settings(max_examples=100, deadline=None)
@given(rankings(), st.integers(1, 12), st.integers(0, 2**16))
def test_graded_gain_equals_the_loop(case, k, seed):
    ranking, relevant = case
    rng = np.random.default_rng(seed)
    psi = [{int(i): float(np.float32(rng.uniform(0.01, 1))) for i in p} for p in relevant]
    rows = np.repeat(np.arange(len(psi)), [len(p) for p in psi])
    columns, values = [i for p in psi for i in p], [v for p in psi for v in p.values()]
    graph = SimilarityGraph.from_edges(rows, columns, values, (len(psi), 12))
    loop = [loop_ndcg(r.tolist(), p, k) for r, p in zip(ranking, psi, strict=True)]
    np.testing.assert_allclose(metrics.ndcg_at_k(ranking, graph, k), loop, rtol=1e-6)


def test_server_table_worked_by_hand():
    """Two queries, six images: the first finds its positives at ranks 5 and 6, the second at ranks 1 and 4."""
    ranking = [[0, 1, 2, 3, 4, 5], [0, 5, 4, 1, 3, 2]]
    relevant = [[4, 5], [0, 1]]
    assert recall_at_k(ranking, relevant, (1, 2, 3, 4, 5)) == {1: 50, 2: 50, 3: 50, 4: 50, 5: 100}
    graph = metrics.positives(relevant)
    mean = {k: metrics.average_precision_at_k(ranking, graph, k).mean() for k in (1, 2, 3, 4, 6)}
    # k = 4: the second has (1/1 + 2/4) / 2; k = 6: the first has (1/5 + 2/6) / 2.
    assert mean == pytest.approx({1: 1 / 2, 2: 1 / 4, 3: 1 / 4, 4: 3 / 8, 6: (4 / 15 + 3 / 4) / 2})


def test_folder_table_worked_by_hand():
    """Four queries, one of them without a positive: 2 of 3 over those that have one, 2 of 4 over all, at k = 2."""
    ranking = np.array([[7, 1, 2], [3, 4, 5], [0, 8, 9], [6, 5, 4]])
    relevant = [[1], [5], [], [6, 4]]
    assert recall_at_k(ranking, relevant, (1, 2, 3)) == pytest.approx({1: 100 / 3, 2: 200 / 3, 3: 100})
    assert loop_recall_folder(ranking, relevant, (1, 2, 3)) == {1: 25, 2: 50, 3: 75}


def test_a_graph_counts_from_the_positive_threshold_on():
    graph = SimilarityGraph.from_edges([0, 0, 1], [0, 1, 1], [0.49, 0.5, 0.3], (2, 2))
    assert recall_at_k([[0, 1], [1, 0]], graph, (1, 2)) == {1: 0, 2: 100}


def test_a_quantised_graph_scores_the_same():
    rng = np.random.default_rng(3)
    dense = rng.random((40, 60)) * (rng.random((40, 60)) < 0.3)
    rows, columns = np.nonzero(dense)
    graph = SimilarityGraph.from_edges(rows, columns, dense[rows, columns], dense.shape)
    ranking = rng.permuted(np.tile(np.arange(60), (40, 1)), axis=1)[:, :10]
    assert recall_at_k(ranking, graph) == recall_at_k(ranking, graph.quantised())


def test_k_beyond_the_ranking_counts_what_is_there():
    assert recall_at_k([[2, 0]], [[0]], (1, 100)) == {1: 0, 100: 100}


def test_padding_matches_nothing():
    assert recall_at_k([[-1, -1], [0, -1]], [[0], [0]], (2,)) == {2: 50}


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        (np.zeros((2, 3, 1), int), "shape"),
        (np.zeros((2, 3)), "float64"),
        (np.zeros((3, 3), int), "3 rows, but there are 2 queries"),
    ],
)
def test_a_wrong_ranking_is_named(ranking, message):
    with pytest.raises(InputError, match=message):
        recall_at_k(ranking, [[0], [1]], (1,))


def test_recall_at_zero_is_refused():
    with pytest.raises(InputError, match="from 1"):
        recall_at_k([[0]], [[0]], (0,))
