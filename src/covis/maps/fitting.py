"""A model for the user's own photos: clusters and whitening fitted to them, and measured on walks that no fit saw.

Poses help where new photos are taken at the same places; the whitening learns from them (`covis.whitening`). Gradient
training on the photos is an option; it is kept where it finds held-out walks better.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_matrix

from covis.core import artifacts, machine
from covis.core.arrays import Bools, Descriptors, Ids
from covis.core.errors import InputError
from covis.core.progress import say, track
from covis.datasets.photos import held_out_walks
from covis.describing.describers import evaluate_model
from covis.describing.embedding import embed
from covis.describing.features import Cached, open_features, share_features
from covis.descriptors import DescriptorStore
from covis.evaluation import Benchmark
from covis.evaluation.relevance import NEAR_ALIKE, NEAR_ALIKE_RULE
from covis.evaluation.retrieval import Labeller, affordable
from covis.experiments import get, own_photos
from covis.experiments.running import FrozenOnce
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet, Split
from covis.maps.calibration import MIN_QUERIES, HeldOut, photos_key
from covis.maps.evidence import CONTEXT
from covis.maps.photos import listed
from covis.models import PlaceModel, load_fast
from covis.ranking import Ranking
from covis.reading.decoding import Rejected
from covis.search import rank
from covis.training.pooling_start import INITIAL_IMAGES, start_pooling
from covis.training.recipe import Recipe, describe_recipe
from covis.training.run import Resources, train
from covis.whitening import PCA, DescriptorRows, Moments, Whitening, WhiteningRule, moments, pair_weights

# Which whitening suits a map's photos, judged by walks that it did not see, and the results of those walks.
# Descriptors that learned from the poses of a map's photos look too good when these photos are the queries. So the
# walks are cut into folds, each whitening is fitted without one fold, and the photos of that fold are searched for
# among those of all other walks. The results decide which whitening to take, and calibrate the map
# (`covis.maps.calibration`).


_FOLDS = 30
"""Parts that the walks are cut into, for promises: a fit without one part is nearly the fit that the map will have.
With 12 parts, maps of 28 walks underestimated themselves by 3.6 points; with a part for each walk, by 2.6."""
_COARSE = 12
"""Parts for choosing between whitenings: leaving more photos out of a fit makes all whitenings equally worse."""
_CHOOSING = 400
"""Queries, in whole parts, for choosing between whitenings; all photos query the chosen one, as promises need many."""
_WALKS = 4
"""Walks that are needed to search across them."""
ALONE = WhiteningRule(power=0.75)
"""Where poses cannot decide: small variances, which few photos determine poorly, are not blown up."""
FEW = 700
"""Photos below which labels count little beside the total covariance."""
USUAL = WhiteningRule("graded", exponent=6.0, total_share=0.1)
"""ψ to a high power: a photo is compared with those of other walks that see nearly the same. With MobileNetV2, the
power 6 finds one to two points more of new walks at rank 1 than 2 does, and as many at rank 5; small maps do better
with 2."""
_GENTLE = WhiteningRule("graded", total_share=0.3)
FEW_RULES = (PCA, WhiteningRule(power=0.75), _GENTLE)
_RULES = (PCA, _GENTLE, USUAL, replace(USUAL, total_share=0.03), replace(USUAL, exponent=2.0))
_SPARE = 1.25
"""Coordinates that folds share, as a multiple of the dims that are kept, so that a fold has others for those it drops."""
_WHOLE = 512
"""Up to this many coordinates, a fold's own leading directions are worked out exactly."""
_SHIFT, _BARRED, _FLOOR = 0.9, 1e4, 1e-6
_SCARCE = 0.5
"""Below this share of a photo's pairs outside a fold, their sum is worked out directly."""


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Results of photos searched for across walks, by each whitening that was tried."""

    rules: tuple[WhiteningRule, ...]
    rankings: tuple[Ranking, ...]
    """(N, CONTEXT) for each rule: positions among the photos; −1 where a photo was not a query."""
    near: tuple[Bools, ...]
    """(N, CONTEXT) for each rule: whether a match is within 25 m and 40°."""
    asked: Bools
    """(N,) photos of the folds that were queries."""
    answerable: Bools
    """(N,) those of them that have such a match in another walk."""
    fold: Ids
    walk: Ids

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
        ranking = self.rankings[i].subset(queries)
        walk, fold = self.walk[queries], self.fold[queries]
        return HeldOut(queries, ranking.ids, ranking.distances, "groups", walk, fold, seen=len(self.walk))


@dataclass(frozen=True, eq=False)
class Choice:
    """The whitening that suits a map, and the results that it was chosen by."""

    whitening: Whitening
    tried: CrossFit | None = None
    """All whitenings, with the photos of some folds as queries; None where poses could not decide."""
    asked: CrossFit | None = None
    """The chosen one, with more queries."""

    def held_out(self, which: Bools | None = None) -> HeldOut | None:
        """Results of photos `which` (N,) by fits that did not see their walk; None where poses could not decide."""
        return None if self.asked is None else self.asked.held_out(0, which)


def choose_whitening(images: ImageSet, fitted: Moments, dim: int, labels: Labeller) -> Choice:
    """The whitening to `dim` dims that finds most across walks, fitted to all photos; `fitted` has `shared_dims`.

    labels: ψ of pairs. With few walks, or few photos that have a match in another walk, variances alone decide.
    """
    walks = len(np.unique(images.group))
    across = AcrossWalks(images, fitted, dim, labels) if walks >= _WALKS else None
    if across is None or across.answerable.sum() < MIN_QUERIES:
        return Choice(fitted.whitening(dim, ALONE, facts={"fit": "map"}))
    tried, asked = across.choose()
    return Choice(across.whitening(asked.rules[0]), tried, asked)


class AcrossWalks:
    """A map's photos as queries to whitenings that did not see their walks."""

    def __init__(self, images: ImageSet, fitted: Moments, dim: int, labels: Labeller, folds: int = _FOLDS) -> None:
        """`fitted` has more coordinates than the `dim` that are to be kept (`shared_dims`); `labels` gives ψ of pairs."""
        self.group, self.dim = np.asarray(images.group, np.int64), dim
        self.images, self.moments, self.labels = images, fitted, labels
        walks, walk = np.unique(self.group, return_inverse=True)  # a part of a table may lack some codes
        self.walk = np.random.default_rng(0).permutation(len(walks))[walk]
        self.fold = self.walk % folds
        self.graph, self.positive = labels(images, images), _across(NEAR_ALIKE(images, images), self.group)
        self.answerable = np.diff(self.positive.indptr) > 0
        self.variances = fitted.variances.astype(np.float32)
        self.rows = np.asarray(np.asarray(fitted.coordinates) / np.sqrt(fitted.variances), np.float32)
        """(N, K) coordinates along the leading directions of all photos, each of variance 1."""
        self._pairs: dict[float, csr_matrix] = {}
        self._sums: dict[float, Descriptors] = {}

    def choose(self) -> tuple[CrossFit, CrossFit]:
        """All whitenings with some photos as queries, and the best of them with all photos."""
        coarse = self.walk % _COARSE
        parts = int(coarse.max()) + 1
        some = max(1, min(parts, round(parts * _CHOOSING / len(coarse))))
        tried = self.ask(_RULES if len(self.rows) >= FEW else FEW_RULES, range(some), coarse)
        return tried, self.ask((tried.rules[tried.best],))

    def whitening(self, rule: WhiteningRule) -> Whitening:
        """The whitening of a rule, fitted to all photos."""
        facts: dict[str, Any] = {"fit": "map", "images": photos_key(self.images)}
        if rule.labels == "none":
            return self.moments.whitening(self.dim, rule, facts=facts)
        pairs = self._weights(rule.exponent)
        facts |= {"pairs": int(pairs.nnz), "label_rule": str(self.labels)}
        return self.moments.whitening(self.dim, rule, within=self.moments.within(pairs), facts=facts)

    def ask(
        self, rules: Sequence[WhiteningRule], parts: Sequence[int] | None = None, fold: Ids | None = None
    ) -> CrossFit:
        """Searches photos of other walks for each photo of some folds, by each rule fitted without its fold.

        parts: folds whose photos are queries (None: all). fold (N,): the fold of each photo; by default `self.fold`.
        """
        fold = self.fold if fold is None else fold
        parts = range(int(fold.max()) + 1) if parts is None else parts
        shape = (len(self.rows), CONTEXT)
        ids = [np.full(shape, -1, np.int64) for _ in rules]
        distances = [np.full(shape, np.inf, np.float32) for _ in rules]
        for part in track(parts, "cross-fit", len(parts), "folds"):
            known = fold != part
            out = np.flatnonzero(~known)
            for i, white in enumerate(self.whitened(known, rules)):
                ranking = rank(white[out], white, CONTEXT, self.group[out], self.group, "other")
                ids[i][out, : ranking.k], distances[i][out, : ranking.k] = ranking.ids, ranking.distances
        asked = np.isin(fold, parts)
        near = tuple(_near(self.positive, matches) for matches in ids)
        rankings = tuple(Ranking(i, d) for i, d in zip(ids, distances, strict=True))
        return CrossFit(tuple(rules), rankings, near, asked, asked & self.answerable, fold, self.group)

    def whitened(self, known: Bools, rules: Sequence[WhiteningRule]) -> Iterator[Descriptors]:
        """(N, ≤ K) unit descriptors of all photos by each rule, fitted to the `known` ones alone."""
        out, n = np.flatnonzero(~known), int(known.sum())
        mean = -self.rows[out].sum(axis=0) / n  # the mean of all photos is 0
        covariance = -(self.rows[out].T @ self.rows[out]) - n * np.outer(mean, mean)
        covariance.flat[:: len(mean) + 1] += len(known) - 1  # all photos have variances of 1
        covariance /= max(1, n - 1)
        rows, kept = self.rows - mean, min(affordable(self.dim, n) or 1, len(mean))
        barred = _trailing(covariance, self.variances, kept, rows[out])
        within: dict[float, Descriptors] = {}
        for rule in rules:
            if rule.labels != "none" and rule.exponent not in within:
                within[rule.exponent] = self._within(known, rule.exponent)
            scatter = None if rule.labels == "none" else within[rule.exponent]
            white = _apart(rows, covariance, scatter, rule, barred, self.variances)
            white /= np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)
            yield white

    def _within(self, known: Bools, exponent: float) -> Descriptors:
        """(K, K) mean of (z_i − z_j)(z_i − z_j)ᵀ over pairs of `known` photos, each row's weights summing to 1; 0 without any.

        Partners' sums are worked out once, over all photos; a fold subtracts its own.
        """
        weights, partners = self._weights(exponent).astype(np.float32), self._partners(exponent)
        inside, out = weights[known][:, known], weights[known][:, ~known]
        total = np.asarray(inside.sum(axis=1)).ravel()
        labelled = total > 0
        if not labelled.any():
            return np.zeros((self.rows.shape[1],) * 2, np.float32)
        share = np.divide(1.0, total, out=np.zeros_like(total), where=labelled)
        rows, sums = self.rows[known], partners[known] - out @ self.rows[~known]
        scarce = labelled & (total < _SCARCE)  # a small difference of large sums would be noise
        sums[scarce] = inside[scarce] @ rows
        degree = labelled + inside.T @ share
        half = rows.T @ (rows * (degree / 2)[:, None].astype(np.float32) - sums * share[:, None].astype(np.float32))
        return np.asarray((half + half.T) / np.float32(labelled.sum()))

    def _weights(self, exponent: float) -> csr_matrix:
        if exponent not in self._pairs:
            self._pairs[exponent] = pair_weights(self.graph, self.group, exponent)
        return self._pairs[exponent]

    def _partners(self, exponent: float) -> Descriptors:
        """(N, K) the weighted sum of each photo's partners."""
        if exponent not in self._sums:
            self._sums[exponent] = self._weights(exponent).astype(np.float32) @ self.rows
        return self._sums[exponent]


