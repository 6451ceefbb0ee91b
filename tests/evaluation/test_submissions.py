"""Server files: their form, and the conventions on poses made by hand."""

import zipfile

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from covis.core.errors import InputError
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.submissions import (
    keys,
    submission_names,
    world_to_camera,
    write_msls,
    write_poses,
    write_submission,
)
from covis.images import ImageSet
from covis.poses import Poses

QUERIES = ["q1", "q2"]


def test_a_zip_holds_one_csv_as_the_server_reads_it(tmp_path):
    path = tmp_path / "upload.zip"
    write_msls(path, QUERIES, [["d1", "d2"], ["d3", "d1"]])
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["predictions.csv"]
        comment, *rows = archive.read("predictions.csv").decode().splitlines()
    assert comment.startswith("# ")
    assert rows == ["q1 d1 d2", "q2 d3 d1"]


def test_rows_are_cut_to_equal_columns(tmp_path):
    path = tmp_path / "p.csv"
    write_msls(path, QUERIES, [["d1", "d2", "d3"], ["d3"]])
    assert path.read_text().splitlines()[1:] == ["q1 d1", "q2 d3"]
    with pytest.raises(InputError, match="no prediction at all"):
        write_msls(path, QUERIES, [["d1"], []])


def camera(heading_deg, centre):
    """A level camera (x right, y down, z ahead) at `centre` in a world of x east, y north, z up."""
    a = np.radians(heading_deg)
    ahead, right = [np.sin(a), np.cos(a), 0], [np.cos(a), -np.sin(a), 0]
    return np.column_stack([right, [0, 0, -1], ahead, centre])


def test_world_to_camera_of_poses_made_by_hand():
    """Looking north from (3, 4, 5): what is at the camera goes to 0; a point 10 m north is 10 m ahead, none aside."""
    poses = Poses.from_matrices([camera(0, [3.0, 4.0, 5.0]), camera(90, [0.0, 0.0, 2.0])])
    quaternion, translation = world_to_camera(poses)
    turn = Rotation.from_quat(quaternion[:, [1, 2, 3, 0]]).as_matrix()
    into = lambda i, point: turn[i] @ point + translation[i]  # noqa: E731
    assert into(0, [3, 4, 5]) == pytest.approx([0, 0, 0], abs=1e-12)
    assert into(0, [3, 14, 5]) == pytest.approx([0, 0, 10], abs=1e-12)
    assert into(0, [4, 4, 5]) == pytest.approx([1, 0, 0], abs=1e-12)
    assert into(0, [3, 4, 6]) == pytest.approx([0, -1, 0], abs=1e-12)
    assert into(1, [7, 0, 2]) == pytest.approx([0, 0, 7], abs=1e-12)
    # Looking north turns the world by 90° about x: w = x = cos 45° up to the common sign, t = −R·C.
    assert quaternion[0] == pytest.approx([np.sqrt(0.5), np.sqrt(0.5), 0, 0])
    assert translation[0] == pytest.approx([-3, 5, -4])


def test_written_poses_come_back(tmp_path):
    rng = np.random.default_rng(0)
    poses = Poses(
        rng.normal(size=(9, 2)) * 1e3, np.zeros(9), rng.normal(size=9), Rotation.random(9, random_state=rng).as_matrix()
    )
    path = tmp_path / "poses.txt"
    names = [f"rear/{i}.jpg" for i in range(9)]
    write_poses(path, names, poses)
    values = np.array([line.split()[1:] for line in path.read_text().splitlines()], float)
    back = Poses.from_quaternions(values[:, :4], values[:, 4:], order="wxyz", world_to_camera=True)
    assert back.centre == pytest.approx(poses.centre, abs=1e-4)
    assert back.rotation == pytest.approx(poses.rotation, abs=1e-7)


def sides(submission):
    poses = Poses.from_matrices([camera(10 * i, [i, 0.0, 1.0]) for i in range(3)])
    queries = ImageSet.of("/n", ["images/dawn/rear/7.jpg", "images/sun/rear/8.jpg"], poses.subset([0, 1]))
    database = ImageSet.of("/n", [f"images/ref/rear/{i}.jpg" for i in range(3)], poses)
    return Benchmark("hidden", queries, database, None, "hidden", submission=submission)


def test_the_best_match_lends_its_pose(tmp_path):
    hidden = sides("visuallocalization")
    path = write_submission([[2, 0], [1, 0]], hidden, tmp_path / "new" / "poses.txt")
    quaternion, translation = world_to_camera(hidden.database.poses.subset([2, 1]))
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [line[0] for line in lines] == ["rear/7.jpg", "rear/8.jpg"]
    expected = np.concatenate([quaternion, translation], axis=1)
    assert np.array([line[1:] for line in lines], float) == pytest.approx(expected, abs=1e-8)


def test_a_query_without_a_match_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(InputError, match=r"rear/8.jpg has no match"):
        write_submission([[2, 0], [-1, -1]], sides("visuallocalization"), tmp_path / "poses.txt")
    assert list(tmp_path.iterdir()) == []


def test_predictions_of_a_ranking(tmp_path):
    hidden = sides("msls")
    path = write_submission([[2, 0], [1, 0]], hidden, tmp_path / "predictions.csv")
    assert path.read_text().splitlines()[1:] == ["7 2 0", "8 1 0"]
    assert keys(hidden.queries) == ["7", "8"]


def test_a_benchmark_with_its_own_truth_has_no_server(tmp_path):
    with pytest.raises(InputError, match="has no server"):
        write_submission([[0], [0]], sides(""), tmp_path / "x")


def test_names_lose_their_folder_except_the_camera():
    poses = Poses(np.zeros((2, 2)), np.zeros(2))
    images = ImageSet.of("/n", ["slice2/query/img_1.jpg", "images/dawn/rear/9.jpg"], poses)
    assert submission_names(images) == ["img_1.jpg", "rear/9.jpg"]


def test_poses_without_rotation_cannot_be_submitted():
    with pytest.raises(InputError, match="no rotation or height"):
        world_to_camera(Poses(np.zeros((1, 2)), np.zeros(1)))
