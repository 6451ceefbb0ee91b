"""Whitenings fitted for images: which pairs they learn from, and what they write down."""

from dataclasses import replace

import numpy as np
import pytest

from covis.evaluation.whitening_fits import NEAREST, PHOTO_VIEWS, affordable, fit_whitening, labelled_pairs
from covis.images import ImageSet
from covis.labels import fov_similarity
from covis.poses import Poses
from covis.whitening import WhiteningRule


@pytest.fixture(scope="module")
def photos():
    """120 photos of five walks over one square, and descriptors that differ from walk to walk."""
    rng = np.random.default_rng(0)
    xy, heading, walk = rng.uniform(0, 60, (120, 2)), rng.uniform(0, 360, 120), np.repeat(np.arange(5), 24)
    images = ImageSet.of(".", [f"{i:03d}.jpg" for i in range(120)], Poses(xy, heading), [f"walk {w}" for w in walk])
    x = np.hstack([np.cos(xy / 20), np.sin(xy / 20), np.eye(5)[walk] * 0.7, 0.2 * rng.normal(size=(120, 40))])
    return images, (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def dense(weights):
    whole = np.zeros((weights.count, weights.count))
    whole[weights.rows, weights.columns] = weights.values
    return whole


def test_graded_pairs_are_weighed_by_their_overlap(photos):
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("graded", exponent=2.0))
    i, j = (a.ravel() for a in np.meshgrid(np.arange(120), np.arange(120), indexing="ij"))
    xy, heading = images.poses.xy, images.poses.heading
    psi = fov_similarity(xy[i], heading[i], xy[j], heading[j], radius_m=25.0, fov_deg=90.0)
    psi *= np.minimum(1, 1 + np.cos(np.radians(heading[i] - heading[j])))
    psi[images.group[i] == images.group[j]] = 0
    expected = psi.reshape(120, 120) ** 2
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(dense(weights), expected, atol=1e-6)


def test_binary_pairs_stand_near_and_face_alike(photos):
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("binary"))
    gap = np.linalg.norm(images.poses.xy[:, None] - images.poses.xy, axis=2)
    turn = np.abs((images.poses.heading[:, None] - images.poses.heading + 180) % 360 - 180)
    same = (gap <= 25) & (turn <= 40) & (images.group[:, None] != images.group)
    assert ((dense(weights) > 0) == same).all()


def test_nearest_pairs_need_no_poses(photos):
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("nearest"))
    assert (np.bincount(weights.rows, minlength=120) == NEAREST).all()
    assert (images.group[weights.rows] != images.group[weights.columns]).all()


@pytest.mark.parametrize("labels", ["none", "graded", "binary", "nearest"])
def test_the_fit_writes_down_how_it_was_made(photos, labels):
    images, x = photos
    whitening = fit_whitening(images, x, 16, WhiteningRule(labels), facts={"fit": "map"})
    assert whitening.dim == 16
    assert whitening.facts["labels"] == labels
    assert whitening.facts["fit"] == "map"
    assert whitening.facts["samples"] == 120
    assert ("pairs" in whitening.facts) == (labels != "none")
    if labels == "graded":
        assert whitening.facts["label_rule"] == str(PHOTO_VIEWS)
        assert whitening.facts["exponent"] == 2.0


def test_labels_bring_walks_together(photos):
    """The walk's own mark in a descriptor is what views of one place differ in."""
    images, x = photos
    group = images.group

    def other_walks(white):
        near = (white @ white.T - 2 * np.eye(120)).argsort(1)[:, ::-1][:, :10]
        return np.mean(group[near] != group[:, None])

    learned = fit_whitening(images, x, 24, WhiteningRule("graded"))(x)
    assert other_walks(learned) > other_walks(fit_whitening(images, x, 24)(x)) + 0.1


def test_dims_are_what_samples_suffice_for():
    assert [affordable(1024, n) for n in (5000, 1000, 64, 63)] == [1024, 500, 32, 0]


def test_cities_are_matched_inside_themselves(photos):
    """Where groups are cities that share coordinates, pairs of one city are the labels."""
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("graded"), replace(PHOTO_VIEWS, within_group=True))
    assert weights.pairs
    assert (images.group[weights.rows] == images.group[weights.columns]).all()
