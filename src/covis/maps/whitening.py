"""The whitening that suits a map's photos, chosen by leave-walks-out searches, and the results of those searches.

Descriptors that learned from the poses of a map's photos look too good when these photos are the queries. So each
whitening is fitted without one fold of walks, and the photos of that fold are searched for among those of all other
walks. The results decide which whitening to take, and calibrate the map (`covis.maps.calibration`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covis.core.arrays import Bools, Ids
from covis.core.progress import track
from covis.crossval import WalkCrossValidation
from covis.descriptors import Matrix
from covis.evaluation.relevance import NEAR_ALIKE
from covis.evaluation.whitening_fits import Labeller, affordable
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.maps.elsewhere import Bank
from covis.maps.evidence import Found
from covis.maps.held_out import WALKS, ElsewhereSearch, HeldOut, photos_key
from covis.maps.settings import CALIBRATION, EVIDENCE
from covis.search import rank
from covis.whitening import PCA, Moments, PairWeights, Whitening, WhiteningRule, moments, pair_weights

USUAL = WhiteningRule("graded", exponent=6.0, total_share=0.1)
_GENTLE = WhiteningRule("graded", total_share=0.3)
_FLAT = WhiteningRule(power=0.75)


@dataclass(frozen=True)
class WhiteningSettings:
    """What decides which whitening a map takes; figures are of the campus photos (docs/evidence.md)."""

    folds: int = 10
    """Folds of whole walks. Over 5 maps of 28 walks of the campus (MobileNetV2), with 30, 10 and 5 folds: right answers
    that maps expect of themselves 83.4, 82.6 and 81.6 % (84 % are), calibration error 1.7, 2.3 and 2.8 points, answers
    confident at 90 % 70, 71 and 59 %, CPU time 21, 10 and 3 s."""
    choosing: int = 400
    """Queries, in whole folds, for choosing between whitenings; all photos query the chosen one, as promises need many."""
    min_walks: int = 4
    """Walks that are needed to search across them."""
    alone: WhiteningRule = _FLAT
    """Where poses cannot decide: small variances, which few photos determine poorly, are not blown up."""
    few: int = 700
    """Photos below which labels count little beside the total covariance."""
    few_rules: tuple[WhiteningRule, ...] = (PCA, _FLAT, _GENTLE)
    rules: tuple[WhiteningRule, ...] = (
        PCA,
        _GENTLE,
        USUAL,
        replace(USUAL, total_share=0.03),
        replace(USUAL, exponent=2.0),
    )
    """ψ to a high power: a photo is compared with those of other walks that see nearly the same. With MobileNetV2, the
    power 6 finds one to two points more of new walks at rank 1 than 2 does, and as many at rank 5; small maps do better
    with 2."""
    spare: float = 1.25
    """Coordinates that folds share, as a multiple of the dims that are kept, so that a fold has others for those it drops."""


SETTINGS = WhiteningSettings()


@dataclass(frozen=True, eq=False)
class HeldOutSearch:
    """Results of photos searched for across walks, by each whitening that was tried."""

    rules: tuple[WhiteningRule, ...]
    found: tuple[Found, ...]
    """Matches of all photos (N) for each rule; none where a photo was not a query."""
    near: tuple[Bools, ...]
    """(N, K) for each rule: whether a match is within 25 m and 40°."""
    asked: Bools
    """(N,) photos of the folds that were queries."""
    answerable: Bools
    """(N,) those of them that have such a match in another walk."""
    fold: Ids
    walk: Ids
    elsewhere: ElsewhereSearch | None = None
    """What the last rule finds where the map does not have the place; held-out photos (N,), and the bank."""

    def recall(self, i: int) -> dict[str, float]:
        """Percent of the answerable photos that rule i found at rank 1, 5 and 10."""
        return {str(k): 100 * float(self.near[i][self.answerable, :k].any(axis=1).mean()) for k in (1, 5, 10)}

    @property
    def best(self) -> int:
        """The rule that finds most at rank 1 and 5; the usual one unless another is better by more than chance."""
        hits = np.stack([near[:, :1].any(axis=1) * 1.0 + near[:, :5].any(axis=1) for near in self.near])
        usual = self.rules.index(USUAL if USUAL in self.rules else _GENTLE)
        gain = (hits - hits[usual])[:, self.answerable]
        scores = gain.mean(axis=1) - 2 * gain.std(axis=1) / np.sqrt(gain.shape[1])
        return int(scores.argmax()) if scores.max() > 0 else usual

    def held_out(self, i: int, which: Bools | None = None) -> HeldOut:
        """The queries and results of rule i, for the photos `which` (N,) that may be queries."""
        queries = np.flatnonzero(self.asked if which is None else self.asked & which)
        found, walk, fold = self.found[i].subset(queries), self.walk[queries], self.fold[queries]
        elsewhere = None if self.elsewhere is None else self.elsewhere.subset(queries)
        return HeldOut(queries, found, WALKS, walk, fold, len(self.walk), elsewhere)


@dataclass(frozen=True, eq=False)
class Choice:
    """The whitening that suits a map, and the results that it was chosen by."""

    whitening: Whitening
    tried: HeldOutSearch | None = None
    """All whitenings, with the photos of some folds as queries; None where poses could not decide."""
    asked: HeldOutSearch | None = None
    """The chosen one, with all photos as queries."""

    def held_out(self, which: Bools | None = None) -> HeldOut | None:
        """Results of photos `which` (N,) by fits that did not see their walk; None where poses could not decide."""
        return None if self.asked is None else self.asked.held_out(0, which)


def choose_whitening(
    images: ImageSet,
    fitted: Moments,
    dim: int,
    labels: Labeller,
    settings: WhiteningSettings = SETTINGS,
    bank: Bank | None = None,
) -> Choice:
    """The whitening to `dim` dims that finds most across walks, fitted to all photos; `fitted` has `shared_dims`.

    labels: ψ of pairs. bank: pictures that are not of the map's places, before whitening. With few walks, or few photos that have a match in another walk, variances alone decide.
    """
    if len(np.unique(images.group)) >= settings.min_walks:
        trial = WhiteningTrial(images, fitted, dim, labels, settings, bank)
        if trial.answerable.sum() >= CALIBRATION.min_queries:
            tried, asked = trial.choose()
            return Choice(trial.whitening(asked.rules[0]), tried, asked)
    return Choice(fitted.whitening(dim, settings.alone, facts={"fit": "map"}))


class WhiteningTrial:
    """A map's photos as queries to whitenings that did not see their walks."""

    def __init__(
        self,
        images: ImageSet,
        fitted: Moments,
        dim: int,
        labels: Labeller,
        settings: WhiteningSettings = SETTINGS,
        bank: Bank | None = None,
    ) -> None:
        """`fitted` has more coordinates than the `dim` that are to be kept (`shared_dims`); `labels` gives ψ of pairs."""
        self.images, self.moments, self.dim, self.labels, self.settings = images, fitted, dim, labels, settings
        self.group = np.asarray(images.group, np.int64)
        walk = np.unique(self.group, return_inverse=True)[1]  # a part of a table may lack some codes
        self.fold = WalkCrossValidation.of(walk, settings.folds).fold
        self.graph, self.positive = labels(images, images), _across(NEAR_ALIKE(images, images), self.group)
        self.answerable = np.diff(self.positive.indptr) > 0
        self.bank = Bank.empty(len(fitted.variances))
        if bank is not None:
            turned = (bank.descriptors - fitted.mean) @ fitted.directions
            self.bank = replace(bank, descriptors=turned.astype(np.float32))
        self._pairs: dict[float, PairWeights] = {}

    def choose(self) -> tuple[HeldOutSearch, HeldOutSearch]:
        """All whitenings with some photos as queries, and the best of them with all photos."""
        folds, settings = int(self.fold.max()) + 1, self.settings
        some = max(1, min(folds, round(folds * settings.choosing / len(self.fold))))
        tried = self.search(settings.rules if len(self.fold) >= settings.few else settings.few_rules, range(some))
        return tried, self.search((tried.rules[tried.best],))

    def whitening(self, rule: WhiteningRule) -> Whitening:
        """The whitening of a rule, fitted to all photos."""
        facts: dict[str, Any] = {"fit": "map", "images": photos_key(self.images)}
        if rule.labels == "none":
            return self.moments.whitening(self.dim, rule, facts=facts)
        pairs = self._weights(rule.exponent)
        facts |= {"pairs": pairs.pairs, "label_rule": str(self.labels)}
        return self.moments.whitening(self.dim, rule, within=self.moments.within(pairs), facts=facts)

    def search(self, rules: Sequence[WhiteningRule], folds: Sequence[int] | None = None) -> HeldOutSearch:
        """Searches photos of other walks for each photo of some folds (None: all), by each rule fitted without its fold."""
        folds = range(int(self.fold.max()) + 1) if folds is None else folds
        found = tuple(Found.none(len(self.fold)) for _ in rules)
        coordinates = np.asarray(self.moments.coordinates[:])
        elsewhere = ElsewhereSearch.unasked(len(self.fold), len(self.bank))
        bank_fold = elsewhere.stranger_fold(int(self.fold.max()) + 1)
        for fold in track(folds, "cross-validate", len(folds), "folds"):
            out = np.flatnonzero(self.fold == fold)
            for i, whitening in enumerate(self.whiten_fold(self.fold != fold, rules)):
                white = whitening(coordinates)
                ranking = rank(white[out], white, EVIDENCE.context, self.group[out], self.group, "other")
                found[i].note(out, Found.of(ranking, white, np.arange(len(white))))
            bank = replace(self.bank, descriptors=whitening(self.bank.descriptors))
            elsewhere.ask(white, self.images, out, bank, np.flatnonzero(bank_fold == fold), other_walks=True)
        asked = np.isin(self.fold, folds)
        near = tuple(_near(self.positive, one.ranking.ids) for one in found)
        return HeldOutSearch(
            tuple(rules), found, near, asked, asked & self.answerable, self.fold, self.group, elsewhere
        )

    def whiten_fold(self, known: Bools, rules: Sequence[WhiteningRule]) -> list[Whitening]:
        """The whitening of coordinates by each rule, fitted to the `known` photos (N,) alone."""
        rows = np.asarray(self.moments.coordinates[:], np.float32)[known]
        with moments(rows, min(affordable(self.dim, len(rows)) or 1, rows.shape[1]), fewer=True) as fitted:
            return [self._fit(fitted, rule, known) for rule in rules]

    def _fit(self, fitted: Moments, rule: WhiteningRule, known: Bools) -> Whitening:
        dim = len(fitted.variances)
        if rule.labels == "none":
            return fitted.whitening(dim, rule)
        pairs = self._weights(rule.exponent).subset(known)
        if not pairs.pairs:  # no two walks of the other folds meet
            return fitted.whitening(dim, PCA)
        return fitted.whitening(dim, rule, within=fitted.within(pairs))

    def _weights(self, exponent: float) -> PairWeights:
        if exponent not in self._pairs:
            self._pairs[exponent] = pair_weights(self.graph, self.group, exponent)
        return self._pairs[exponent]


def shared_dims(dim: int, descriptors: Matrix, settings: WhiteningSettings = SETTINGS) -> int:
    """Coordinates that the folds of a fit to `dim` dims share."""
    return min(int(settings.spare * dim), len(descriptors) - 1, int(descriptors.shape[1]))


def _across(graph: SimilarityGraph, group: Ids) -> SimilarityGraph:
    """The pairs of different groups."""
    return graph.keep(group[graph.rows] != group[graph.indices])


def _near(positive: SimilarityGraph, ids: Ids) -> Bools:
    """(N, K) whether each match is one of the photo's positives; all in one lookup."""
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    return (positive.lookup(rows, np.maximum(ids, 0)) > 0) & (ids >= 0)
