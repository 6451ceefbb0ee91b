"""Which whitening suits a map's photos, told by walks that it did not see; and what those walks found.

Descriptors that learned from the poses of a map's photos flatter it when they are asked of it. So the walks are cut into
folds, each whitening is fitted without one, and the photos of that one are asked against those of all other walks. What
they find tells which whitening to take, and calibrates the map (`covis.maps.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from covis.arrays import Bools, Floats, Ids
from covis.evaluation.protocols.rules import NEAR_ALIKE
from covis.evaluation.whitened import Labels, affordable
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.maps.calibration import HeldOut
from covis.maps.evidence import CONTEXT
from covis.progress import track
from covis.ranking import Ranking
from covis.search import rank
from covis.whitening import PCA, Moments, Rows, WhiteningRule, by_row, moments, pair_weights

FOLDS = 8
"""Each fit lacks an eighth of the walks, so that nearly as many photos are asked as there will be in the map."""
FEW = 700
"""Photos below which labels count little beside the total covariance."""
GENTLE, USUAL = WhiteningRule("graded", total_share=0.3), WhiteningRule("graded", total_share=0.1)
FEW_RULES = (PCA, WhiteningRule(power=0.75), GENTLE)
RULES = (*FEW_RULES, USUAL, replace(USUAL, total_share=0.03), replace(USUAL, exponent=1.0))
GAIN = 0.003
"""Another rule than the usual one must find so much more, about what chance moves."""
_SPARE = 2
"""Coordinates that folds share, as a multiple of the dims that are kept: enough that no fold lacks its own."""


@dataclass(frozen=True, eq=False)
class CrossFit:
    """What photos found across walks, by each whitening that was tried."""

    rules: tuple[WhiteningRule, ...]
    rankings: tuple[Ranking, ...]
    """(N, CONTEXT) for each rule: positions among the photos; −1 where a walk was not asked."""
    near: tuple[Bools, ...]
    """(N, CONTEXT) for each rule: whether a match is within 25 m and 40°."""
    answerable: Bools
    """(N,) photos that one of another walk answers so."""
    fold: Ids
    walk: Ids

    def recall(self, i: int) -> dict[str, float]:
        """Percent of the answerable photos that rule i found at rank 1, 5 and 10."""
        return {str(k): 100 * float(self.near[i][self.answerable, :k].any(axis=1).mean()) for k in (1, 5, 10)}

    @property
    def best(self) -> int:
        """The rule that finds most at rank 1 and 5; the usual one unless another is better beyond chance."""
        scores = np.array([np.mean([self.recall(i)[k] for k in ("1", "5")]) for i in range(len(self.rules))]) / 100
        usual = USUAL if USUAL in self.rules else GENTLE
        scores[self.rules.index(usual)] += GAIN
        return int(scores.argmax())

    def held_out(self, i: int, asked: Bools | None = None) -> HeldOut:
        """The questions of rule i, of the photos (N,) that may be asked."""
        queries = np.flatnonzero(np.ones(len(self.walk), bool) if asked is None else asked)
        ranking = self.rankings[i].subset(queries)
        walk, fold = self.walk[queries], self.fold[queries]
        return HeldOut(queries, ranking.ids, ranking.distances, "groups", walk, fold, seen=len(self.walk))


def cross_fit(
    images: ImageSet, fitted: Moments, dim: int, labels: Labels, rules: Sequence[WhiteningRule] | None = None
) -> CrossFit:
    """Asks every photo across walks; `fitted` has twice as many coordinates as the `dim` that are to be kept."""
    rules = tuple(rules or (RULES if len(images) >= FEW else FEW_RULES))
    group = np.asarray(images.group, np.int64)
    folds = min(FOLDS, int(group.max()) + 1)
    fold = np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % folds
    graph, positive = labels(images, images), _across(NEAR_ALIKE(images, images), group)
    shape = (len(images), CONTEXT)
    ids = [np.full(shape, -1, np.int64) for _ in rules]
    distances = [np.full(shape, np.inf, np.float32) for _ in rules]
    coordinates = np.asarray(fitted.coordinates, np.float32)
    for part in track(range(folds), "cross-fit", folds, "folds"):
        out = np.flatnonzero(fold == part)
        for i, white in enumerate(_whitened(coordinates, fold != part, graph, group, dim=dim, rules=rules)):
            found = rank(white[out], white, CONTEXT, group[out], group, "other")
            ids[i][out, : found.k], distances[i][out, : found.k] = found.ids, found.distances
    near = tuple(_near(positive, found) for found in ids)
    answerable = np.diff(positive.indptr) > 0
    rankings = tuple(Ranking(i, d) for i, d in zip(ids, distances, strict=True))
    return CrossFit(rules, rankings, near, answerable, fold, group)


def _whitened(
    coordinates: NDArray[np.float32],
    known: Bools,
    graph: SimilarityGraph,
    group: Ids,
    *,
    dim: int,
    rules: Sequence[WhiteningRule],
) -> Iterator[NDArray[np.float32]]:
    """(N, dim) unit descriptors of all photos for each rule, fitted to the `known` ones alone."""
    rows = np.flatnonzero(known)
    kept = min(affordable(dim, len(rows)) or 1, coordinates.shape[1])
    with moments(coordinates[rows], kept, fewer=True, single=True) as fitted:
        kept = len(fitted.variances)
        within: dict[float, Floats] = {}
        basis = fitted.lift(np.eye(kept)).astype(np.float32)
        turned = (coordinates - fitted.mean.astype(np.float32)) @ basis
        for rule in rules:
            if rule.labels != "none" and rule.exponent not in within:
                pairs = by_row(pair_weights(graph, group, rule.exponent)[rows][:, rows])
                within[rule.exponent] = fitted.within(pairs)
            metric = fitted.metric(kept, rule, within=within.get(rule.exponent)).astype(np.float32)
            white = turned @ metric
            yield white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)


def shared_dims(dim: int, descriptors: Rows) -> int:
    """Coordinates that the folds of a fit to `dim` dims share."""
    return min(_SPARE * dim, len(descriptors) - 1, int(descriptors.shape[1]))


def _across(graph: SimilarityGraph, group: Ids) -> csr_matrix:
    """The pairs of different groups."""
    return graph.keep(group[graph.rows] != group[graph.indices]).to_scipy()


def _near(positive: csr_matrix, ids: Ids) -> Bools:
    """(N, K) whether each match is one of the photo's positives; all in one lookup."""
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    looked = np.asarray(positive[rows.ravel(), np.maximum(ids, 0).ravel()]).reshape(ids.shape)
    return (looked > 0) & (ids >= 0)
