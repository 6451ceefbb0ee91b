"""Experiments on the campus photographs: recipes and tables.

Nothing is validated while training: the other part of the campus is kept for the end. Give the backbone's weights with
`--set model.weights=FILE` where timm cannot fetch them.

Every row is scored on `campus_west` as it is and whitened on `train`, the best also by consensus; all trained rows of a
table see the same number of images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from covis.evaluation.retrieval import SIZES
from covis.experiments.own_photos import GENTLE, own_photos
from covis.experiments.recipes import (
    TABLE4_LOSSES,
    RecipeVariant,
    at_methods_rate,
    binary_batches,
    cl,
    cl_graded,
    gcl,
    graded_batches,
)
from covis.experiments.tables import TABLES, Row, Table
from covis.labels import FovOverlap
from covis.losses import LOSSES, Contrastive, GeneralizedContrastive
from covis.models import ModelConfig
from covis.sampling import AllPairs, Tuples
from covis.training.recipe import RECIPES, Optimiser, Recipe

_MODELS = {
    "mobilenetv2": ModelConfig("mobilenetv2_100", "gem", (160, 160), "last1", "pretrained"),
    "resnet50": ModelConfig("resnet50", "gem", (160, 160), "last1", "pretrained"),
    "vgg16": ModelConfig("vgg16", "gem", (160, 160), "last1", "pretrained"),
    "dinov2": ModelConfig("vit_small_patch14_reg4_dinov2", "avg", (224, 224), "last1", "pretrained", blocks=8),
}
_STEPS = {"dinov2": 40}
"""Steps that two processor cores can afford; 125 (4,000 pairs) for the other models."""
_PLACES = {
    "mobilenetv2": replace(_MODELS["mobilenetv2"], pool="netvlad64", blocks=5, image_size=(224, 224)),
    "dinov2": replace(_MODELS["dinov2"], pool="netvlad32"),
}
"""Clusters of features of the middle blocks, which find places better than the last block does without training."""
DEPTHS = {
    model: replace(_PLACES[model], blocks=0, levels=levels, trainable="none")
    for model, levels in {"mobilenetv2": (4, 5), "dinov2": (6, 8, 10)}.items()
}
"""Clusters at several depths, each clustered separately: these find places best."""


def campus_base(model: str) -> Recipe:
    """What these recipes share; phones point anywhere, so labels reduce ψ of cameras that look at each other."""
    return Recipe(
        dataset="campus",
        model=_MODELS[model],
        labels=FovOverlap(radius_m=50.0, fov_deg=90.0, facing=True),
        optimiser=GENTLE if model == "dinov2" else Optimiser(),
        steps=_STEPS.get(model, 125),
    )


def rated(recipe: Recipe) -> Recipe:
    """At the method's rate where its optimiser is used."""
    return at_methods_rate(recipe) if recipe.optimiser.name == "sgd" else recipe


def _recipe(model: str, variant: RecipeVariant) -> Recipe:
    return rated(variant(campus_base(model)))


def all_pairs(model: str) -> Recipe:
    """GCL over every pair of a batch's images."""
    return replace(gcl(campus_base(model)), batches=AllPairs(size=64))


def places(model: str) -> Recipe:
    """Clusters of middle features, fitted to the photos and whitened; GCL over all pairs of sixteen places."""
    return replace(own_photos(), dataset="campus", split="train", model=_PLACES[model])


def depths(model: str) -> Recipe:
    """Clusters of features at several depths; training moves only the clusters."""
    return replace(places(model), model=DEPTHS[model])


