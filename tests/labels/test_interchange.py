"""Labels in other tools' files: there and back, odd names, and damaged files."""

import csv

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from label_sets import random_set

from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels import FovOverlap
from covis.labels.exchange import Labels, open_labels, read_edges, read_hloc, save_labels, write_edges, write_hloc
from covis.labels.released import read_h5, read_released, write_h5


@pytest.fixture
def two_sets():
    queries, database = random_set(30, 200, seed=1), random_set(600, 200, seed=2)
    return Labels(FovOverlap()(queries, database), queries, database)


@pytest.fixture
def one_set():
    images = random_set(40, 150, seed=3, unknown=0.1)
    return Labels(FovOverlap()(images, images), images, images)


def same(one, two):
    np.testing.assert_array_equal(one.to_scipy().toarray(), two.to_scipy().toarray())


def test_released_matrix_there_and_back(tmp_path, two_sets):
    write_h5(two_sets.graph, tmp_path / "city_gt.h5")
    with h5py.File(tmp_path / "city_gt.h5") as file:
        assert file["fov"].shape == file["sim"].shape == (30, 600)
        np.testing.assert_array_equal(file["fov"][:], two_sets.graph.to_scipy().toarray())
        np.testing.assert_array_equal(file["sim"][:], two_sets.graph.to_scipy().toarray() >= 0.5)
        assert file.attrs["measure"] == "overlap"
    same(read_h5(tmp_path / "city_gt.h5"), two_sets.graph)
    assert read_h5(tmp_path / "city_gt.h5", "sim").pairs == two_sets.graph.band(0.5, 1.0).pairs


def test_condensed_vector_there_and_back(tmp_path, one_set):
    write_h5(one_set.graph, tmp_path / "W17_similarity.h5")
    dense = one_set.graph.to_scipy().toarray()
    with h5py.File(tmp_path / "W17_similarity.h5") as file:
        np.testing.assert_array_equal(file["fov"][:], dense[np.triu_indices(40, 1)])
    back = read_h5(tmp_path / "W17_similarity.h5")
    same(back, one_set.graph)
    assert back.facts["one_set"] is True


def test_a_condensed_row_is_told_from_a_single_query(tmp_path, one_set):
    images = one_set.queries
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fov"] = one_set.graph.to_scipy().toarray()[np.triu_indices(40, 1)][None]
    assert read_h5(tmp_path / "a.h5").shape == (1, 780)
    back = read_released(tmp_path / "a.h5", images, images)
    same(back, one_set.graph)
    assert back.facts["queries"] == images.fingerprint()
    with pytest.raises(InputError, match=r"is of 40 × 40 images; these are 9 × 9"):
        read_released(tmp_path / "a.h5", *[images.subset(np.arange(9))] * 2)


