"""Poses: one frame, honest unknowns, stated conventions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Geod

from covis.core.errors import InputError
from covis.poses import Poses, angle_between, concatenate_poses, quaternion_matrices


def looking(heading_deg):
    """Camera-to-world rotation (x right, y down, z forward) of a level camera."""
    a = np.radians(heading_deg)
    forward = np.array([np.sin(a), np.cos(a), 0.0])
    down = np.array([0.0, 0.0, -1.0])
    return np.column_stack([np.cross(down, forward), down, forward])


@given(st.floats(0, 359.9), st.floats(-50, 50), st.floats(-50, 50))
def test_heading_and_position_come_out_of_a_matrix(heading, x, y):
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = looking(heading), (x, y, 1.5)
    poses = Poses.from_matrices(matrix[None])
    assert angle_between(poses.heading, heading)[0] < 1e-9
    np.testing.assert_allclose(poses.centre[0], (x, y, 1.5))
    back = Poses.from_matrices(np.linalg.inv(matrix)[None], world_to_camera=True)
    np.testing.assert_allclose(back.centre[0], (x, y, 1.5), atol=1e-9)
    assert angle_between(back.heading, heading)[0] < 1e-6


@pytest.mark.parametrize("order", ["wxyz", "xyzw"])
def test_quaternions_in_both_orders(order):
    half = np.radians(30) / 2
    wxyz = np.array([[np.cos(half), 0, 0, np.sin(half)]])  # 30° about z, counter-clockwise
    q = wxyz if order == "wxyz" else np.roll(wxyz, -1, axis=1)
    c, s = np.cos(np.radians(30)), np.sin(np.radians(30))
    np.testing.assert_allclose(quaternion_matrices(q, order)[0], [[c, -s, 0], [s, c, 0], [0, 0, 1]], atol=1e-12)


def test_a_robot_that_looks_along_its_x_axis():
    poses = Poses.from_quaternions([[1, 0, 0, 0]], [[1, 2, 3]], order="wxyz", forward="x")
    assert poses.heading[0] == pytest.approx(90.0)  # along world x, which is east


def test_a_world_whose_y_points_down_as_in_indoor_scans():
    poses = Poses.from_matrices(np.eye(4)[None], up="-y")
    assert poses.z is not None
    assert poses.heading[0] == pytest.approx(90.0)  # z of that world is its east


def test_a_camera_that_looks_straight_down_has_no_heading():
    down = np.eye(4)
    down[:3, :3] = np.array([[1, 0, 0], [0, -1, 0], [0, 0, -1]])
    assert np.isnan(Poses.from_matrices(down[None]).heading[0])


@settings(max_examples=40, deadline=None)
@given(st.floats(-80, 80), st.floats(-180, 180), st.floats(-0.2, 0.2), st.floats(-0.2, 0.2))
def test_latitudes_become_metres_and_come_back(lat, lon, dlat, dlon):
    lats, lons = np.array([lat, lat + dlat]), np.array([lon, lon + dlon])
    poses = Poses.from_latlon(lats, lons)
    metres = Geod(ellps="WGS84").inv(lons[0], lats[0], lons[1], lats[1])[2]
    assert np.hypot(*(poses.xy[1] - poses.xy[0])) == pytest.approx(metres, rel=1e-4, abs=1e-6)
    back = poses.latlon()
    np.testing.assert_allclose(back[:, 0], lats, atol=1e-8)
    np.testing.assert_allclose((back[:, 1] - lons + 180) % 360 - 180, 0, atol=1e-7)


def test_across_the_antimeridian_and_a_zone_border():
    poses = Poses.from_latlon([0.0, 0.0], [179.9999, -179.9999])
    assert np.hypot(*(poses.xy[1] - poses.xy[0])) == pytest.approx(22.26, abs=0.1)
    poses = Poses.from_latlon([52.0, 52.0], [11.9999, 12.0001])  # UTM 32 | 33
    assert np.hypot(*(poses.xy[1] - poses.xy[0])) == pytest.approx(13.7, abs=0.1)


def test_headings_follow_the_frames_own_north():
    lat, lon = np.array([60.0, 60.0]), np.array([10.0, 11.0])
    poses = Poses.from_latlon(lat, lon, [0.0, 0.0])
    step = Poses.from_latlon(lat + 1e-4, lon, frame=poses.frame).xy - poses.xy  # true north in the frame
    np.testing.assert_allclose(angle_between(np.degrees(np.arctan2(*step.T)), poses.heading), 0, atol=1e-3)
    assert abs(angle_between(*poses.heading)) > 0.5  # the two norths do differ


def test_unknown_is_kept_unknown():
    poses = Poses(np.array([[np.nan, np.nan], [1, 2]]), np.array([np.nan, 370.0]))
    assert poses.known.tolist() == [False, True]
    assert np.isnan(poses.heading[0])
    assert poses.heading[1] == 10.0


@pytest.mark.parametrize(
    ("xy", "heading", "message"),
    [
        ([[1, np.nan]], [0], "position 0"),
        ([[1, np.inf]], [0], "position 0"),
        ([[1, 2]], [np.inf], "heading 0 is infinite"),
        ([[1, 2, 3]], [0], "xy has shape"),
        ([[1, 2]], [0, 1], "heading has shape"),
    ],
)
def test_bad_poses_are_named(xy, heading, message):
    with pytest.raises(InputError, match=message):
        Poses(np.array(xy, float), np.array(heading, float))


def test_mirrored_rotations_and_places_off_earth_are_refused():
    with pytest.raises(InputError, match="rotation 0"):
        Poses(np.zeros((1, 2)), np.zeros(1), rotation=np.diag([1.0, 1.0, -1.0])[None])
    with pytest.raises(InputError, match="not on Earth"):
        Poses.from_latlon([91.0], [0.0])
    with pytest.raises(InputError, match="without a place on Earth"):
        Poses(np.zeros((1, 2)), np.zeros(1)).latlon()
    with pytest.raises(InputError, match="quaternion 0"):
        quaternion_matrices([[0, 0, 0, 0]], "wxyz")


def test_frames_are_not_mixed_and_arrays_are_frozen():
    a = Poses.from_latlon([50.0], [8.0])
    b = Poses.from_latlon([51.0], [8.0])
    with pytest.raises(InputError, match="different frames"):
        concatenate_poses([a, b])
    assert len(concatenate_poses([a, a])) == 2
    with pytest.raises(ValueError, match="read-only"):
        a.xy[0, 0] = 1
    assert a.fingerprint() != b.fingerprint()
    assert a.subset([0]).fingerprint() == a.fingerprint()


def test_positions_and_rotations_are_turned_into_the_same_ground_axes():
    rng = np.random.default_rng(4)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    centre, point = rng.normal(size=3), rng.normal(size=3)
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, centre
    for up in ("x", "y", "z", "-x", "-y", "-z"):
        poses = Poses.from_matrices(matrix[None], up=up)
        at = Poses.from_matrices(_shifted(point)[None], up=up).centre[0]
        seen = poses.rotation[0].T @ (at - poses.centre[0])
        assert seen == pytest.approx(rotation.T @ (point - centre))


def _shifted(point):
    matrix = np.eye(4)
    matrix[:3, 3] = point
    return matrix
