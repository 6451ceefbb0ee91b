"""A model for one's own photos: clusters and whitening fitted to them, and told how well by walks that no fit saw.

Poses pay where new photos are asked of the same places, in the whitening (`covis.whitening`). Gradient training on the
photos is an option; it is kept where it finds held-out walks better.
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

from covis import artifacts, machine
from covis.arrays import Bools, Ids
from covis.datasets.photos import held_out_walks
from covis.describing.describers import evaluate_model
from covis.describing.embedding import embed
from covis.describing.features import Cached, open_features, share_features
from covis.descriptors import DescriptorStore
from covis.errors import InputError
from covis.evaluation import Benchmark
from covis.evaluation.benchmark import NEAR_ALIKE, NEAR_ALIKE_RULE
from covis.evaluation.retrieval import Labeller, affordable
from covis.experiments import campus, get
from covis.experiments.running import FrozenOnce
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet, Split
from covis.maps.calibration import MIN_QUERIES, HeldOut
from covis.maps.evidence import CONTEXT
from covis.maps.storage import listed
from covis.models import PlaceModel
from covis.progress import say, track
from covis.ranking import Ranking
from covis.reading.decoding import Rejected
from covis.search import rank
from covis.training.recipe import Recipe, describe_recipe
from covis.training.run import INITIAL_IMAGES, Resources, start_pooling, train
from covis.whitening import PCA, DescriptorRows, Moments, Whitening, WhiteningRule, by_row, moments, pair_weights

# Which whitening suits a map's photos, told by walks that it did not see; and what those walks found
# Descriptors that learned from the poses of a map's photos flatter it when they are asked of it. So the walks are cut into
# folds, each whitening is fitted without one, and the photos of that one are asked against those of all other walks. What
# they find tells which whitening to take, and calibrates the map (`covis.maps.calibration`).


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


def choose_whitening(images: ImageSet, fitted: Moments, dim: int, labels: Labeller) -> Choice:
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
    labels: Labeller,
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
"""A fit takes so many photos at most, whole walks of them; the rest is only described."""
_CLUSTER_SHARE = 0.25
"""Of the photos at most are looked at first, to place clusters."""
FROZEN, TUNED = "frozen", "fine-tuned"
"""Models that fine-tuning compares."""
TAKEN = "taken"
"""The whitening of the map, asked in more folds than those that were tried."""
OVERHEAD_S = 30.0
"""What a map takes however few its photos are, most of it for the ONNX file."""
_PROBE = 4
_QUESTION_FIELDS = ("queries", "ids", "distances", "walk", "fold")
_KIND, _RESULT, _QUESTIONS = "fit", "fitted.json", "held_out.npz"
_MODEL, _STORE, _RAW, _LATER = "model", "descriptors", "raw", "later"


@dataclass(frozen=True)
class Fitted:
    """What became of a user's photos."""

    model: Path
    descriptors: Path
    """A store of the photos' descriptors, those that the fit saw first."""
    trained: bool
    photos: int
    overlapping: int
    note: str
    held_out: dict[str, dict[str, float]]
    """Recall@k in percent of photos of walks that a fit did not see: by each whitening that was tried, by the one taken
    (in more folds), and by each model if trained."""
    whitening: dict[str, Any] = field(default_factory=dict)
    seen: int = 0
    """Photos whose poses it learned from: the first of the store."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"model": str(self.model), "descriptors": str(self.descriptors)}

    def questions(self) -> HeldOut | None:
        """What photos found of fits that did not see their walks; None where the fit knows no poses."""
        file = self.model.parent / _QUESTIONS
        if not self.seen:
            return None
        with np.load(file) as kept:
            found = {name: kept[name] for name in _QUESTION_FIELDS}
            return HeldOut(method=str(kept["method"]), seen=self.seen, **found)

    def described(self, images: ImageSet) -> tuple[ImageSet, DescriptorStore, list[Rejected]]:
        """The photos that have a descriptor, in the order of the store, the store, and why the others have none."""
        store = DescriptorStore.open(self.descriptors)
        without = images.subset(~np.isin(images.names, store.names))
        lost = [Rejected(without.name(i), "no-descriptor", "") for i in range(len(without))]
        told = {r.image: r for r in (*listed(self.model.parent / _RAW), *listed(self.model.parent / _LATER))}
        return images.subset(_positions(images, store)), store, [told.get(r.image, r) for r in lost]


def choose_recipe(name: str, weights: str) -> Recipe:
    """The recipe to fit: the one that is named, the one that a weights file fits, or the best whose weights can be had.

    weights: a .safetensors file of a backbone, or empty.
    """
    if name:
        chosen = get(name)
        return replace(chosen, model=replace(chosen.model, weights=weights)) if weights else chosen
    reasons = []
    for candidate in (campus.RECOMMENDED, campus.SMALL):
        recipe = get(candidate)
        recipe = replace(recipe, model=replace(recipe.model, weights=weights)) if weights else recipe
        try:
            PlaceModel.build(recipe.model, 0)
        except InputError as error:
            reasons.append(str(error).partition(";")[0])
            continue
        why = f"{weights} fits its backbone" if weights else "its weights are there"
        rank = "recommended" if candidate == campus.RECOMMENDED else "small"
        lost = f"; not the recommended recipe: {reasons[0]}" if reasons and not weights else ""
        say(f"recipe {candidate} ({rank}, {recipe.model.backbone}): {why}{lost}")
        return recipe
    if weights:
        known = ", ".join(get(n).model.backbone for n in (campus.RECOMMENDED, campus.SMALL))
        raise InputError(f"{weights} fits no recipe for own photos ({known}); give --recipe NAME too, or --model MODEL")
    raise InputError(
        f"no pretrained weights can be had ({reasons[0]}); give --weights FILE.safetensors (a DINOv2 or MobileNetV2 "
        "backbone) or --model MODEL"
    )


def estimate_s(recipe: Recipe, count: int) -> float:
    """Seconds that a map of so many photos takes, without fine-tuning, by a few blank images through the network."""
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

    The whitening is learned from poses where there are walks to tell how well: chosen by cross-fitting over them. With
    `fine_tune`, the recipe is trained on the photos first, where `enough` of them overlap, and kept if that finds every
    fourth walk better; then only those walks are asked. Each photo passes the network at most 1.25 times otherwise.
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
        raw = embed(model, _drawn(images), run / _RAW)
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
    told = artifacts.read_json(run / _RESULT)
    return Fitted(**{**told, "model": run / _MODEL, "descriptors": run / _STORE})


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
    """Whitens the model by what the photos say; a note, how many photos' poses it learned from, and what was found."""
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
        note = f"{walks} walks are too few to learn from their poses: whitened to {dim} dims by variance"
        return note, 0, recalls
    np.savez(run / _QUESTIONS, **{name: getattr(held, name) for name in _QUESTION_FIELDS}, method=held.method)
    recalls = {**recalls, **{_named(rule): choice.tried.recall(i) for i, rule in enumerate(choice.tried.rules)}}
    return _told(choice.asked, dim), len(images), {**recalls, TAKEN: choice.asked.recall(-1)}


