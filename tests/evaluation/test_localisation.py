"""Pose errors and the share localised, on poses made by hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from covis.evaluation.pose_errors import localised, pose_errors, rotation_angles
from covis.poses import Poses


def on_the_ground(xy, heading):
    return Poses(np.array(xy, float), np.array(heading, float))


def test_errors_on_the_ground():
    queries = on_the_ground([[0, 0], [10, 0], [0, 0]], [350, 90, 0])
    database = on_the_ground([[3, 4], [10, 0]], [10, np.nan])
    metres, degrees = pose_errors(queries, database, np.array([0, 1, -1]))
    assert metres[:2].tolist() == [5, 0]
    assert degrees[0] == pytest.approx(20)
    assert np.isnan(degrees[1])
    assert np.isnan(metres[2])


def test_errors_in_space_count_height_and_roll():
    turn = Rotation.from_euler("x", [[0], [30]], degrees=True).as_matrix()
    poses = Poses(np.zeros((2, 2)), np.zeros(2), np.array([0.0, 2.0]), turn)
    metres, degrees = pose_errors(poses.subset([0]), poses.subset([1]), np.array([0]))
    assert metres.tolist() == [2]
    assert degrees == pytest.approx([30])


@pytest.mark.parametrize("angle", [0.0, 1e-6, 0.5, 90.0, 179.0, 180.0])
def test_rotation_angles_are_those_turned_by(angle):
    rng = np.random.default_rng(0)
    base = Rotation.random(20, random_state=rng)
    axis = rng.normal(size=(20, 3))
    axis *= np.radians(angle) / np.linalg.norm(axis, axis=1, keepdims=True)
    turned = base * Rotation.from_rotvec(axis)
    found = rotation_angles(base.as_matrix(), turned.as_matrix())
    assert found == pytest.approx(np.full(20, angle), abs=1e-5 if angle > 170 else 1e-9)


def test_both_limits_must_hold_and_a_missing_match_is_a_failure():
    metres, degrees = np.array([0.2, 0.2, 0.4, 4.0, np.nan]), np.array([1.0, 3.0, 1.0, 9.0, np.nan])
    assert localised(metres, degrees).tolist() == [
        [True, True, True],
        [False, True, True],
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