_ALL: dict[str, Callable[[], Recipe]] = {
    "campus_mobilenetv2_gcl": partial(_recipe, "mobilenetv2", gcl),
    "campus_mobilenetv2_cl": partial(_recipe, "mobilenetv2", cl),
    "campus_mobilenetv2_gcl_binary": partial(_recipe, "mobilenetv2", binary_batches),
    "campus_mobilenetv2_cl_graded": partial(_recipe, "mobilenetv2", cl_graded),
    "campus_mobilenetv2_gcl_all_pairs": partial(all_pairs, "mobilenetv2"),
    "campus_resnet50_gcl": partial(_recipe, "resnet50", gcl),
    "campus_resnet50_cl": partial(_recipe, "resnet50", cl),
    "campus_resnet50_gcl_binary": partial(_recipe, "resnet50", binary_batches),
    "campus_resnet50_cl_graded": partial(_recipe, "resnet50", cl_graded),
    "campus_resnet50_gcl_all_pairs": partial(all_pairs, "resnet50"),
    "campus_vgg16_gcl": partial(_recipe, "vgg16", gcl),
    "campus_vgg16_cl": partial(_recipe, "vgg16", cl),
    "campus_vgg16_gcl_binary": partial(_recipe, "vgg16", binary_batches),
    "campus_vgg16_cl_graded": partial(_recipe, "vgg16", cl_graded),
    "campus_vgg16_gcl_all_pairs": partial(all_pairs, "vgg16"),
    "campus_dinov2_gcl": partial(_recipe, "dinov2", gcl),
    "campus_dinov2_cl": partial(_recipe, "dinov2", cl),
    "campus_dinov2_gcl_binary": partial(_recipe, "dinov2", binary_batches),
    "campus_dinov2_cl_graded": partial(_recipe, "dinov2", cl_graded),
    "campus_dinov2_gcl_all_pairs": partial(all_pairs, "dinov2"),
    "campus_mobilenetv2_places": partial(places, "mobilenetv2"),
    "campus_mobilenetv2_depths": partial(depths, "mobilenetv2"),
    "campus_dinov2_places": partial(places, "dinov2"),
    "campus_dinov2_depths": partial(depths, "dinov2"),
}
RECIPES.update(_ALL)


WEST = ("campus_west",)
_SEEDS = 3
_WHITENED = 256
CLUSTERS_WHITENED = 1024
_WIDE = 1.0
"""A margin above the distances that a pretrained network starts from."""
GRADED = "GCL, graded batches"
MIDDLE, DEPTH_ROWS = "middle features in clusters", "several depths in clusters"
"""One label per recipe: tables that are run into one folder share its runs."""


def both(label: str, recipe: Recipe, whiten: int = _WHITENED) -> tuple[Row, Row]:
    """A row as it is and one whitened on the training photos."""
    recipe = rated(recipe)
    plain = Row(label, recipe, WEST, fit="train")
    return plain, replace(plain, whiten=whiten)


def agreed(label: str, recipe: Recipe, whiten: int) -> tuple[Row, ...]:
    """`both`, and each of them re-ranked by the consensus of its results' poses."""
    plain, whitened = both(label, recipe, whiten)
    return plain, replace(plain, rerank="consensus"), whitened, replace(whitened, rerank="consensus")


@TABLES.register("campus_table1")
def campus_table1() -> Table:
    """Which labels compose the batches and which enter the loss, beside the frozen network."""
    start = campus_base("mobilenetv2")
    graded = rated(gcl(start))
    unlearned = replace(graded, optimiser=replace(graded.optimiser, learning_rate=1e-6))
    rows = (
        *both("frozen", replace(graded, steps=0)),
        *(replace(row, recipe=unlearned) for row in both("batch statistics alone", graded)),
        *both("CL, binary batches", cl(start)),
        *both("GCL, binary batches", binary_batches(gcl(start))),
        *both("CL, graded batches", cl_graded(start)),
        *both(GRADED, gcl(start)),
        *both("CL, binary batches, margin 1", replace(cl(start), loss=Contrastive(margin=_WIDE))),
        *both("GCL, graded batches, margin 1", replace(gcl(start), loss=GeneralizedContrastive(margin=_WIDE))),
    )
    return Table("Labels in batch and loss, on the campus", rows, _SEEDS)


