"""The similarity graph against a dense matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covis.core.errors import InputError
from covis.graph import BAND_EDGES, SimilarityGraph

DENSE = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    elements=st.floats(0, 1, width=32, allow_subnormal=False),
)


def graph_of(dense):
    rows, columns = np.nonzero(dense)
    return SimilarityGraph.from_edges(rows, columns, dense[rows, columns], dense.shape, {"measure": "test"})


@settings(max_examples=60, deadline=None)
@given(DENSE, st.integers(0, 2**32 - 1))
def test_everything_agrees_with_the_dense_matrix(dense, seed):
    graph = graph_of(dense)
    np.testing.assert_array_equal(graph.to_scipy().toarray(), dense)
    rng = np.random.default_rng(seed)
    i, j = rng.integers(dense.shape[0], size=50), rng.integers(dense.shape[1], size=50)
    np.testing.assert_array_equal(graph.lookup(i, j), dense[i, j])
    for k in range(dense.shape[0]):
        ids, psi = graph.row(k)
        np.testing.assert_array_equal(ids, np.flatnonzero(dense[k]))
        np.testing.assert_array_equal(psi, dense[k][dense[k] > 0])
    low, high = sorted(rng.random(2))
    for top in (high, 1.0):
        band = graph.band(low, top).to_scipy().toarray()
        inside = (dense >= low) & ((dense < top) | (top == 1.0)) & (dense > 0)
        np.testing.assert_array_equal(band, np.where(inside, dense, 0))


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(2**-20, 1, width=32)))
def test_quantising_moves_no_pair_across_a_band(psi):
    graph = SimilarityGraph.from_edges(np.zeros(len(psi), int), np.arange(len(psi)), psi, (1, len(psi)))
    small = graph.quantised()
    assert small.values.dtype == np.uint8
    assert (small.psi > 0).all()
    assert np.abs(small.psi - graph.psi).max() <= 1 / 255 + 1e-6
    for edge in BAND_EDGES:
        np.testing.assert_array_equal(small.psi >= edge, graph.psi >= edge)


def test_saved_and_opened_memory_mapped(tmp_path):
    graph = graph_of(np.random.default_rng(0).random((20, 30), np.float32))
    graph.save(tmp_path / "g")
    opened = SimilarityGraph.open(tmp_path / "g")
    assert isinstance(opened.indices, np.memmap)
    assert opened.fingerprint() == graph.fingerprint()
    assert opened.facts["measure"] == "test"


def test_empty_graphs_work(tmp_path):
    graph = SimilarityGraph.from_edges([], [], [], (3, 4))
    assert graph.lookup([0, 2], [1, 3]).tolist() == [0, 0]
    graph.save(tmp_path / "g")
    assert SimilarityGraph.open(tmp_path / "g").pairs == 0


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (([0], [0], [1.5]), "ψ = 1.5"),
        (([0], [0], [np.nan]), "ψ = nan"),
        (([0], [0], [-0.1]), "ψ = -0.1"),
        (([0], [9], [0.5]), r"edge 0 \(0, 9"),
        (([0, 0], [1, 1], [0.5, 0.6]), "listed twice"),
        (([0, 1], [1], [0.5]), "differ in length"),
        (([np.nan], [0], [0.5]), "index nan; expected a whole number"),
        (([0], [0.5], [0.5]), r"index 0\.5; expected a whole number"),
        (([None], [0], [0.5]), "is None; expected whole numbers"),
        ((["a"], [0], [0.5]), "expected whole numbers"),
    ],
)
def test_wrong_edges_are_named(edges, message):
    with pytest.raises(InputError, match=message):
        SimilarityGraph.from_edges(*edges, (2, 3))


def test_wrong_values_in_a_file_are_named():
    with pytest.raises(InputError, match=r"pair \(1, 2\) is nan"):
        SimilarityGraph(np.array([0, 1, 2]), np.array([0, 2], np.int32), np.array([0.5, np.nan], np.float32), (2, 3))


def test_a_similarity_below_the_smallest_normal_number_stays_above_zero():
    graph = SimilarityGraph.from_edges([0, 0], [0, 1], [1e-300, 1e-45], (1, 2))
    assert graph.pairs == 2
    assert (graph.row(0)[1] == np.finfo(np.float32).tiny).all()
