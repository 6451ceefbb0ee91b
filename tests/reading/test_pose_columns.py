"""Poses and cameras through the columns of a table and back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses, grid_north, local_frame
from covis.reading.cameras import Camera, calibration, camera_of
from covis.reading.pose_columns import pose_columns, restored
from covis.reading.table import read_table, write_images

HERE = Path("t.csv")


def posed(frame):
    rotation = Rotation.from_euler("zyx", [[10, 20, -95], [200, 5, -80], [0, 0, 0]], degrees=True).as_matrix()
    rotation[2] = np.nan
    matrices = np.concatenate([rotation, np.array([[[1e4], [2e4], [3.0]]] * 3)], axis=2)
    cameras = calibration(
        [Camera("OPENCV", 640, 480, (500.0, 501.0, 320.5, 240.1, 0.1, 0.2, 1e-17, 1 / 3)), None, None]
    )
    poses = Poses.from_matrices(matrices, frame=frame)
    columns = cameras.columns | {"depth": np.array([b"d/\xff.png", b"", b""]), "time": np.arange(3.0)}
    return ImageSet.of(".", ["a", "b", "c"], poses, intrinsics=cameras.intrinsics, columns=columns)


@pytest.mark.parametrize("frame", ["", local_frame(np.array([52.5, 52.0]), np.array([13.0, 14.9]))])
def test_poses_and_cameras_come_back(frame):
    images = posed(frame)
    columns = pose_columns(images)
    numbers = {k: columns[k] for k in ("qw", "qx", "qy", "qz")}
    bare = replace(images.poses, rotation=None)
    table = ImageSet.of(".", ["a", "b", "c"], bare, columns=numbers | {"lens": np.array(columns["lens"])})
    again = restored(table, HERE)
    np.testing.assert_allclose(again.poses.rotation, images.poses.rotation, atol=1e-12)
    np.testing.assert_array_equal(again.intrinsics, images.intrinsics)
    assert [camera_of(again, i) for i in range(3)] == [camera_of(images, i) for i in range(3)]
    assert set(again.columns) == {"lens"}


def test_everything_comes_back_from_a_table(tmp_path):
    images = replace(posed(""), root=tmp_path / "photos")
    images = replace(images, columns={**images.columns, "depth": np.array([b"d/0.png", b"", b""])})
    write_images(images, tmp_path / "t.csv")
    table = read_table(tmp_path / "t.csv")
    assert table.name(0) == "photos/a"
    np.testing.assert_allclose(table.poses.rotation, images.poses.rotation, atol=1e-12)
    assert table.columns["lens"].tolist() == images.columns["lens"].tolist()
    assert table.columns["time"].tolist() == [0.0, 1.0, 2.0]
    assert table.columns["depth"].tolist() == ["photos/d/0.png", "", ""]


def test_quaternions_are_against_true_north_on_earth():
    frame = local_frame(np.array([52.0]), np.array([10.0]))
    poses = Poses.from_latlon([52.0], [12.0], [0.0], frame=frame)  # looks to true north, two degrees east of the middle
    turned = grid_north(poses)[0]
    assert turned == pytest.approx(2 * np.sin(np.radians(52)), abs=0.01)
    level = Rotation.from_euler("x", -90, degrees=True).as_matrix()[None]  # z forward = north, y down
    quaternion = np.roll(Rotation.from_matrix(level).as_quat(), 1, axis=1)[0]
    cells = dict(zip(("qw", "qx", "qy", "qz"), quaternion[:, None], strict=True))
    again = restored(ImageSet.of(".", ["a"], replace(poses, heading=np.array([np.nan])), columns=cells), HERE)
    assert again.poses.heading[0] == pytest.approx(poses.heading[0], abs=1e-9)


def test_a_heading_that_contradicts_the_quaternion_is_told():
    cells = {"qw": np.array([1.0]), "qx": np.array([0.0]), "qy": np.array([0.3]), "qz": np.array([0.0])}
    table = ImageSet.of(".", ["a"], Poses(np.zeros((1, 2)), np.array([200.0])), columns=cells)
    with pytest.raises(InputError, match=r"t\.csv: row 2 faces 90\.0° by its quaternion and to 200\.0°"):
        restored(table, HERE)
