"""Placing models on Earth."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import UNSCALED, Poses
from covis.reading.georeference import (
    align,
    fit_similarity,
    georeference,
    known_positions,
    robust_similarity,
    scaled,
)

FRAME = "EPSG:25833"


def model(n=8, seed=0):
    rng = np.random.default_rng(seed)
    place = rng.normal(size=(n, 3)) * (20, 12, 3)
    rotation = Rotation.random(n, rng=seed).as_matrix()
    return rotation, place


def moved_by(rotation, place, scale=3.5, angles=(20, 10, 70), shift=(4e5, 5.8e6, 40)):
    turn = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    return (turn.T @ rotation), (place - shift) @ turn / scale


def test_similarity_is_the_one_of_colmap():
    pycolmap = pytest.importorskip("pycolmap")
    rng = np.random.default_rng(1)
    source = rng.normal(size=(9, 3))
    turn = Rotation.random(rng=3).as_matrix()
    target = 2.5 * source @ turn.T + [5, 6, 7] + rng.normal(size=(9, 3)) * 0.05
    fit = fit_similarity(source, target)
    theirs = pycolmap.estimate_sim3d(source, target)
    np.testing.assert_allclose(fit.scale, theirs.scale, rtol=1e-9)
    np.testing.assert_allclose(fit.rotation, theirs.rotation.matrix(), atol=1e-9)
    np.testing.assert_allclose(fit.shift, theirs.translation, atol=1e-9)


def test_a_model_is_put_where_its_georeferenced_images_are():
    rotation, place = model()
    local_rotation, local = moved_by(rotation, place)
    poses = Poses.from_matrices(np.concatenate([local_rotation, local[:, :, None]], axis=2), frame=UNSCALED)
    xy = place[:, :2].copy()
    xy[5:] = np.nan
    z = place[:, 2].copy()
    z[5:] = np.nan
    result, fit = align(poses, Poses(xy, np.full(8, np.nan), z, frame=FRAME))
    assert fit.scale == pytest.approx(3.5, rel=1e-9)
    np.testing.assert_allclose(result.centre, place, atol=1e-6)
    np.testing.assert_allclose(result.rotation, rotation, atol=1e-9)
    assert result.frame == FRAME
    assert result.metric


@pytest.mark.parametrize("angles", [(0, 0, 70), (25, 0, 40)])
def test_positions_in_a_row_are_levelled_by_the_cameras(angles):
    n = 6
    place = np.column_stack([100 + 10.0 * np.arange(n), np.full(n, 200.0), np.zeros(n)])
    rotation = np.tile(Rotation.from_euler("xyz", [-90, 0, 0], degrees=True).as_matrix(), (n, 1, 1))
    local_rotation, local = moved_by(rotation, place, angles=angles, shift=(100, 200, 0))
    poses = Poses.from_matrices(np.concatenate([local_rotation, local[:, :, None]], axis=2), frame=UNSCALED)
    result, fit = align(poses, Poses(place[:, :2], np.full(n, np.nan), frame=FRAME))
    assert fit.scale == pytest.approx(3.5)
    np.testing.assert_allclose(result.centre, place, atol=1e-9)
    np.testing.assert_allclose((result.heading + 180) % 360, 180.0, atol=1e-9)


def test_one_wild_position_does_not_move_the_model():
    rng = np.random.default_rng(2)
    source = rng.normal(size=(30, 3)) * 50
    target = 2.0 * source + [1, 2, 3]
    target[4] += 500
    fit = robust_similarity(source, target)
    assert fit.scale == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("side", ["model", "known"])
def test_one_camera_that_is_far_off_leaves_the_scale_and_is_named(side, capsys):
    rng = np.random.default_rng(5)
    place = np.column_stack([rng.uniform(0, 60, (15, 2)), np.zeros(15)])
    local, told = place / 10, place + rng.normal(size=(15, 3)) * 0.02
    if side == "model":
        local[3, 0] += 50
    else:
        told[3, 0] += 500
    images = ImageSet.of(".", [f"{i}.jpg" for i in range(15)], Poses(local[:, :2], np.zeros(15), frame=UNSCALED))
    result = georeference(images, Poses(told[:, :2], np.zeros(15), frame=FRAME))
    others = np.arange(15) != 3
    np.testing.assert_allclose(result.poses.xy[others], place[others, :2], atol=0.1)
    said = capsys.readouterr().err
    assert "scale 10.0" in said
    assert "such as 3.jpg: 500 m" in said


def test_a_model_that_does_not_fit_is_told_or_refused(capsys):
    rng = np.random.default_rng(6)
    place = rng.uniform(0, 60, (15, 2))
    images = ImageSet.of(".", [f"{i}.jpg" for i in range(15)], Poses(place / 10, np.zeros(15), frame=UNSCALED))
    georeference(images, Poses(place + rng.normal(size=(15, 2)) * 9, np.zeros(15), frame=FRAME))
    assert "fits poorly" in capsys.readouterr().err
    lump = rng.normal(size=(15, 2)) * 1e-3
    lump[4] += 100
    collapsed = ImageSet.of(".", images.names, Poses(lump, np.zeros(15), frame=UNSCALED))
    with pytest.raises(InputError, match="do not belong together"):
        georeference(collapsed, Poses(place, np.zeros(15), frame=FRAME))


def test_too_few_or_one_place_are_refused():
    poses = Poses(np.arange(8.0).reshape(4, 2), np.zeros(4), frame=UNSCALED)
    known = np.full((4, 2), np.nan)
    known[:2] = 1.0
    with pytest.raises(InputError, match="2 of 4 images have a known position; 3 are needed"):
        align(poses, Poses(known, np.zeros(4), frame=FRAME))
    with pytest.raises(InputError, match="at one place"):
        align(poses, Poses(np.ones((4, 2)), np.zeros(4), frame=FRAME))


def test_scale_and_table():
    poses = Poses(np.arange(8.0).reshape(4, 2), np.zeros(4), frame=UNSCALED)
    assert scaled(poses, 2.0).xy.max() == 14.0
    assert scaled(poses, 2.0).metric
    with pytest.raises(InputError, match="scale is -1"):
        scaled(poses, -1)
    images = ImageSet.of(".", ["a/1.jpg", "a/2.jpg", "a/3.jpg", "a/4.jpg"], poses)
    table = ImageSet.of(
        ".", ["2.jpg", "a/1.jpg", "4.jpg"], Poses.from_latlon([52.0, 52.001, 52.0], [13.0, 13.0, 13.002])
    )
    known = known_positions(images, table)
    assert known.known.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(known.xy[0], table.poses.xy[1])
    assert georeference(images, known).poses.frame == table.poses.frame
