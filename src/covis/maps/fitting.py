"""A model for one's own photos: fitted to them, and trained on them where that finds held-out photos better."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covis.datasets.photos import held_out_walks
from covis.describing.describers import ModelDescriber, evaluate_model
from covis.evaluation import Benchmark
from covis.evaluation.protocols.rules import NEAR_ALIKE, NEAR_ALIKE_RULE
from covis.graph import POSITIVE
from covis.images import ImageSet, Split
from covis.models import PlaceModel
from covis.progress import say
from covis.training.recipe import Recipe
from covis.training.run import Resources, start_pooling, train
from covis.whitening import Whitening

ENOUGH = 300
"""Photos that share half of their view with one of another group, from which on training is tried."""
SAMPLES_PER_DIM = 2
"""A whitening needs at least so many photos a dimension."""


@dataclass(frozen=True)
class Fitted:
    """What became of a user's photos."""

    model: Path
    trained: bool
    photos: int
    overlapping: int
    note: str
    held_out: dict[str, dict[str, float]]
    """Recall@k of held-out photos in percent: as it comes, and trained."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"model": str(self.model)}


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

    One walk in four is held out to tell: whichever model finds its photos better is taken. The same call resumes.
    """
    run = Path(run)
    count = _overlapping(images, recipe)
    if count < enough:
        _fit_alone(images, recipe, run / "as-it-comes" / "model", seed)
        note = (
            f"{count} of {len(images)} photos share half of their view with a photo of another group, {enough} are "
            "needed to train: the network is used as it comes, fitted to the photos"
        )
        say(note)
        return Fitted(run / "as-it-comes" / "model", False, len(images), count, note, {})
    new, known = held_out_walks(images)
    whiten = _affordable(recipe.whiten, len(known))
    recipe, found = replace(recipe, whiten=whiten), {}
    for name, tried in (("as-it-comes", replace(recipe, steps=0)), ("trained", recipe)):
        train(tried, run / name, data=Split(known, known), seed=seed, resources=resources)
        found[name] = _recall(PlaceModel.load(run / name / "model"), new, known)
    better = found["trained"]["1"] > found["as-it-comes"]["1"]
    told = ", ".join(f"{name} {recall['1']:.1f} %" for name, recall in found.items())
    note = f"held-out photos found at rank 1: {told}; {'trained' if better else 'as it comes'} is taken"
    say(note)
    chosen = run / ("trained" if better else "as-it-comes") / "model"
    return Fitted(chosen, better, len(images), count, note, found)


def _fit_alone(images: ImageSet, recipe: Recipe, path: Path, seed: int) -> None:
    """The network as it comes, pooling and whitening fitted to photos that are too few to draw batches from."""
    if path.exists():
        return
    model = PlaceModel.build(recipe.model, seed)
    start_pooling(model, images, seed, workers=0)
    dims = _affordable(recipe.whiten, len(images))
    if dims:
        model.whiten(Whitening.fit(ModelDescriber(model).describe(images)[0], dims, facts={"fit": "map"}))
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
    return {str(k): float(v) for k, v in evaluate_model(model, benchmark).recall.items()}
