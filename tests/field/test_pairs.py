"""Pairs and features, read back by the tools that they are for."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.field import pairs
from covis.field.global_features import write_global_features
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses

NAMES = ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"]


def images(root=".", names=NAMES, frame="", **more):
    xy = np.column_stack([np.arange(len(names)) * 10.0, np.zeros(len(names))])
    return ImageSet.of(root, names, Poses(xy, np.zeros(len(names)), frame=frame), **more)


def test_exhaustive_pairs():
    assert pairs.exhaustive(4).tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert pairs.exhaustive(2, 2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_ranking_gives_each_image_its_best_and_each_pair_once():
    ids = np.array([[0, 1, 2], [1, 0, 3], [3, 2, -1], [2, 3, 0]])
    assert pairs.by_ranking(ids, 1, one_set=True).tolist() == [[0, 1], [2, 3]]
    assert pairs.by_ranking(ids, 2, one_set=True).tolist() == [[0, 1], [0, 2], [1, 3], [2, 3], [3, 0]]
    assert pairs.by_ranking(ids, 1, one_set=False).tolist() == [[0, 0], [1, 1], [2, 3], [3, 2]]


def test_overlap_takes_what_is_shared_most():
    psi = np.array([[0, 0.9, 0.2, 0.6], [0.9, 0, 0, 0.1], [0.2, 0, 0, 0.3], [0.6, 0.1, 0.3, 0]])
    rows, columns = np.nonzero(psi)
    graph = SimilarityGraph.from_edges(rows, columns, psi[rows, columns], (4, 4))
    assert pairs.by_overlap(graph, 1, one_set=True).tolist() == [[0, 1], [2, 3], [3, 0]]
    assert pairs.by_overlap(graph, 9, 0.5, one_set=True).tolist() == [[0, 1], [0, 3]]
    both = pairs.joined_pairs(np.array([[2, 3], [0, 1]]), np.array([[1, 0], [0, 2]]), one_set=True)
    assert both.tolist() == [[0, 1], [0, 2], [2, 3]]


def test_colmap_reads_the_list(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    database = pycolmap.Database.open(str(tmp_path / "db.db"))
    camera = database.write_camera(pycolmap.Camera(model="PINHOLE", width=640, height=480, params=[500, 501, 320, 240]))
    for name in NAMES:
        database.write_image(pycolmap.Image(name=name, camera_id=camera))
    pairs.write_pairs(tmp_path / "pairs.txt", np.array([[0, 2], [1, 3]]), images(), images())
    assert (tmp_path / "pairs.txt").read_text() == "a/1.jpg b/1.jpg\na/2.jpg b/2.jpg\n"
    options = pycolmap.ImportedPairingOptions(match_list_path=str(tmp_path / "pairs.txt"))
    named = {i.image_id: i.name for i in database.read_all_images()}
    found = {
        frozenset(named[i] for i in pair) for pair in pycolmap.ImportedPairGenerator(options, database).all_pairs()
    }
    database.close()
    assert found == {frozenset(("a/1.jpg", "b/1.jpg")), frozenset(("a/2.jpg", "b/2.jpg"))}


def test_names_with_spaces_are_refused(tmp_path):
    spaced = images(names=["a b.jpg", "c.jpg"])
    with pytest.raises(InputError, match=r"1 names have spaces.*'a b\.jpg'"):
        pairs.write_pairs(tmp_path / "p.txt", np.array([[0, 1]]), spaced, spaced)
    assert not (tmp_path / "p.txt").exists()


def test_global_features_have_hlocs_layout(tmp_path):
    import h5py

    rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    write_global_features(tmp_path / "g.h5", NAMES, rows)
    with h5py.File(tmp_path / "g.h5") as file:
        np.testing.assert_array_equal(file["a/2.jpg"]["global_descriptor"].__array__(), rows[1])
        found = []
        file.visititems(lambda _, o: found.append(o.parent.name.strip("/")) if isinstance(o, h5py.Dataset) else None)
        assert sorted(found) == NAMES  # as hloc lists the names of a file
