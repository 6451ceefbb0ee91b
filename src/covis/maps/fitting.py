"""A model for the user's own photos: clusters and whitening fitted to them, and measured on walks that no fit saw.

Poses help where new photos are taken at the same places; the whitening learns from them (`covis.whitening`). Gradient
training on the photos is an option; it is kept where it finds held-out walks better.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from covis.core import artifacts, machine
from covis.core.arrays import Bools
from covis.core.errors import InputError
from covis.core.progress import say
from covis.datasets.photos import held_out_walks
from covis.describing.describers import evaluate_model
from covis.describing.embedding import embed
from covis.describing.features import Cached, open_features, share_features
from covis.descriptors import DescriptorStore
from covis.evaluation import Benchmark
from covis.evaluation.relevance import NEAR_ALIKE, NEAR_ALIKE_RULE
from covis.evaluation.whitening_fits import affordable
from covis.experiments import get, own_photos
from covis.experiments.running import FrozenOnce
from covis.graph import POSITIVE
from covis.images import ImageSet, Split
from covis.maps.elsewhere import Bank, bank_images
from covis.maps.held_out import HeldOut
from covis.maps.photos import listed
from covis.maps.whitening import HeldOutSearch, choose_whitening, shared_dims
from covis.models import PlaceModel, load_fast
from covis.reading.decoding import Rejected
from covis.training.pooling_start import INITIAL_IMAGES, start_pooling
from covis.training.recipe import Recipe, describe_recipe
from covis.training.run import Resources, train
from covis.whitening import PCA, WhiteningRule, moments

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
FIT_KIND = "fit"
_RESULT, _QUESTIONS, _BANK = "fitted.json", "held_out.npz", "elsewhere.npz"
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
        return HeldOut.load(self.model.parent / _QUESTIONS) if self.seen else None

    def bank(self) -> Bank:
        """Pictures that are not of the map's places, as the model describes them."""
        with np.load(self.model.parent / _BANK) as kept:
            return Bank(kept["descriptors"], kept["family"])

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
    errors: list[InputError] = []
    for candidate in (own_photos.RECOMMENDED, own_photos.SMALL):
        recipe = get(candidate)
        recipe = replace(recipe, model=replace(recipe.model, weights=weights)) if weights else recipe
        try:
            PlaceModel.build(recipe.model, 0)
        except InputError as error:
            errors.append(error)
            continue
        why = f"{weights} fits its backbone" if weights else "its weights are there"
        rank = "recommended" if candidate == own_photos.RECOMMENDED else "small"
        lost = f"; not the recommended recipe: {str(errors[0]).partition(';')[0]}" if errors and not weights else ""
        say(f"recipe {candidate} ({rank}, {recipe.model.backbone}): {why}{lost}")
        return recipe
    if weights:
        known = ", ".join(get(n).model.backbone for n in (own_photos.RECOMMENDED, own_photos.SMALL))
        raise InputError(f"{weights} fits no recipe for own photos ({known}); give --recipe NAME too, or --model MODEL")
    raise errors[0]


def estimate_s(recipe: Recipe, count: int) -> float:
    """Seconds that a map of `count` photos takes, without fine-tuning, by a few blank images through the network."""
    model = PlaceModel.build(replace(recipe.model, weights=None), 0).eval()
    pixels = torch.zeros((_PROBE, 3, *model.config.image_size), dtype=torch.uint8)
    model.prefix(model.normalise(pixels[:1]))
    start = time.perf_counter()
    model.prefix(model.normalise(pixels))
    return OVERHEAD_S + 1.2 * count * (time.perf_counter() - start) / _PROBE


def fit_config(
    images: ImageSet, recipe: Recipe, fine_tune: bool, elsewhere: Path | None, seed: int = 0
) -> dict[str, Any]:
    """What decides a fit."""
    config = {"recipe": describe_recipe(recipe), "images": images.fingerprint(), "seed": seed, "fine_tune": fine_tune}
    return config | ({} if elsewhere is None else {"elsewhere": str(elsewhere.resolve())})


