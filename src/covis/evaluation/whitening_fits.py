"""Whitenings fitted on images with poses: which pairs are taken for one place, and the fit to one or several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covis.core.arrays import Descriptors, Ids
from covis.descriptors import Matrix
from covis.evaluation.relevance import NEAR_ALIKE
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels import FovOverlap
from covis.search import rank
from covis.whitening import (
    PCA,
    SAMPLES_PER_DIM,
    PairWeights,
    Whitening,
    WhiteningRule,
    moments,
    pair_weights,
)

PHOTO_VIEWS = FovOverlap(radius_m=25.0, fov_deg=90.0, facing=True)
"""ψ of photos taken on foot, whose views share what is near: on the campus photos, ψ of 25 m squared follows the share
of pairs that look alike; ψ of 50 m is far above what phones see."""
NEAREST = 3
"""Images of other groups that are taken to show an image's place where labels do not come from poses."""
_SMALLEST_DIM = 32
Labeller = Callable[[ImageSet, ImageSet], SimilarityGraph]


def fit_whitening(
    images: ImageSet,
    descriptors: Matrix,
    dim: int,
    rule: WhiteningRule = PCA,
    *,
    labels: Labeller = PHOTO_VIEWS,
    facts: Mapping[str, Any] | None = None,
) -> Whitening:
    """A whitening fitted on the descriptors (N, D) of `images`; `labels` gives the ψ of graded pairs."""
    (whitening,) = fit_sizes(images, descriptors, [dim], rule, labels=labels, facts=facts)
    return whitening


def fit_sizes(
    images: ImageSet,
    descriptors: Matrix,
    sizes: Sequence[int],
    rule: WhiteningRule = PCA,
    *,
    labels: Labeller = PHOTO_VIEWS,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[Whitening]:
    """Whitenings to several dims from one fit."""
    pairs = None if rule.labels == "none" else labelled_pairs(images, descriptors, rule, labels)
    record = {**(facts or {}), **({} if pairs is None else _label_facts(rule, labels, pairs))}
    with moments(descriptors, max(sizes)) as fitted:
        within = None if pairs is None else fitted.within(pairs)
        for size in sizes:
            yield fitted.whitening(size, rule, within=within, facts=record)


def labelled_pairs(
    images: ImageSet, descriptors: Matrix, rule: WhiteningRule, labels: Labeller = PHOTO_VIEWS
) -> PairWeights:
    """(N, N) weights of the pairs that a rule takes for one place; rows sum to 1.

    Pairs join different groups (walks), unless there is only one group or the labels match within groups (cities).
    """
    cities = bool(getattr(labels, "within_group", False))
    group = None if cities or len(images.group_names) < 2 else np.asarray(images.group, np.int64)
    if rule.labels == "nearest":
        return nearest_pairs(np.asarray(descriptors), group)
    if rule.labels == "binary":
        return pair_weights(replace(NEAR_ALIKE, within_group=cities)(images, images), group)
    return pair_weights(labels(images, images), group, rule.exponent)


def _white(descriptors: Descriptors, dim: int = 256) -> Descriptors:
    """The descriptors PCA-whitened to `dim` dims, or to fewer where there are not enough descriptors to fit them."""
    most = min(dim, descriptors.shape[1], max(1, len(descriptors) // SAMPLES_PER_DIM))
    return Whitening.fit(descriptors, most)(descriptors)


def nearest_pairs(descriptors: Descriptors, group: Ids | None) -> PairWeights:
    """(N, N) equal weights of each image's `NEAREST` in other groups (N,), by PCA-whitened descriptors."""
    white = _white(descriptors)
    itself = np.arange(len(white))
    ranking = rank(white, white, NEAREST, group, group, "any" if group is None else "other", exclude=itself)
    rows, columns = np.nonzero(ranking.ids >= 0)
    return PairWeights.of(rows, ranking.ids[rows, columns], np.ones(len(rows)), len(white))


def affordable(dim: int, samples: int) -> int:
    """`dim`, or as many as the samples suffice for; 0 (none) where that is too few to be useful."""
    dim = min(dim, samples // SAMPLES_PER_DIM)
    return dim if dim >= _SMALLEST_DIM else 0


def _label_facts(rule: WhiteningRule, labels: Labeller, pairs: PairWeights) -> dict[str, Any]:
    source = {"graded": labels, "binary": NEAR_ALIKE}.get(rule.labels)
    return {"pairs": pairs.pairs, **({} if source is None else {"label_rule": str(source)})}