def _named(rule: WhiteningRule) -> str:
    if rule.labels == "none":
        return "pca" if rule.power == 1 else f"pca, power {rule.power:g}"
    return f"learned, a = {rule.total_share:g}, p = {rule.exponent:g}"


def _told(asked: CrossFit, dim: int) -> str:
    found, plain = asked.recall(-1)["1"], asked.recall(0)["1"]
    return (
        f"photos of walks that the fit did not see are found at rank 1: {found:.1f} % with the whitening taken "
        f"({_named(asked.rules[-1])}, {dim} dims), {plain:.1f} % with PCA whitening"
    )


# Descriptors


def _started(images: ImageSet, recipe: Recipe, run: Path, seed: int) -> PlaceModel:
    """The pretrained network, its clusters placed by some of the photos."""
    folder = run / "clusters"
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
        later = embed(model, images.subset(rest), run / _LATER)
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
    recipe, found = replace(recipe, whiten=affordable(recipe.whiten, len(known))), {}
    for name, tried in ((FROZEN, replace(recipe, steps=0)), (TUNED, recipe)):
        train(tried, run / name, data=Split(known, known), seed=seed, resources=resources)
        found[name] = _recall(PlaceModel.load(run / name / "model"), new, known)
    better = found[TUNED]["1"] > found[FROZEN]["1"]
    return PlaceModel.load(run / TUNED / "model") if better else None, found


def _cache(resources: Resources | None) -> Path:
    return (resources.cache if resources is not None else None) or machine.cache_folder() / "features"


def _frozen_features(images: ImageSet, recipe: Recipe, seed: int, resources: Resources | None) -> Cached | None:
    """What the frozen part gives for each photo, computed once; None where it is too large, or a photo is bad."""
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