def _trailing(covariance: Descriptors, variances: Descriptors, kept: int, others: Descriptors) -> Descriptors:
    """(K, K − kept) orthonormal directions in which the fit's photos vary least: a fit to them alone would not have them.

    covariance (K, K) is of the fit's photos, in coordinates in which all photos have variance 1; `variances` (K,) are
    those before. The fit lacks only `others`, so these directions lie near the last coordinates and near those photos:
    they are searched in the span of both, or in all of the space if K is small.
    """
    size, scale = len(variances), np.sqrt(variances)
    natural = covariance * np.outer(scale, scale)
    if size <= _WHOLE or len(others) >= kept:
        return np.asarray(np.linalg.eigh(natural)[1][:, : size - kept])
    lead = variances[:kept]
    start = others[:, :kept].T * scale[:kept, None] / (lead - _SHIFT * lead[-1])[:, None]
    basis = np.linalg.qr(start / np.maximum(np.linalg.norm(start, axis=0), 1e-12))[0]
    across = natural[kept:, :kept] @ basis
    inner = np.block([[basis.T @ natural[:kept, :kept] @ basis, across.T], [across, natural[kept:, kept:]]])
    vectors = np.linalg.eigh(inner)[1][:, : size - kept]
    return np.concatenate([basis @ vectors[: basis.shape[1]], vectors[basis.shape[1] :]])


