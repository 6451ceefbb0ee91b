"""Whitenings fitted for images: which pairs they learn from, and what they write down."""

from dataclasses import replace

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.evaluation.retrieval import NEAREST, PHOTO_VIEWS, affordable, fit_whitening, labelled_pairs, likeness
from covis.images import ImageSet
from covis.labels import FovOverlap, fov_similarity
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


def test_graded_pairs_are_weighed_by_their_overlap(photos):
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("graded", exponent=2.0)).toarray()
    i, j = (a.ravel() for a in np.meshgrid(np.arange(120), np.arange(120), indexing="ij"))
    xy, heading = images.poses.xy, images.poses.heading
    psi = fov_similarity(xy[i], heading[i], xy[j], heading[j], radius_m=25.0, fov_deg=90.0)
    psi *= np.minimum(1, 1 + np.cos(np.radians(heading[i] - heading[j])))
    psi[images.group[i] == images.group[j]] = 0
    expected = psi.reshape(120, 120) ** 2
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_binary_pairs_stand_near_and_face_alike(photos):
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("binary")).toarray()
    gap = np.linalg.norm(images.poses.xy[:, None] - images.poses.xy, axis=2)
    turn = np.abs((images.poses.heading[:, None] - images.poses.heading + 180) % 360 - 180)
    same = (gap <= 25) & (turn <= 40) & (images.group[:, None] != images.group)
    assert ((weights > 0) == same).all()


def test_nearest_pairs_need_no_poses(photos):
    images, x = photos
    weights = labelled_pairs(images, x, WhiteningRule("nearest"))
    assert (np.diff(weights.indptr) == NEAREST).all()
    rows = np.repeat(np.arange(120), NEAREST)
    assert (images.group[rows] != images.group[weights.indices]).all()


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
    rows = np.repeat(np.arange(120), np.diff(weights.indptr))
    assert len(rows)
    assert (images.group[rows] == images.group[weights.indices]).all()


def test_a_label_learns_how_often_pairs_of_its_grade_look_alike():
    """Two walks along a street whose views change every 20 m: distances know, and the curve of ψ follows them."""
    rng = np.random.default_rng(0)
    x = np.tile(np.linspace(0, 400, 400), 2)
    xy = np.column_stack([x, rng.uniform(0, 2, 800)])
    look = rng.normal(size=(21, 32))[(x / 20).astype(int)] + 0.3 * rng.normal(size=(800, 32))
    group = np.repeat([0, 1], 400).astype(np.int32)
    images = ImageSet.of(".", [f"{i:03d}.jpg" for i in range(800)], Poses(xy, np.zeros(800)), ["ab"[g] for g in group])
    graph = FovOverlap(radius_m=25.0, facing=True)(images, images)
    curve = likeness(images, look.astype(np.float32), graph)
    assert np.all(np.diff(curve.share) >= 0)
    psi = graph.to_scipy().tocoo()
    across = group[psi.row] != group[psi.col]
    same = (x[psi.row] / 20).astype(int) == (x[psi.col] / 20).astype(int)
    for low, high in ((0.2, 0.3), (0.5, 0.6), (0.8, 0.9)):
        there = across & (psi.data >= low) & (psi.data < high)
        assert curve(np.array([psi.data[there].mean()]))[0] == pytest.approx(same[there].mean(), abs=0.12)
    weights = labelled_pairs(images, look.astype(np.float32), WhiteningRule("measured"), FovOverlap(25.0, facing=True))
    assert weights.sum(axis=1) == pytest.approx(1)
    steps = curve.curve(5)
    assert len(steps) == 6
    assert np.allclose(steps, curve(np.linspace(0, 1, 6)), atol=1e-4)
    measured = replace(PHOTO_VIEWS, curve=steps)(images, images)
    assert np.allclose(measured.psi, np.interp(graph.psi, np.linspace(0, 1, 6), steps), atol=1e-6)
    with pytest.raises(InputError, match="never fall"):
        replace(PHOTO_VIEWS, curve=(0.5, 0.1))


def test_a_small_square_cannot_tell_how_often_pairs_look_alike(photos):
    images, x = photos
    with pytest.raises(InputError, match="use graded labels"):
        labelled_pairs(images, x, WhiteningRule("measured"))