def fit_model(
    images: ImageSet,
    recipe: Recipe,
    run: Path | str,
    *,
    fine_tune: bool = False,
    enough: int = ENOUGH,
    seed: int = 0,
    resources: Resources | None = None,
    elsewhere: Path | None = None,
) -> Fitted:
    """Fits `recipe`'s pooling and a whitening to the photos, in the folder `run`; the same call resumes.

    The whitening is learned from poses if there are enough walks to choose it by cross-fitting over them. With
    `fine_tune`, the recipe is trained on the photos first, if `enough` of them overlap, and kept if that finds every
    fourth walk better; then only those walks are queries. Otherwise each photo passes the network at most 1.25 times.
    elsewhere: a folder of photos of other places, beside those that covis draws itself.
    """
    run = Path(run)
    with artifacts.claim(run, FIT_KIND, fit_config(images, recipe, fine_tune, elsewhere, seed)):
        if (run / _RESULT).is_file():
            return _read_result(run)
        overlapping = _overlapping(images, recipe)
        tuned, recalls = None, dict[str, dict[str, float]]()
        if fine_tune and overlapping >= enough:
            tuned, recalls = _fine_tune(images, recipe, run / TUNED, seed, resources)
        model = _place_clusters(images, recipe, run, seed) if tuned is None else tuned.whiten(None)
        drawn = _fitted_part(images)
        fast = model if tuned is not None else load_fast(run / _CLUSTERS, len(drawn), model=model, keep=run)
        raw = embed(fast, drawn, run / _RAW)
        known = images.subset(_positions(images, raw))
        asked = None if tuned is None else np.isin(known.names, held_out_walks(images).queries.names)
        pictures, family = bank_images(elsewhere)
        bank = Bank(embed(fast, pictures), family)
        note, seen, recalls = _whiten(model, known, raw, recipe, run, asked, recalls, bank)
        white = bank.descriptors if model.whitening is None else model.whitening(bank.descriptors)
        np.savez(run / _BANK, descriptors=white, family=family)
        model.save(run / _MODEL, {**model.card, "recipe": describe_recipe(recipe), "seed": seed}, replace=True)
        _describe_all(model, images, known, raw, run)
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
    return _read_result(run)


def _read_result(run: Path) -> Fitted:
    record = artifacts.read_json(run / _RESULT)
    return Fitted(**{**record, "model": run / _MODEL, "descriptors": run / _STORE})


def _whiten(
    model: PlaceModel,
    images: ImageSet,
    raw: DescriptorStore,
    recipe: Recipe,
    run: Path,
    asked: Bools | None,
    recalls: dict[str, dict[str, float]],
    bank: Bank,
) -> tuple[str, int, dict[str, dict[str, float]]]:
    """Whitens the model; returns a note, the number of photos whose poses it learned from, and recalls."""
    dim = affordable(recipe.whiten, len(images))
    if not dim:
        return f"{len(images)} photos are too few to whiten: the pretrained network is used unchanged", 0, recalls
    with moments(raw, shared_dims(dim, raw), fewer=True) as fitted:
        dim = min(dim, len(fitted.variances))
        choice = choose_whitening(images, fitted, dim, recipe.labels, bank=bank)
    model.whiten(choice.whitening.halved())
    held = choice.held_out(asked)
    if choice.tried is None or choice.asked is None or held is None:
        walks = len(np.unique(images.group))
        note = f"{walks} walks are too few to learn from their poses; the model is adapted without them"
        return note, 0, recalls
    held.save(run / _QUESTIONS)
    recalls = {**recalls, **{_named(rule): choice.tried.recall(i) for i, rule in enumerate(choice.tried.rules)}}
    return _recall_note(choice.tried, choice.asked), len(images), {**recalls, TAKEN: choice.asked.recall(0)}


def _named(rule: WhiteningRule) -> str:
    if rule.labels == "none":
        return "pca" if rule.power == 1 else f"pca, power {rule.power:g}"
    return f"learned, a = {rule.total_share:g}, p = {rule.exponent:g}"


def _recall_note(tried: HeldOutSearch, asked: HeldOutSearch) -> str:
    plain, best = tried.recall(tried.rules.index(PCA))["1"], tried.recall(tried.best)["1"]
    return (
        f"adapted the model to your photos: {asked.recall(0)['1']:.1f} % of the photos of walks that it did not see are "
        f"found first (of the {int(tried.answerable.sum())} that it was chosen on {best:.1f} %, {plain:.1f} % without)"
    )


def _place_clusters(images: ImageSet, recipe: Recipe, run: Path, seed: int) -> PlaceModel:
    """The pretrained network, its clusters placed by some of the photos."""
    folder = run / _CLUSTERS
    if (folder / artifacts.MANIFEST).is_file():
        return PlaceModel.load(folder)
    model = PlaceModel.build(recipe.model, seed)
    most = min(INITIAL_IMAGES, max(20, int(_CLUSTER_SHARE * len(images))))
    start_pooling(model, images, seed, workers=0, most=most)
    model.save(folder, replace=True)
    return model


def _fitted_part(images: ImageSet) -> ImageSet:
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


def _describe_all(model: PlaceModel, images: ImageSet, known: ImageSet, raw: DescriptorStore, run: Path) -> None:
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
    rest = ~np.isin(images.names, _fitted_part(images).names)
    if rest.any():
        fast = load_fast(run / _MODEL, int(rest.sum()), model=model, keep=run)
        later = embed(fast, images.subset(rest), run / _LATER)
        store.append(later.names, np.asarray(later[:], np.float32), model=store.model)


def _fine_tune(
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