def _apart(
    rows: Descriptors,
    covariance: Descriptors,
    within: Descriptors | None,
    rule: WhiteningRule,
    barred: Descriptors,
    variances: Descriptors,
) -> Descriptors:
    """(N, ≤ K) coordinates whitened by `rule`, without the directions `barred`, and up to a rotation, which is cheaper.

    With C = L·Lᵀ, L⁻¹z and C^(−1/2)z differ by a rotation, which does not change distances.
    """
    scale = np.sqrt(variances)
    if rule.power != 1:
        seen = np.eye(len(scale), dtype=np.float32) - barred @ barred.T
        values, vectors = np.linalg.eigh(seen @ (covariance * np.outer(scale, scale)) @ seen)
        start = barred.shape[1]
        return np.asarray((rows * scale) @ (vectors[:, start:] * values[start:] ** (-rule.power / 2)))
    turned = barred * (scale[-1] / scale)[:, None]
    mixed = covariance if within is None else (1 - rule.total_share) * within + rule.total_share * covariance
    mixed = mixed + np.float32(_BARRED) * (turned @ turned.T)
    mixed.flat[:: len(mixed) + 1] += np.float32(_FLOOR)
    lower = cholesky(mixed, lower=True, overwrite_a=True, check_finite=False)
    return np.ascontiguousarray(solve_triangular(lower, rows.T, lower=True, check_finite=False).T)


