"""The whitening of a map: folds are fitted as if their walks did not exist."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from covis.evaluation.whitening_fits import PHOTO_VIEWS
from covis.images import ImageSet
from covis.maps.whitening import USUAL, WhiteningSettings, WhiteningTrial
from covis.poses import Poses
from covis.search import rank
from covis.whitening import PCA, moments, pair_weights

EIGHT = WhiteningSettings(folds=8)


def of_places(n, places, dims, decay):
    """`n` photos of some places in walks of 20, their descriptors noisy by a spectrum that falls by `decay`."""
    rng = np.random.default_rng(0)
    place, walk = np.arange(n) % places, np.arange(n) // 20
    noise = rng.normal(size=(n, dims)) * np.arange(1, dims + 1) ** -decay
    descriptors = (rng.normal(size=(places, dims))[place] * np.arange(1, dims + 1) ** -decay + noise).astype(np.float32)
    xy = np.column_stack([60.0 * place, rng.uniform(0, 3, n)])
    names = np.array([b"%d" % i for i in range(n)])
    walks = tuple(map(str, range(walk.max() + 1)))
    return ImageSet(Path(), names, Poses(xy, np.zeros(n)), walk.astype(np.int32), walks), descriptors


def fitted_alone(descriptors, pairs, dim, rule):
    """(D, dim) a whitening's projection worked out directly: PCA, then every pair by itself."""
    centred = descriptors.astype(np.float64) - descriptors.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred / (len(centred) - 1))
    basis, values = vectors[:, ::-1][:, :dim], values[::-1][:dim]
    mixed = np.diag(values)
    if rule.labels != "none":
        weight = pairs.values
        apart = (centred[pairs.rows] - centred[pairs.columns]) @ basis
        mixed = (1 - rule.total_share) * (apart.T * weight) @ apart / weight.sum() + rule.total_share * mixed
    values, vectors = np.linalg.eigh(mixed)
    return basis @ (vectors * values ** (-rule.power / 2))


def asked_alone(images, descriptors, tried, i, dim):
    """The nearest photos of other walks of those in the first fold, by a fit to all others alone."""
    known, out = np.flatnonzero(tried.fold != 0), np.flatnonzero(tried.fold == 0)
    seen = images.subset(known)
    pairs = pair_weights(PHOTO_VIEWS(seen, seen), seen.group, tried.rules[i].exponent)
    white = (descriptors - descriptors[known].mean(axis=0)) @ fitted_alone(
        descriptors[known], pairs, dim, tried.rules[i]
    )
    white = (white / np.linalg.norm(white, axis=1, keepdims=True)).astype(np.float32)
    return out, rank(white[out], white, 5, images.group[out], images.group, "other")


def test_folds_are_whitened_as_a_fit_to_their_photos_would():
    images, descriptors = of_places(160, 20, 300, decay=0.0)
    with moments(descriptors, 159, fewer=True) as fitted:  # all there are: nothing is cut before the folds
        tried = WhiteningTrial(images, fitted, 79, PHOTO_VIEWS, EIGHT).search((PCA, replace(PCA, power=0.75), USUAL))
    for i in range(len(tried.rules)):
        out, expected = asked_alone(images, descriptors, tried, i, 70)
        assert np.allclose(tried.found[i].ranking.distances[out][:, :5], expected.distances, atol=2e-3)
        assert (tried.found[i].ranking.ids[out][:, :5] == expected.ids).mean() > 0.98


def test_walks_of_a_part_of_a_table_fill_every_fold():
    """Walks keep their codes in a subset; no fold may be empty, or as many fits would lack more walks than thought."""
    images, descriptors = of_places(1260, 20, 12, decay=0.0)  # 63 walks
    part = np.random.default_rng(0).permutation(63)[images.group] % 4
    with moments(descriptors[part != 0], 8) as fitted:
        trial = WhiteningTrial(images.subset(part != 0), fitted, 6, PHOTO_VIEWS)
    walks = [len(np.unique(trial.group[trial.fold == fold])) for fold in range(trial.fold.max() + 1)]
    assert len(walks) == trial.settings.folds
    assert max(walks) - min(walks) <= 1


def test_labels_of_a_fold_do_not_reach_its_fit():
    """Photos of a fold that are said to stand elsewhere are whitened alike."""
    images, descriptors = of_places(160, 20, 300, decay=0.5)
    with moments(descriptors, 150, fewer=True) as fitted:
        before = WhiteningTrial(images, fitted, 79, PHOTO_VIEWS, EIGHT)
        moved = images.poses.xy.copy()
        moved[before.fold == 0] = moved[before.fold == 0][::-1] + 60.0
        after = WhiteningTrial(replace(images, poses=replace(images.poses, xy=moved)), fitted, 79, PHOTO_VIEWS, EIGHT)
        for rule in (replace(USUAL, exponent=2.0), USUAL):
            kept = [trial.whiten_fold(trial.fold != 0, (rule,))[0].projection for trial in (before, after)]
            assert np.abs(kept[0] - kept[1]).max() < 1e-6 * np.abs(kept[0]).max()
            other = [trial.whiten_fold(trial.fold != 1, (rule,))[0](fitted.coordinates) for trial in (before, after)]
            assert np.abs(other[0] @ other[0].T - other[1] @ other[1].T).max() > 0.05


def test_a_fold_that_leaves_no_pairs_is_whitened_by_variances():
    images, descriptors = of_places(160, 20, 60, decay=0.5)
    with moments(descriptors, 40) as fitted:
        trial = WhiteningTrial(images, fitted, 30, PHOTO_VIEWS, EIGHT)
        alone = trial.group == 0  # one walk: nothing meets across walks
        labelled, plain = trial.whiten_fold(alone, (USUAL, PCA))
    assert np.array_equal(labelled.projection, plain.projection)
