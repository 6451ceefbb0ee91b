"""Pairs, features and priors, read back by the tools that they are for."""

import numpy as np
import pytest
from PIL import Image

from covis.core.errors import InputError
from covis.field import pairs
from covis.field.global_features import read_global_features, write_global_features
from covis.field.pose_priors import write_pose_priors
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import UNSCALED, Poses
from covis.reading.cameras import Camera, calibration

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
    skip = np.zeros_like(ids, bool)
    skip[0, 1] = True
    assert [0, 2] in pairs.by_ranking(ids, 1, one_set=True, skip=skip).tolist()


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
    write_pose_priors(tmp_path / "db.db", images(intrinsics=_cameras(), columns={}))
    pairs.write_pairs(tmp_path / "pairs.txt", np.array([[0, 2], [1, 3]]), images(), images())
    assert (tmp_path / "pairs.txt").read_text() == "a/1.jpg b/1.jpg\na/2.jpg b/2.jpg\n"
    database = pycolmap.Database.open(str(tmp_path / "db.db"))
    options = pycolmap.ImportedPairingOptions(match_list_path=str(tmp_path / "pairs.txt"))
    named = {i.image_id: i.name for i in database.read_all_images()}
    found = {
        frozenset(named[i] for i in pair) for pair in pycolmap.ImportedPairGenerator(options, database).all_pairs()
    }
    database.close()
    assert found == {frozenset(("a/1.jpg", "b/1.jpg")), frozenset(("a/2.jpg", "b/2.jpg"))}
    assert pairs.read_pairs(tmp_path / "pairs.txt") == [("a/1.jpg", "b/1.jpg"), ("a/2.jpg", "b/2.jpg")]


def _cameras():
    return calibration([Camera("PINHOLE", 640, 480, (500.0, 501.0, 320.0, 240.0))] * 4).intrinsics


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
    np.testing.assert_array_equal(read_global_features(tmp_path / "g.h5", NAMES[::-1]), rows[::-1])
    with pytest.raises(InputError, match=r"no global_descriptor of other\.jpg"):
        read_global_features(tmp_path / "g.h5", ["other.jpg"])


def test_pose_priors_go_into_a_database_and_can_be_renewed(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    places = Poses.from_latlon([52.0, 52.001, np.nan], [13.0, 13.001, np.nan], z=[30.0, 31.0, np.nan])
    (tmp_path / "x").mkdir()
    for name in ("p.jpg", "q.jpg", "r.jpg"):
        Image.new("RGB", (64, 48)).save(tmp_path / "x" / name)
    given = ImageSet.of(tmp_path / "x", ["p.jpg", "q.jpg", "r.jpg"], places)
    assert write_pose_priors(tmp_path / "db.db", given) == 2
    assert write_pose_priors(tmp_path / "db.db", given, 2.0) == 2
    database = pycolmap.Database.open(str(tmp_path / "db.db"))
    assert database.num_images() == 2
    assert database.num_cameras() == 1
    assert database.num_pose_priors() == 2
    prior = {p.corr_data_id.id: p for p in database.read_all_pose_priors()}
    second = prior[database.read_image_with_name("q.jpg").image_id]
    database.close()
    np.testing.assert_allclose(second.position, [52.001, 13.001, 31.0], atol=1e-9)
    np.testing.assert_array_equal(second.position_covariance, np.eye(3) * 4)
    assert second.coordinate_system == pycolmap.PosePriorCoordinateSystem.WGS84
    with pytest.raises(InputError, match="scale of these poses is unknown"):
        write_pose_priors(tmp_path / "db.db", images(frame=UNSCALED))