def shared_dims(dim: int, descriptors: DescriptorRows) -> int:
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


# Fitting a model to one's own photos


ENOUGH = 300
"""Photos that share half of their view with one of another group, from which on training is tried."""
FITTED_PHOTOS = 10_000
"""A fit takes at most this many photos, in whole walks; the rest are only described."""
_CLUSTER_SHARE = 0.25
"""At most this share of the photos is used first, to place clusters."""
FROZEN, TUNED = "frozen", "fine-tuned"
"""Models that fine-tuning compares."""
TAKEN = "taken"
"""The whitening of the map, measured with more queries than those that were only tried."""
OVERHEAD_S = 30.0
"""Time that a map takes however few photos it has, most of it for the ONNX file."""
_PROBE = 4
_QUESTION_FIELDS = ("queries", "ids", "distances", "walk", "fold")
_KIND, _RESULT, _QUESTIONS = "fit", "fitted.json", "held_out.npz"
_CLUSTERS, _MODEL, _STORE, _RAW, _LATER = "clusters", "model", "descriptors", "raw", "later"


@dataclass(frozen=True)
class Fitted:
    """The result of a fit to a user's photos."""

    model: Path
    descriptors: Path
    """A store of the photos' descriptors, those that the fit saw first."""
    trained: bool
    photos: int
    overlapping: int
    note: str
    held_out: dict[str, dict[str, float]]
    """Recall@k in percent of photos of walks that a fit did not see: by each whitening that was tried, by the one taken
    (of more photos), and by each model if trained."""
    whitening: dict[str, Any] = field(default_factory=dict)
    seen: int = 0
    """Photos whose poses it learned from: the first of the store."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"model": str(self.model), "descriptors": str(self.descriptors)}

    def questions(self) -> HeldOut | None:
        """Results of photos by fits that did not see their walks; None where the fit did not learn from poses."""
        file = self.model.parent / _QUESTIONS
        if not self.seen:
            return None
        with np.load(file) as kept:
            arrays = {name: kept[name] for name in _QUESTION_FIELDS}
            return HeldOut(method=str(kept["method"]), seen=self.seen, **arrays)

    def described(self, images: ImageSet) -> tuple[ImageSet, DescriptorStore, list[Rejected]]:
        """The photos that have a descriptor, in the order of the store, the store, and why the others have none."""
        store = DescriptorStore.open(self.descriptors)
        without = images.subset(~np.isin(images.names, store.names))
        lost = [Rejected(without.name(i), "no-descriptor", "") for i in range(len(without))]
        reasons = {r.image: r for r in (*listed(self.model.parent / _RAW), *listed(self.model.parent / _LATER))}
        return images.subset(_positions(images, store)), store, [reasons.get(r.image, r) for r in lost]


def choose_recipe(name: str, weights: str) -> Recipe:
    """The recipe to fit: the one that is named, the one that a weights file fits, or the best whose weights are available.

    weights: a .safetensors file of a backbone, or empty.
    """
    if name:
        chosen = get(name)
        return replace(chosen, model=replace(chosen.model, weights=weights)) if weights else chosen
    reasons = []
    for candidate in (own_photos.RECOMMENDED, own_photos.SMALL):
        recipe = get(candidate)
        recipe = replace(recipe, model=replace(recipe.model, weights=weights)) if weights else recipe
        try:
            PlaceModel.build(recipe.model, 0)
        except InputError as error:
            reasons.append(str(error).partition(";")[0])
            continue
        why = f"{weights} fits its backbone" if weights else "its weights are there"
        rank = "recommended" if candidate == own_photos.RECOMMENDED else "small"
        lost = f"; not the recommended recipe: {reasons[0]}" if reasons and not weights else ""
        say(f"recipe {candidate} ({rank}, {recipe.model.backbone}): {why}{lost}")
        return recipe
    if weights:
        known = ", ".join(get(n).model.backbone for n in (own_photos.RECOMMENDED, own_photos.SMALL))
        raise InputError(f"{weights} fits no recipe for own photos ({known}); give --recipe NAME too, or --model MODEL")
    raise InputError(
        f"no pretrained weights are available ({reasons[0]}); give --weights FILE.safetensors (a DINOv2 or MobileNetV2 "
        "backbone) or --model MODEL"
    )


def estimate_s(recipe: Recipe, count: int) -> float:
    """Seconds that a map of `count` photos takes, without fine-tuning, by a few blank images through the network."""
    model = PlaceModel.build(replace(recipe.model, weights=None), 0).eval()
    pixels = torch.zeros((_PROBE, 3, *model.config.image_size), dtype=torch.uint8)
    model.prefix(model.normalise(pixels[:1]))
    start = time.perf_counter()
    model.prefix(model.normalise(pixels))
    return OVERHEAD_S + 1.2 * count * (time.perf_counter() - start) / _PROBE


def fit_model(
    images: ImageSet,
    recipe: Recipe,
    run: Path | str,
    *,
    fine_tune: bool = False,
    enough: int = ENOUGH,
    seed: int = 0,
    resources: Resources | None = None,
) -> Fitted:
    """Fits `recipe`'s pooling and a whitening to the photos, in the folder `run`; the same call resumes.

    The whitening is learned from poses if there are enough walks to choose it by cross-fitting over them. With
    `fine_tune`, the recipe is trained on the photos first, if `enough` of them overlap, and kept if that finds every
    fourth walk better; then only those walks are queries. Otherwise each photo passes the network at most 1.25 times.
    """
    run = Path(run)
    config = {"recipe": describe_recipe(recipe), "images": images.fingerprint(), "seed": seed, "fine_tune": fine_tune}
    with artifacts.claim(run, _KIND, config):
        if (run / _RESULT).is_file():
            return _opened(run)
        overlapping = _overlapping(images, recipe)
        tuned, recalls = None, dict[str, dict[str, float]]()
        if fine_tune and overlapping >= enough:
            tuned, recalls = _fine_tuned(images, recipe, run / TUNED, seed, resources)
        model = _started(images, recipe, run, seed) if tuned is None else tuned.whiten(None)
        drawn = _drawn(images)
        fast = model if tuned is not None else load_fast(run / _CLUSTERS, len(drawn), model=model, keep=run)
        raw = embed(fast, drawn, run / _RAW)
        known = images.subset(_positions(images, raw))
        asked = None if tuned is None else np.isin(known.names, held_out_walks(images).queries.names)
        note, seen, recalls = _whiten(model, known, raw, recipe, run, asked, recalls)
        model.save(run / _MODEL, {**model.card, "recipe": describe_recipe(recipe), "seed": seed}, replace=True)
        _described(model, images, known, raw, run)
        if fine_tune and tuned is None:
            lack = (
                f"{overlapping} of {len(images)} photos overlap, {enough} are needed"
                if overlapping < enough
                else "it did not help"
            )
            note = f"{note}; not fine-tuned ({lack})"
        say(note)
        whitening = {} if model.whitening is None else {"dim": model.whitening.dim, **model.whitening.facts}
        fitted = Fitted(
            run / _MODEL, run / _STORE, tuned is not None, len(images), overlapping, note, recalls, whitening, seen
        )
        artifacts.write_json(run / _RESULT, fitted.to_dict())
    return _opened(run)


def _opened(run: Path) -> Fitted:
    record = artifacts.read_json(run / _RESULT)
    return Fitted(**{**record, "model": run / _MODEL, "descriptors": run / _STORE})


# The whitening


def _whiten(
    model: PlaceModel,
    images: ImageSet,
    raw: DescriptorStore,
    recipe: Recipe,
    run: Path,
    asked: Bools | None,
    recalls: dict[str, dict[str, float]],
) -> tuple[str, int, dict[str, dict[str, float]]]:
    """Whitens the model; returns a note, the number of photos whose poses it learned from, and recalls."""
    dim = affordable(recipe.whiten, len(images))
    if not dim:
        return f"{len(images)} photos are too few to whiten: the pretrained network is used unchanged", 0, recalls
    with moments(raw, shared_dims(dim, raw), fewer=True) as fitted:
        dim = min(dim, len(fitted.variances))
        choice = choose_whitening(images, fitted, dim, recipe.labels)
    model.whiten(choice.whitening)
    held = choice.held_out(asked)
    if choice.tried is None or choice.asked is None or held is None:
        walks = len(np.unique(images.group))
        note = f"{walks} walks are too few to learn from their poses: PCA whitening to {dim} dimensions"
        return note, 0, recalls
    np.savez(run / _QUESTIONS, **{name: getattr(held, name) for name in _QUESTION_FIELDS}, method=held.method)
    recalls = {**recalls, **{_named(rule): choice.tried.recall(i) for i, rule in enumerate(choice.tried.rules)}}
    return _recall_note(choice.tried, choice.asked, dim), len(images), {**recalls, TAKEN: choice.asked.recall(0)}


def _named(rule: WhiteningRule) -> str:
    if rule.labels == "none":
        return "pca" if rule.power == 1 else f"pca, power {rule.power:g}"
    return f"learned, a = {rule.total_share:g}, p = {rule.exponent:g}"


def _recall_note(tried: CrossFit, asked: CrossFit, dim: int) -> str:
    plain, best = tried.recall(tried.rules.index(PCA))["1"], tried.recall(tried.best)["1"]
    return (
        f"photos of walks that the fit did not see are found at rank 1: {asked.recall(0)['1']:.1f} % with the whitening "
        f"taken ({_named(asked.rules[0])}, {dim} dims); of the {int(tried.answerable.sum())} that chose it {best:.1f} %, "
        f"with PCA whitening {plain:.1f} %"
    )


# Descriptors


def _started(images: ImageSet, recipe: Recipe, run: Path, seed: int) -> PlaceModel:
    """The pretrained network, its clusters placed by some of the photos."""
    folder = run / _CLUSTERS
    if (folder / artifacts.MANIFEST).is_file():
        return PlaceModel.load(folder)
    model = PlaceModel.build(recipe.model, seed)
    most = min(INITIAL_IMAGES, max(20, int(_CLUSTER_SHARE * len(images))))
    start_pooling(model, images, seed, workers=0, most=most)
    model.save(folder, replace=True)
    return model


def _drawn(images: ImageSet) -> ImageSet:
    """The photos that the fit takes: all, or whole walks up to `FITTED_PHOTOS`."""
    if len(images) <= FITTED_PHOTOS:
        return images
    walks = np.random.default_rng(0).permutation(int(images.group.max()) + 1)
    size = np.bincount(images.group, minlength=len(walks))[walks]
    taken = walks[np.cumsum(size) <= FITTED_PHOTOS]
    if not len(taken):  # one walk is longer than that
        return images.subset(np.sort(np.random.default_rng(0).permutation(len(images))[:FITTED_PHOTOS]))
    return images.subset(np.isin(images.group, taken))


def _positions(images: ImageSet, store: DescriptorStore) -> NDArray[np.int64]:
    """Positions among `images` of the rows of `store`, in its order."""
    order = np.argsort(images.names, kind="stable")
    return np.asarray(order[np.searchsorted(images.names, store.names, sorter=order)])


def _described(model: PlaceModel, images: ImageSet, known: ImageSet, raw: DescriptorStore, run: Path) -> None:
    """A store of all photos' descriptors, those of the fit first: they pass the network once."""
    folder = run / _STORE
    if (folder / artifacts.MANIFEST).is_file() and DescriptorStore.open(folder).model == model.fingerprint():
        return
    shutil.rmtree(folder, ignore_errors=True)
    store = DescriptorStore.create(folder, model.fingerprint(), model.dim)
    for start in range(0, len(raw), 1024):
        part = np.asarray(raw[start : start + 1024], np.float32)
        white = part if model.whitening is None else model.whitening(part)
        store = store.append(raw.names[start : start + 1024], white, model=store.model)
    rest = ~np.isin(images.names, _drawn(images).names)
    if rest.any():
        fast = load_fast(run / _MODEL, int(rest.sum()), model=model, keep=run)
        later = embed(fast, images.subset(rest), run / _LATER)
        store.append(later.names, np.asarray(later[:], np.float32), model=store.model)


