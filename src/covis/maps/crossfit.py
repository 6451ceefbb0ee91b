"""Which whitening suits a map's photos, told by walks that it did not see; and what those walks found.

Descriptors that learned from the poses of a map's photos flatter it when they are asked of it. So the walks are cut into
folds, each whitening is fitted without one, and the photos of that one are asked against those of all other walks. What
they find tells which whitening to take, and calibrates the map (`covis.maps.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_matrix

from covis.arrays import Bools, Ids
from covis.evaluation.benchmark import NEAR_ALIKE
from covis.evaluation.retrieval import Labels, affordable
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.maps.calibration import MIN_QUERIES, HeldOut
from covis.maps.evidence import CONTEXT
from covis.progress import track
from covis.ranking import Ranking
from covis.search import rank
from covis.whitening import PCA, Moments, Rows, Whitening, WhiteningRule, by_row, moments, pair_weights

CHOOSING, FOLDS = 4, 12
"""Parts that the walks are cut into: a few to choose between whitenings, more to ask what the chosen one finds. Fits that
lack a twelfth of the walks are nearly what the map will have; those that lack a quarter find 2 points less."""
WALKS = 4
"""Walks that it takes to ask across them."""
ALONE = WhiteningRule(power=0.75)
"""Where poses cannot tell: variances that few photos have hardly seen are not blown up."""
FEW = 700
"""Photos below which labels count little beside the total covariance."""
GENTLE, USUAL = WhiteningRule("graded", total_share=0.3), WhiteningRule("graded", total_share=0.1)
FEW_RULES = (PCA, WhiteningRule(power=0.75), GENTLE)
RULES = (*FEW_RULES, USUAL, replace(USUAL, total_share=0.03), replace(USUAL, exponent=1.0))
GAIN = 0.003
"""Another rule than the usual one must find so much more, about what chance moves."""
_SPARE = 1.5
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


@dataclass(frozen=True, eq=False)
class Choice:
    """The whitening that suits a map, and what told so."""

    whitening: Whitening
    tried: CrossFit | None = None
    """All whitenings; None where poses could not tell."""
    asked: CrossFit | None = None
    """PCA whitening first and the chosen one last, in more folds."""

    def held_out(self, which: Bools | None = None) -> HeldOut | None:
        """What photos (N,) found of fits that did not see their walk; None where poses could not tell."""
        return None if self.asked is None else self.asked.held_out(-1, which)


def choose_whitening(images: ImageSet, fitted: Moments, dim: int, labels: Labels) -> Choice:
    """The whitening to `dim` dims that finds most across walks, fitted to all photos; `fitted` as `cross_fit` takes it.

    labels: ψ of pairs. With few walks, or few photos that others answer, variances alone tell.
    """
    walks = len(np.unique(images.group))
    tried = cross_fit(images, fitted, dim, labels) if walks >= WALKS else None
    if tried is None or tried.answerable.sum() < MIN_QUERIES:
        return Choice(fitted.whitening(dim, ALONE, facts={"fit": "map"}))
    rule = tried.rules[tried.best]
    asked = cross_fit(images, fitted, dim, labels, rules=tuple(dict.fromkeys((PCA, rule))), folds=FOLDS)
    facts: dict[str, Any] = {"fit": "map", "images": images.fingerprint()}
    if rule.labels == "none":
        return Choice(fitted.whitening(dim, rule, facts=facts), tried, asked)
    pairs = pair_weights(labels(images, images), np.asarray(images.group), rule.exponent)
    facts |= {"pairs": int(pairs.nnz), "label_rule": str(labels)}
    return Choice(fitted.whitening(dim, rule, within=fitted.within(pairs), facts=facts), tried, asked)


def cross_fit(
    images: ImageSet,
    fitted: Moments,
    dim: int,
    labels: Labels,
    *,
    rules: Sequence[WhiteningRule] | None = None,
    folds: int = CHOOSING,
) -> CrossFit:
    """Asks every photo across walks; `fitted` has `shared_dims` coordinates, more than the `dim` that are to be kept."""
    rules = tuple(rules or (RULES if len(images) >= FEW else FEW_RULES))
    group = np.asarray(images.group, np.int64)
    folds = min(folds, int(group.max()) + 1)
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
        basis = fitted.lift(np.eye(len(fitted.variances))).astype(np.float32)
        mean, variances = fitted.mean.astype(np.float32), fitted.variances.astype(np.float32)
    turned = np.asarray((coordinates - mean) @ basis, np.float32)
    scatter: dict[float, NDArray[np.float32]] = {}
    for rule in rules:
        if rule.labels != "none" and rule.exponent not in scatter:
            pairs = by_row(pair_weights(graph, group, rule.exponent)[rows][:, rows])
            scatter[rule.exponent] = _within(turned[rows], pairs)
        white = _apart(turned, variances, rule, scatter.get(rule.exponent))
        yield white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)


def _within(turned: NDArray[np.float32], pairs: csr_matrix) -> NDArray[np.float32]:
    """`Moments.within` in single precision, of coordinates that are in memory."""
    labelled = np.asarray(pairs.sum(axis=1)).ravel() > 0
    share = labelled + np.asarray(pairs.sum(axis=0)).ravel()
    cross = turned.T @ (pairs.astype(np.float32) @ turned)
    total = turned.T @ (turned * share.astype(np.float32)[:, None]) - cross - cross.T
    return np.asarray(total / max(1, int(labelled.sum())))


def _apart(
    turned: NDArray[np.float32], variances: NDArray[np.float32], rule: WhiteningRule, within: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """(N, k) coordinates as far apart as `rule` wants; turned, which distances do not see, as that is cheaper.

    With C = L·Lᵀ, L⁻¹z and C^(−1/2)z differ by a rotation.
    """
    if within is None or rule.labels == "none":
        return np.asarray(turned * variances ** (-rule.power / 2))
    mixed = (1 - rule.total_share) * within + rule.total_share * np.diag(variances)
    lower = cholesky(mixed, lower=True, check_finite=False)
    return np.asarray(solve_triangular(lower, turned.T, lower=True, check_finite=False).T)


def shared_dims(dim: int, descriptors: Rows) -> int:
    """Coordinates that the folds of a fit to `dim` dims share."""
    return min(int(_SPARE * dim), len(descriptors) - 1, int(descriptors.shape[1]))


def _across(graph: SimilarityGraph, group: Ids) -> csr_matrix:
    """The pairs of different groups."""
    return graph.keep(group[graph.rows] != group[graph.indices]).to_scipy()


def _near(positive: csr_matrix, ids: Ids) -> Bools:
    """(N, K) whether each match is one of the photo's positives; all in one lookup."""
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    looked = np.asarray(positive[rows.ravel(), np.maximum(ids, 0).ravel()]).reshape(ids.shape)
    return (looked > 0) & (ids >= 0)
