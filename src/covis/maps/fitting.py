"""A model for one's own photos: fitted to them, and trained on them where that finds held-out photos better."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covis import machine
from covis.datasets.photos import held_out_walks
from covis.describing.describers import ModelDescriber, evaluate_model
from covis.describing.features import Cached, open_features, share_features
from covis.descriptors import DescriptorStore
from covis.errors import InputError
from covis.evaluation import Benchmark
from covis.evaluation.protocols.rules import NEAR_ALIKE, NEAR_ALIKE_RULE
from covis.experiments import get, photos
from covis.experiments.tables import FrozenOnce
from covis.graph import POSITIVE
from covis.images import ImageSet, Split
from covis.models import PlaceModel
from covis.progress import say
from covis.training.recipe import Recipe
from covis.training.run import Resources, start_pooling, train
from covis.training.validation import describe_all
from covis.whitening import Whitening

FROZEN, TUNED = "frozen", "fine-tuned"
"""Folders of the two models that are compared."""
OVERHEAD_S = 30.0
"""What a map takes however few its photos are, most of it for the ONNX file."""
_PROBE = 4
ENOUGH = 300
"""Photos that share half of their view with one of another group, from which on training is tried."""
SAMPLES_PER_DIM = 2
"""A whitening needs at least so many photos per dimension."""


@dataclass(frozen=True)
class Fitted:
    """What became of a user's photos."""

    model: Path
    trained: bool
    photos: int
    overlapping: int
    note: str
    held_out: dict[str, dict[str, float]]
    """Recall@k of held-out photos in percent: frozen and fine-tuned."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"model": str(self.model)}


def choose_recipe(name: str, weights: str) -> Recipe:
    """The recipe to fit: the one that is named, the one that a weights file fits, or the best whose weights can be had.

    weights: a .safetensors file of a backbone, or empty.
    """
    if name:
        chosen = get(name)
        return replace(chosen, model=replace(chosen.model, weights=weights)) if weights else chosen
    reasons = []
    for candidate in (photos.RECOMMENDED, photos.SMALL):
        recipe = get(candidate)
        recipe = replace(recipe, model=replace(recipe.model, weights=weights)) if weights else recipe
        try:
            PlaceModel.build(recipe.model, 0)
        except InputError as error:
            reasons.append(str(error).partition(";")[0])
            continue
        why = f"{weights} fits its backbone" if weights else "its weights are there"
        rank = "recommended" if candidate == photos.RECOMMENDED else "small"
        lost = f"; not the recommended recipe: {reasons[0]}" if reasons and not weights else ""
        say(f"recipe {candidate} ({rank}, {recipe.model.backbone}): {why}{lost}")
        return recipe
    if weights:
        known = ", ".join(get(n).model.backbone for n in (photos.RECOMMENDED, photos.SMALL))
        raise InputError(f"{weights} fits no recipe for own photos ({known}); give --recipe NAME too, or --model MODEL")
    raise InputError(
        f"no pretrained weights can be had ({reasons[0]}); give --weights FILE.safetensors (a DINOv2 or MobileNetV2 "
        "backbone), or --model MODEL"
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
    enough: int = ENOUGH,
    seed: int = 0,
    resources: Resources | None = None,
) -> Fitted:
    """Fits `recipe`'s pooling and whitening to the photos; trains too where enough of them overlap and it helps.

    One walk in four is held out to tell: whichever model finds its photos better is taken. The same call resumes. Where
    the frozen part of the network is worth caching, each photo passes it once for all of this (and for `describe_fitted`).
    """
    run = Path(run)
    count = _overlapping(images, recipe)
    frozen = _frozen_features(images, recipe, seed, resources)
    if count < enough:
        _fit_alone(images, recipe, run / FROZEN / "model", seed, frozen)
        note = (
            f"{count} of {len(images)} photos share half of their view with a photo of another group, {enough} are "
            "needed to fine-tune: keeping the frozen model, fitted to the photos"
        )
        say(note)
        return Fitted(run / FROZEN / "model", False, len(images), count, note, {})
    new, known = held_out_walks(images)
    if frozen is not None:
        for part in (new, known):
            share_features(frozen, images, np.flatnonzero(np.isin(images.names, part.names)), _cache(resources))
    whiten = _affordable(recipe.whiten, len(known))
    recipe, found = replace(recipe, whiten=whiten), {}
    for name, tried in ((FROZEN, replace(recipe, steps=0)), (TUNED, recipe)):
        train(tried, run / name, data=Split(known, known), seed=seed, resources=resources)
        found[name] = _recall(PlaceModel.load(run / name / "model"), new, known)
    better = found[TUNED]["1"] > found[FROZEN]["1"]
    told = ", ".join(f"{name} {recall['1']:.1f} %" for name, recall in found.items())
    note = f"held-out photos found at rank 1: {told}: keeping the {TUNED if better else FROZEN} model"
    say(note)
    return Fitted(run / (TUNED if better else FROZEN) / "model", better, len(images), count, note, found)


def describe_fitted(model: PlaceModel, images: ImageSet, path: Path) -> DescriptorStore | None:
    """Descriptors of the photos by the features that fitting has cached; None where some photo cannot be read."""
    vectors, lost = FrozenOnce(model).describe(images)
    if lost.any():
        return None
    shutil.rmtree(path, ignore_errors=True)
    store = DescriptorStore.create(path, model.fingerprint(), model.dim)
    return store.append(images.names, vectors, model=model.fingerprint())


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


def _fit_alone(images: ImageSet, recipe: Recipe, path: Path, seed: int, frozen: Cached | None) -> None:
    """The frozen network, pooling and whitening fitted to photos that are too few to draw batches from."""
    if path.exists():
        return
    model = PlaceModel.build(recipe.model, seed)
    start_pooling(model, images, seed, 0, frozen)
    dims = _affordable(recipe.whiten, len(images))
    if dims:
        if frozen is None:
            vectors = ModelDescriber(model).describe(images)[0]
        else:
            vectors = describe_all(model, frozen, 0, len(images))
        model.whiten(Whitening.fit(vectors, dims, facts={"fit": "map"}))
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path, {"seed": seed})


def _overlapping(images: ImageSet, recipe: Recipe) -> int:
    """Photos with a partner of another group (any other photo, where there is one group) that shares half the view."""
    labels = recipe.labels(images, images)
    shares = labels.psi >= POSITIVE
    if len(images.group_names) > 1:
        shares &= images.group[labels.rows] != images.group[labels.indices]
    return len(np.unique(labels.rows[shares]))


def _affordable(whiten: int, photos: int) -> int:
    """The whitening's dims, halved until the photos suffice; 0 (none) below 32."""
    while whiten > photos // SAMPLES_PER_DIM:
        whiten //= 2
    return whiten if whiten >= 32 else 0


def _recall(model: PlaceModel, queries: ImageSet, database: ImageSet) -> dict[str, float]:
    benchmark = Benchmark("held_out", queries, database, NEAR_ALIKE(queries, database), NEAR_ALIKE_RULE)
    return {str(k): float(v) for k, v in evaluate_model(FrozenOnce(model), benchmark).recall.items()}