# Gradient training


def _fine_tuned(
    images: ImageSet, recipe: Recipe, run: Path, seed: int, resources: Resources | None
) -> tuple[PlaceModel | None, dict[str, dict[str, float]]]:
    """The recipe trained on three of four walks, if that finds the others better than the frozen network does."""
    new, known = held_out_walks(images)
    frozen = _frozen_features(images, recipe, seed, resources)
    if frozen is not None:
        for part in (new, known):
            share_features(frozen, images, np.flatnonzero(np.isin(images.names, part.names)), _cache(resources))
    recipe, recalls = replace(recipe, whiten=affordable(recipe.whiten, len(known))), {}
    for name, tried in ((FROZEN, replace(recipe, steps=0)), (TUNED, recipe)):
        train(tried, run / name, data=Split(known, known), seed=seed, resources=resources)
        recalls[name] = _recall(PlaceModel.load(run / name / "model"), new, known)
    better = recalls[TUNED]["1"] > recalls[FROZEN]["1"]
    return PlaceModel.load(run / TUNED / "model") if better else None, recalls


def _cache(resources: Resources | None) -> Path:
    return (resources.cache if resources is not None else None) or machine.cache_folder() / "features"


def _frozen_features(images: ImageSet, recipe: Recipe, seed: int, resources: Resources | None) -> Cached | None:
    """The frozen part's output for each photo, computed once; None where it is too large, or a photo is bad."""
    model = PlaceModel.build(recipe.model, seed).eval()
    source = open_features(
        model, (images,), seed=seed, workers=machine.workers(None if resources is None else resources.workers),
        cache=_cache(resources), cache_bytes=int(recipe.cache_gb * 1e9), device=torch.device("cpu"),
    )  # fmt: skip
    whole = isinstance(source, Cached) and np.array_equal(source.replaced[0], np.arange(len(images)))
    return source if whole and isinstance(source, Cached) else None


def _overlapping(images: ImageSet, recipe: Recipe) -> int:
    """Photos with a partner of another group (any other photo, where there is one group) that shares half the view."""
    labels = recipe.labels(images, images)
    shares = labels.psi >= POSITIVE
    if len(images.group_names) > 1:
        shares &= images.group[labels.rows] != images.group[labels.indices]
    return len(np.unique(labels.rows[shares]))


def _recall(model: PlaceModel, queries: ImageSet, database: ImageSet) -> dict[str, float]:
    benchmark = Benchmark("held_out", queries, database, NEAR_ALIKE(queries, database), NEAR_ALIKE_RULE)
    return {str(k): float(v) for k, v in evaluate_model(FrozenOnce(model), benchmark).recall.items()}
