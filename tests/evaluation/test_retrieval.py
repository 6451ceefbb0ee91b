"""Descriptors of any tool: matched by name, searched as the protocol says, refused where they cannot be right."""

import numpy as np
import pytest
from toy_benchmarks import descriptors, drive, graph, street

import covis
from covis.core.errors import InputError
from covis.evaluation import Benchmark
from covis.evaluation.matrices import read_descriptors
from covis.evaluation.retrieval import evaluate_descriptors, rank_descriptors


def write(path, matrix, names):
    np.save(path, matrix)
    path.with_suffix(".txt").write_text("\n".join(names) + "\n")
    return path


def test_rows_are_found_by_name_in_any_order_and_scaled(tmp_path):
    images = street(4)
    matrix = np.arange(1, 11, dtype=np.float64).reshape(5, 2)
    path = write(tmp_path / "theirs.npy", matrix, ["m3.jpg", "m1.jpg", "other.jpg", "m0.jpg", "m2.jpg"])
    found = read_descriptors(path, images)
    expected = matrix[[3, 1, 4, 0]]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)
    assert found.dtype == np.float32


def test_file_names_are_enough_where_they_are_unambiguous(tmp_path):
    path = write(tmp_path / "theirs.npy", np.eye(2), ["/data/map/m1.jpg", "/data/map/m0.jpg"])
    assert read_descriptors(path, street(2)).tolist() == [[0, 1], [1, 0]]
    path = write(tmp_path / "twice.npy", np.eye(3), ["a/m1.jpg", "b/m1.jpg", "a/m0.jpg"])
    with pytest.raises(InputError, match=r"'m0.jpg' is missing"):
        read_descriptors(path, street(2))


@pytest.mark.parametrize(
    ("matrix", "names", "message"),
    [
        (np.eye(2), ["m0.jpg"], r"shape \(2, 2\), but .*names 1 images"),
        (np.eye(2), ["m0.jpg", "m9.jpg"], r"'m1.jpg' is missing \(1 such\)"),
        (np.zeros((2, 2)), ["m0.jpg", "m1.jpg"], "zero or not finite"),
        (np.full((2, 2), np.nan), ["m0.jpg", "m1.jpg"], "zero or not finite"),
        (np.zeros(2), ["m0.jpg", "m1.jpg"], "shape"),
    ],
)
def test_a_matrix_that_does_not_fit_is_named(tmp_path, matrix, names, message):
    with pytest.raises(InputError, match=message):
        read_descriptors(write(tmp_path / "theirs.npy", matrix, names), street(2))


def test_missing_names_and_pickles_are_refused(tmp_path):
    np.save(tmp_path / "alone.npy", np.eye(2))
    with pytest.raises(InputError, match=r"alone.txt does not exist"):
        read_descriptors(tmp_path / "alone.npy", street(2))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        read_descriptors(tmp_path / "objects.npy", street(2))


def test_the_ranking_is_the_sort_of_all_distances():
    benchmark = drive()
    queries, database = descriptors(benchmark, 0.5)
    ranking = rank_descriptors(queries, database, benchmark)
    gap = np.linalg.norm(queries[:, None] - database[None], axis=2)
    assert ranking.ids.tolist() == np.argsort(gap, axis=1, kind="stable")[:, :20].tolist()


def test_one_set_reaches_its_full_depth_without_the_query():
    walk = street(30)
    pairs = [(i, j) for i in range(30) for j in range(30) if abs(i - j) == 1]
    benchmark = Benchmark("walk", walk, walk, graph((30, 30), pairs), "next one", ks=(1, 20))
    queries, database = descriptors(benchmark, 0.05)
    ids, _ = benchmark.settle(rank_descriptors(queries, database, benchmark))
    assert (ids >= 0).all()
    assert (ids != np.arange(30)[:, None]).all()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda q, d: (q[:-1], d), r"queries have shape \(29, 16\)"),
        (lambda q, d: (q, d[:, :8] / np.linalg.norm(d[:, :8], axis=1, keepdims=True)), "16 dims, those of the map 8"),
        (lambda q, d: (q * 2, d), "has length 2, not 1"),
        (lambda q, d: (q, d * np.nan), "has length nan"),
    ],
)
def test_descriptors_that_cannot_be_right_are_refused(spoil, message):
    benchmark = drive()
    with pytest.raises(InputError, match=message):
        evaluate_descriptors(*spoil(*descriptors(benchmark, 0.1)), benchmark)


def test_recall_of_ones_own_descriptors_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    zq, zdb = (
        z / np.linalg.norm(z, axis=1, keepdims=True) for z in (rng.normal(size=(30, 6)), rng.normal(size=(50, 6)))
    )
    xyq, xydb = rng.uniform(0, 150, (30, 2)), rng.uniform(0, 150, (50, 2))
    near = np.linalg.norm(xyq[:, None] - xydb[None], axis=2) <= 25
    order = np.argsort(-(zq @ zdb.T), axis=1)
    hits = np.take_along_axis(near, order, 1)[near.any(1)]
    assert covis.recall(zq, zdb, xyq, xydb, ks=(1, 5)) == {
        k: pytest.approx(100 * hits[:, :k].any(1).mean()) for k in (1, 5)
    }
    with pytest.raises(InputError, match=r"map: descriptors \(50, 6\) and positions \(49, 2\)"):
        covis.recall(zq, zdb, xyq, xydb[1:])
