"""Whitenings fitted for images: which pairs of them a learned whitening takes for views of one place.

It stands alone because benchmarks, training and maps all fit whitenings.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from covis.arrays import Descriptors, Ids
from covis.evaluation.protocols.rules import NEAR_ALIKE
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels import FovOverlap
from covis.search import rank
from covis.whitening import PCA, SAMPLES_PER_DIM, Rows, Whitening, WhiteningRule, moments, pair_weights

PHOTO_VIEWS = FovOverlap(radius_m=25.0, fov_deg=90.0, facing=True)
"""ψ of photos taken on foot. Their views share what stands near: on the campus photos, ψ of 25 m squared follows the share
of pairs that look alike; ψ of 50 m promises far more than phones see."""
NEAREST = 3
"""Images of other groups that stand for an image's place where poses are not asked."""
_SMALLEST_DIM = 32

Labels = Callable[[ImageSet, ImageSet], SimilarityGraph]


def fit_whitening(
    images: ImageSet,
    descriptors: Rows,
    dim: int,
    rule: WhiteningRule = PCA,
    *,
    labels: Labels = PHOTO_VIEWS,
    state: Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Whitening:
    """A whitening fitted on the descriptors (N, D) of `images`; `labels` gives the ψ of graded pairs."""
    (whitening,) = fit_sizes(images, descriptors, [dim], rule, labels=labels, state=state, facts=facts)
    return whitening


def fit_sizes(
    images: ImageSet,
    descriptors: Rows,
    sizes: Sequence[int],
    rule: WhiteningRule = PCA,
    *,
    labels: Labels = PHOTO_VIEWS,
    state: Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[Whitening]:
    """Whitenings to several dims from one fit; an interrupted one resumes in the folder `state`."""
    pairs = None if rule.labels == "none" else labelled_pairs(images, descriptors, rule, labels)
    record = {**(facts or {}), **({} if pairs is None else _label_facts(rule, labels, pairs))}
    with moments(descriptors, max(sizes), state=state) as fitted:
        within = None if pairs is None else fitted.within(pairs)
        for size in sizes:
            yield fitted.whitening(size, rule, within=within, facts=record)
    if state is not None:
        shutil.rmtree(state)


def labelled_pairs(
    images: ImageSet, descriptors: Rows, rule: WhiteningRule, labels: Labels = PHOTO_VIEWS
) -> csr_matrix:
    """(N, N) weights of the pairs that a rule takes for one place; rows sum to 1.

    Pairs are of different groups (walks), unless there is one group, or labels that match inside groups (cities).
    """
    cities = bool(getattr(labels, "within_group", False))
    group = None if cities or len(images.group_names) < 2 else np.asarray(images.group, np.int64)
    if rule.labels == "nearest":
        return nearest_pairs(np.asarray(descriptors), group)
    if rule.labels == "binary":
        return pair_weights(replace(NEAR_ALIKE, within_group=cities)(images, images), group)
    return pair_weights(labels(images, images), group, rule.exponent)


def nearest_pairs(descriptors: Descriptors, group: Ids | None, dim: int = 256) -> csr_matrix:
    """Each image's `NEAREST` of other groups (N,) by PCA-whitened descriptors, equally weighted."""
    most = min(dim, descriptors.shape[1], max(1, len(descriptors) // SAMPLES_PER_DIM))
    white = Whitening.fit(descriptors, most)(descriptors)
    itself = np.arange(len(white))
    found = rank(white, white, NEAREST, group, group, "any" if group is None else "other", exclude=itself)
    rows, columns = np.nonzero(found.ids >= 0)
    count = np.maximum((found.ids >= 0).sum(axis=1), 1)
    shape = (len(white), len(white))
    return csr_matrix((1.0 / count[rows], (rows, found.ids[rows, columns])), shape=shape)


def affordable(dim: int, samples: int) -> int:
    """`dim`, or as many as the samples suffice for; 0 (none) where that is too few to be of use."""
    dim = min(dim, samples // SAMPLES_PER_DIM)
    return dim if dim >= _SMALLEST_DIM else 0


def _label_facts(rule: WhiteningRule, labels: Labels, pairs: csr_matrix) -> dict[str, Any]:
    source = {"graded": labels, "binary": NEAR_ALIKE}.get(rule.labels)
    return {"pairs": int(pairs.nnz), **({} if source is None else {"label_rule": str(source)})}