@pytest.mark.parametrize("n", [2, 3, 700])
def test_condensed_positions_are_those_of_the_upper_triangle(tmp_path, n):
    rng = np.random.default_rng(n)
    vector = rng.random(n * (n - 1) // 2) * (rng.random(n * (n - 1) // 2) < 0.1)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fov"] = vector
    dense = np.zeros((n, n))
    dense[np.triu_indices(n, 1)] = vector
    np.testing.assert_allclose(read_h5(tmp_path / "a.h5").to_scipy().toarray(), dense + dense.T, atol=1e-7)
    write_h5(read_h5(tmp_path / "a.h5"), tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        np.testing.assert_allclose(file["fov"][:], vector, atol=1e-7)


@pytest.mark.parametrize("name", ["edges.csv", "edges.parquet"])
def test_edge_lists_there_and_back(tmp_path, two_sets, name):
    assert write_edges(two_sets, tmp_path / name) == two_sets.graph.pairs
    back = read_edges(tmp_path / name, two_sets.queries, two_sets.database)
    same(back, two_sets.graph)
    assert back.facts["queries"] == two_sets.queries.fingerprint()
    assert not list(tmp_path.glob(".*partial*"))


def test_csv_says_query_database_similarity(tmp_path, one_set):
    write_edges(one_set, tmp_path / "edges.csv", least=0.5)
    with (tmp_path / "edges.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["query", "database", "similarity"]
    found = {(r["query"], r["database"]): float(r["similarity"]) for r in rows}
    i, j = np.nonzero(one_set.graph.to_scipy().toarray() >= 0.5)
    assert found == {
        (one_set.queries.name(a), one_set.queries.name(b)): pytest.approx(float(one_set.graph.lookup(a, b)), abs=1e-8)
        for a, b in zip(i, j, strict=True)
    }


def test_links_are_written_through_not_replaced(tmp_path, two_sets):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_edges(two_sets, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    same(read_edges(tmp_path / "real.csv", two_sets.queries, two_sets.database), two_sets.graph)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.csv", "real.csv"]


@pytest.mark.parametrize("name", ["edges.csv", "edges.parquet"])
def test_odd_file_names_survive(tmp_path, name):
    odd = [b"a b.jpg", 'größe,"1".jpg'.encode(), b"\xff\xfe.jpg", b"@1@2@.jpg", b"x" * 200 + b".jpg"]
    images = random_set(5, 10, seed=4)
    images = ImageSet.of(".", np.array(odd), images.poses)
    labels = Labels(FovOverlap(fov_deg=360.0)(images, images), images, images)
    write_edges(labels, tmp_path / name)
    same(read_edges(tmp_path / name, images, images), labels.graph)


def test_quantised_graphs_are_written_as_similarities(tmp_path, two_sets):
    small = two_sets._replace(graph=two_sets.graph.quantised())
    write_edges(small, tmp_path / "edges.parquet")
    table = pq.read_table(tmp_path / "edges.parquet")
    np.testing.assert_allclose(table["similarity"].to_numpy(), two_sets.graph.psi, atol=1 / 255)


def test_pair_lists_name_the_most_similar_first(tmp_path, two_sets):
    written = write_hloc(two_sets, tmp_path / "pairs.txt", least=0.3, most=3)
    lines = [line.split() for line in (tmp_path / "pairs.txt").read_text().splitlines()]
    assert len(lines) == written
    expected = []
    for i in range(30):
        ids, psi = two_sets.graph.row(i)
        best = sorted((k for k in range(len(ids)) if psi[k] >= np.float32(0.3)), key=lambda k: (-psi[k], ids[k]))[:3]
        expected += [[two_sets.queries.name(i), two_sets.database.name(int(ids[k]))] for k in best]
    assert lines == expected
    back = read_hloc(tmp_path / "pairs.txt", two_sets.queries, two_sets.database)
    assert back.pairs == written
    assert (back.psi == 1).all()


def test_pair_lists_refuse_names_with_spaces(tmp_path, one_set):
    images = ImageSet.of(".", [f"photo {i}.jpg" for i in range(40)], one_set.queries.poses)
    with pytest.raises(InputError, match=r"'photo 0.jpg' has a space in its name"):
        write_hloc(Labels(one_set.graph, images, images), tmp_path / "pairs.txt")
    assert not list(tmp_path.iterdir())


def test_saved_labels_name_their_images(tmp_path, one_set, two_sets):
    save_labels(two_sets, tmp_path / "two")
    save_labels(one_set, tmp_path / "one")
    two, one = open_labels(tmp_path / "two"), open_labels(tmp_path / "one")
    same(two.graph, two_sets.graph)
    assert one.queries is one.database
    assert two.database.names.tolist() == two_sets.database.names.tolist()
    np.testing.assert_array_equal(two.queries.poses.xy, two_sets.queries.poses.xy)
    np.testing.assert_array_equal(one.queries.poses.heading, one_set.queries.poses.heading)
    one_set.graph.save(tmp_path / "bare")
    assert SimilarityGraph.open(tmp_path / "one").pairs == one_set.graph.pairs
    with pytest.raises(InputError, match="does not name its images"):
        open_labels(tmp_path / "bare")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: f.create_dataset("sim", data=np.zeros((2, 2))), "has no dataset 'fov'; it has sim"),
        (lambda f: f.create_dataset("fov", data=np.zeros(4)), "4 values, which is not n"),
        (lambda f: f.create_dataset("fov", data=[[0.0, 1.5]]), r"pair \(0, 1\) is 1.5; expected 0 to 1"),
        (lambda f: f.create_dataset("fov", data=[[0.0, np.nan]]), r"pair \(0, 1\) is nan"),
        (lambda f: f.create_dataset("fov", data=[[-0.1, 0.0]]), r"pair \(0, 0\) is -0.1"),
    ],
)
def test_wrong_released_labels_are_refused(tmp_path, make, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(InputError, match=says):
        read_h5(tmp_path / "a.h5")


def test_half_precision_rounding_above_one_is_forgiven(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fov"] = np.array([[1.0005, 0.5]])
    assert read_h5(tmp_path / "a.h5").psi.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "query,database\n", "expected query, database, similarity"),
        ("a.csv", "query,database,similarity\n00000.jpg,00001.jpg\n", "row 2 has 2 cells"),
        ("a.csv", "query,database,similarity\n00000.jpg,00001.jpg,much\n", "'much' is not a number"),
        ("a.csv", "query,database,similarity\n00000.jpg,nobody.jpg,0.5\n", "row 2 names database 'nobody.jpg'"),
        ("a.csv", "query,database,similarity\n00000.jpg,00001.jpg,1.5\n", "outside"),
        ("a.csv", "query,database,similarity\n00000.jpg,00001.jpg,0.5\n00000.jpg,00001.jpg,0.6\n", "listed twice"),
        ("a.csv", "", "expected query, database, similarity"),
        ("a.parquet", "PAR1 broken", "not a Parquet file"),
    ],
)
def test_wrong_edge_lists_are_refused_with_the_row(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    images = random_set(4, 10, seed=0)
    with pytest.raises(InputError, match=says):
        read_edges(tmp_path / name, images, images)


def test_wrong_pair_lists_are_refused_with_the_line(tmp_path):
    images = random_set(4, 10, seed=0)
    (tmp_path / "pairs.txt").write_text("00000.jpg 00001.jpg\n00000.jpg\n")
    with pytest.raises(InputError, match="line 2 has 1 names; expected two"):
        read_hloc(tmp_path / "pairs.txt", images, images)
    (tmp_path / "a.h5").write_text("text")
    with pytest.raises(InputError, match="cannot be read as HDF5"):
        read_h5(tmp_path / "a.h5")


def test_shapes_are_compared_before_anything_is_read(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "huge.h5", "w") as file:  # 1.4 kB that ask for 100 TB
        file.create_dataset("fov", shape=(10**7, 10**7), chunks=(64, 64), dtype="f4")
    images = random_set(2, 10.0, 0)

    def read(*_):
        raise AssertionError("values were read")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", read)
    with pytest.raises(InputError, match="10000000 × 10000000 images; these are 2 × 2"):
        read_released(tmp_path / "huge.h5", images, images)
