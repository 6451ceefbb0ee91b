"""6DOF poses: closed form, Monte Carlo for the stated uncertainty, and real 7Scenes frames where they are at hand."""

from math import comb

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from covis.datasets.seven_scenes import read_scene
from covis.field import resection
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.cameras import Camera

pytest.importorskip("pycolmap", reason="finds the poses")
LENS = Camera("PINHOLE", 640, 480, (500.0, 505.0, 320.0, 240.0))
ROTATION = Rotation.from_euler("xyz", [-80, 10, 30], degrees=True).as_matrix()
CENTRE = np.array([400.0, 250.0, 2.0])


def view(n=200, noise=0.0, seed=0, focal=500.0):
    rng = np.random.default_rng(seed)
    local = np.column_stack([rng.uniform(-2, 2, (n, 2)), rng.uniform(4, 12, n)])
    xy = local[:, :2] / local[:, 2:] * [focal, focal * 1.01] + [320, 240]
    return xy + noise * rng.normal(size=(n, 2)), local @ ROTATION.T + CENTRE


def test_exact_matches_give_the_exact_pose_also_among_wrong_ones():
    xy, points = view()
    xy[:80] = np.random.default_rng(1).uniform(0, 480, (80, 2))
    found = resection.resect(xy, points, LENS)
    np.testing.assert_allclose(found.centre, CENTRE, atol=1e-5)
    np.testing.assert_allclose(found.rotation, ROTATION, atol=1e-6)
    assert 120 <= found.inliers <= 130
    assert resection.resect(xy[:5], points[:5], LENS) is None
    told = found.to_dict()
    w, x, y, z = told["quaternion_wxyz"]
    np.testing.assert_allclose(Rotation.from_quat([x, y, z, w]).as_matrix(), ROTATION, atol=1e-6)


def test_the_stated_uncertainty_is_the_scatter_of_repetitions():
    runs = [resection.resect(*view(80, 1.0, seed), LENS) for seed in range(60)]
    centres = np.array([r.centre for r in runs])
    scatter = np.sqrt(np.linalg.eigvalsh(np.cov(centres.T)).max())
    stated = np.median([r.deviation_m for r in runs])
    assert 0.6 < scatter / stated < 1.6
    turns = np.degrees([np.linalg.norm(Rotation.from_matrix(r.rotation @ ROTATION.T).as_rotvec()) for r in runs])
    assert np.median(turns) < 3 * np.median([r.deviation_deg for r in runs])


def test_an_unknown_focal_length_is_estimated():
    xy, points = view(focal=500.0)
    guess = Camera("SIMPLE_PINHOLE", 640, 480, (768.0, 320.0, 240.0))
    found = resection.resect(xy, points, guess, "estimated")
    assert found.focal_px == pytest.approx(502.5, rel=0.02)
    assert np.linalg.norm(found.centre - CENTRE) < 0.2
    assert not found.to_dict()["camera_known"]


@pytest.mark.parametrize("focal", ["estimated", "exif"])
def test_an_uncertain_focal_length_is_part_of_the_uncertainty(focal):
    """Estimated from noisy matches, or told by EXIF with an error of a few percent: the stated deviation is the scatter."""
    rng = np.random.default_rng(5)
    runs = []
    for seed in range(50):
        xy, points = view(80, 1.0, seed)
        told = 502.5 * (1 + resection.EXIF_FOCAL_SHARE * rng.normal()) if focal == "exif" else 600.0
        lens = Camera("SIMPLE_PINHOLE", 640, 480, (told, 320.0, 240.0))
        runs.append(resection.resect(xy, points, lens, focal, max_error_px=20.0))
    scatter = np.sqrt(np.linalg.eigvalsh(np.cov(np.array([r.centre for r in runs]).T)).max())
    stated = np.median([r.deviation_m for r in runs])
    assert 0.6 < scatter / stated < 1.6
    fixed = resection.resect(*view(80, 1.0), Camera("SIMPLE_PINHOLE", 640, 480, (502.5, 320.0, 240.0)))
    assert stated > 1.5 * fixed.deviation_m  # along the view distance trades against focal length


def test_real_frames_with_depth(shared_data):
    """From the frames beside it a frame is posed within its stated uncertainty; from those of other places it is not posed."""
    frames = read_scene(
        shared_data / "7scenes_stairs_sample", "stairs", "Train"
    )  # two sequences of three frames, looking apart
    lens = Camera("PINHOLE", 640, 480, (525.0, 525.0, 320.0, 240.0))
    scene = resection.DepthScene(frames)
    for own, beside, elsewhere in ((0, [1, 2], [3, 4, 5]), (5, [3, 4], [0, 1, 2])):
        found = resection.locate_pose(frames.path(own), frames, beside, scene, (lens, "given"))
        error = found.centre - frames.poses.centre[own]
        assert np.linalg.norm(error) < 0.03
        turn = Rotation.from_matrix(found.rotation @ frames.poses.rotation[own].T).magnitude()
        assert np.degrees(turn) < 0.5
        assert error @ np.linalg.solve(found.covariance[3:, 3:], error) < 11.3  # 99 %
        assert found.by_chance < -100
        assert resection.locate_pose(frames.path(own), frames, elsewhere, scene, (lens, "given")) is None


def test_features_that_agree_by_chance_are_no_pose():
    """Random matches among which RANSAC always finds some that agree; and the measure against its definition by hand."""
    rng = np.random.default_rng(7)
    for seed in range(5):
        xy, points = rng.uniform((0, 0), (640, 480), (400, 2)), rng.uniform(-5, 5, (400, 3)) + CENTRE
        assert resection.resect(xy, points, LENS, max_error_px=20.0, seed=seed) is None
    ways = 97 * comb(100, 9) * comb(9, 3) * 0.004**6
    np.testing.assert_allclose(10 ** resection._by_chance(200, 100, 9, 0.002), ways, rtol=1e-9)


def test_repeated_matches_add_no_certainty():
    """Each match given three times, as by three map images that show the same: the pose is not surer for it."""
    xy, points = view(80, 1.0)
    once = resection.resect(xy, points, LENS)
    thrice = resection.resect(
        np.tile(xy, (3, 1)), np.tile(points, (3, 1)), LENS,
        support=resection.Support(np.tile(np.arange(80), 3), np.repeat(np.arange(3), 80)),
    )  # fmt: skip
    assert 0.7 < thrice.deviation_m / once.deviation_m < 1.5
    blind = resection.resect(np.tile(xy, (3, 1)), np.tile(points, (3, 1)), LENS)
    assert blind.deviation_m < 0.65 * once.deviation_m


def test_depth_lifts_pixels_into_the_world(tmp_path):
    from PIL import Image

    Image.fromarray(np.full((48, 64), 2500, np.uint16)).save(tmp_path / "d.png")
    poses = Poses(CENTRE[None, :2], np.array([np.nan]), CENTRE[2:], ROTATION[None])
    columns = {"depth": np.array([b"d.png"]), "depth_scale_m": np.array([1e-3])}
    images = ImageSet.of(tmp_path, ["a.jpg"], poses, intrinsics=[[500.0, 505, 320, 240, 640, 480]], columns=columns)
    point = resection.DepthScene(images).lift(0, np.array([[320.0, 240.0], [420.0, 240.0]]))
    np.testing.assert_allclose(point[0], CENTRE + 2.5 * ROTATION[:, 2])
    np.testing.assert_allclose(point[1], CENTRE + ROTATION @ [0.5, 0.0, 2.5])