@TABLES.register("campus_batches")
def batches() -> Table:
    """What composes a batch, and what grades its pairs."""
    start = gcl(campus_base("mobilenetv2"))
    overlap = start.labels
    assert isinstance(overlap, FovOverlap)
    others = replace(start, batches=replace(start.batches, partners="other_groups"))
    focused = all_pairs("mobilenetv2")
    focused = replace(focused, batches=replace(focused.batches, places=16, partners="other_groups", focus=True))
    rows = [*both(GRADED, start)]
    for strategy in "BCD":
        rows += both(f"GCL, strategy {strategy}", graded_batches(start, strategy))
    rows += both("GCL, partners of other walks", others)
    rows += both("GCL, all pairs", all_pairs("mobilenetv2"))
    rows += both("GCL, all pairs of 16 places, focused", focused)
    rows += both("GCL, iou labels", replace(start, labels=replace(overlap, measure="iou")))
    rows += both("GCL, labels without facing", replace(start, labels=replace(overlap, facing=False)))
    return Table("Batches and labels, on the campus", tuple(rows), _SEEDS)


@TABLES.register("campus_losses")
def losses() -> Table:
    """The losses of Table 4 at equal forward passes, and NetVLAD with mined triplets."""
    start = gcl(campus_base("mobilenetv2"))
    rows = [*both(GRADED, start)]
    for name in TABLE4_LOSSES:
        rows += both(name.replace("_", " "), _with_loss(name, start))
    netvlad = replace(_with_loss("triplet", start), model=replace(start.model, pool="netvlad16"))
    rows += both("NetVLAD 16, triplets, mined", netvlad)
    return Table("Losses at equal forward passes, on the campus", tuple(rows), _SEEDS)


@TABLES.register("campus_sizes")
def sizes() -> Table:
    """Whitening × dims, with MobileNetV2."""
    graded = both(GRADED, gcl(campus_base("mobilenetv2")))[0]
    rows = [*_sizes(graded, 1280), *_sizes(_depths_as_they_come("mobilenetv2"), 2048)]
    return Table("Whitening to fewer dims, MobileNetV2, on the campus", tuple(rows), _SEEDS)


@TABLES.register("campus_dinov2_sizes")
def dinov2_sizes() -> Table:
    """Whitening × dims, with DINOv2 ViT-S."""
    rows = _sizes(_depths_as_they_come("dinov2"), 2048)
    return Table("Whitening to fewer dims, DINOv2 ViT-S, on the campus", tuple(rows), _SEEDS)


@TABLES.register("campus_places")
def best_of_mobilenet() -> Table:
    """Clusters of middle features, frozen and trained, with MobileNetV2."""
    return Table("Middle features in clusters, MobileNetV2, on the campus", tuple(_places("mobilenetv2")), _SEEDS)


@TABLES.register("campus_dinov2")
def best_of_dinov2() -> Table:
    """DINOv2 ViT-S: clusters of middle features, and poolings of its first eight blocks trained with GCL."""
    start = gcl(campus_base("dinov2"))
    rows = [*_places("dinov2"), *both("average, frozen", replace(start, steps=0))]
    for pool, name in (("avg", "average"), ("gem", "GeM"), ("transport16", "optimal transport")):
        rows += both(f"{name}, GCL", replace(start, model=replace(start.model, pool=pool)))
    return Table("DINOv2 ViT-S, on the campus", tuple(rows), _SEEDS)


def _places(model: str) -> list[Row]:
    rows: list[Row] = []
    for label, recipe in ((MIDDLE, places(model)), (DEPTH_ROWS, depths(model))):
        trained = replace(recipe, whiten=0)
        rows += agreed(f"{label}, frozen", replace(trained, steps=0), CLUSTERS_WHITENED)
        rows += both(f"{label}, GCL", trained, CLUSTERS_WHITENED)
    return rows


def _depths_as_they_come(model: str) -> Row:
    return both(f"{DEPTH_ROWS}, frozen", replace(depths(model), whiten=0, steps=0))[0]


def _sizes(row: Row, most: int) -> list[Row]:
    """The row as it is and whitened to every usual size up to `most`."""
    usual = [size for size in SIZES if size < most]
    return [row, *(replace(row, whiten=size) for size in (*usual, most))]


def _with_loss(name: str, start: Recipe) -> Recipe:
    loss = LOSSES[name]()
    if loss.shape != "tuples":
        return replace(start, loss=loss)
    return replace(start, loss=loss, batches=Tuples(8, negatives=6, mined=True, refresh=25, pool=400))
