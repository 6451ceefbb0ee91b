"""The method's recipes: what its tables vary, the simulated town, MSLS, and the small sets TB-Places and 7Scenes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from covis.datasets import DATASETS
from covis.labels import FovOverlap, Radius
from covis.losses import LOSSES, Contrastive, GeneralizedContrastive
from covis.models import ModelConfig
from covis.poses import PLACE_M, PLACE_TURN_DEG
from covis.sampling import Tuples
from covis.training.recipe import RECIPES, Optimiser, Recipe, read_recipe

RecipeVariant = Callable[[Recipe], Recipe]
GCL_RATE, CL_RATE = 0.1, 0.01
"""Learning rates of the method for the generalised and for the plain contrastive loss."""
SAME_PLACE = Radius(PLACE_M, max_angle_deg=PLACE_TURN_DEG)
"""The yes/no label of the method's baseline."""


def get(name: str) -> Recipe:
    """The recipe of that name, or of a file (.toml, .json); the error for an unknown name suggests the nearest.

    >>> get("town_quick").dataset
    'town'
    """
    return read_recipe(Path(name)) if name.endswith((".toml", ".json")) else RECIPES[name]()


def gcl(recipe: Recipe) -> Recipe:
    """Generalised contrastive loss with graded batches (strategy A)."""
    return replace(recipe, loss=GeneralizedContrastive())


def cl(recipe: Recipe, same_place: Radius | None = SAME_PLACE) -> Recipe:
    """The baseline: contrastive loss, labels and batches of yes and no.

    Without `same_place`, a pair is of one place where its graded label is positive.
    """
    labels = recipe.labels if same_place is None else same_place
    return replace(recipe, loss=Contrastive(), labels=labels, batches=replace(recipe.batches, strategy="binary"))


def cl_graded(recipe: Recipe) -> Recipe:
    """Contrastive loss, graded batches: a pair is of one place where its graded label is positive."""
    return replace(recipe, loss=Contrastive())


def at_methods_rate(recipe: Recipe) -> Recipe:
    """The method's learning rate for the recipe's loss: 0.1 for the generalised contrastive one, 0.01 for the plain."""
    rate = GCL_RATE if isinstance(recipe.loss, GeneralizedContrastive) else CL_RATE
    return replace(recipe, optimiser=replace(recipe.optimiser, learning_rate=rate))


def binary_batches(recipe: Recipe, same_place: Radius = SAME_PLACE) -> Recipe:
    """Half of each batch the same place, half not; the loss still sees the recipe's graded labels."""
    return replace(recipe, batches=replace(recipe.batches, strategy="binary", composed_by=same_place))


def graded_batches(recipe: Recipe, strategy: str = "A") -> Recipe:
    """Batches composed by the graded labels, as strategy A, B, C or D says."""
    return replace(recipe, batches=replace(recipe.batches, strategy=strategy, composed_by=None))


# The method's experiments on small sets: TB-Places (a garden) and 7Scenes (rooms).
#
# 30 epochs, the rate divided by ten after every 5, average pooling.


_SMALL_EPOCHS = 30


BACKBONES = {
    "vgg16": "vgg16.tv_in1k",
    "resnet18": "resnet18.tv_in1k",
    "resnet34": "resnet34.tv_in1k",
    "resnet50": "resnet50.tv_in1k",
    "resnet152": "resnet152.tv_in1k",
    "resnext": "resnext101_32x8d.fb_wsl_ig1b_ft_in1k",
    "densenet161": "densenet161.tv_in1k",
}
"""Names in the tables → names and weights in timm: torchvision's first ones, as the paper's code loads them.

The tables' ResNeXt was trained on Instagram images first.
"""


def tb_places_recipe(backbone: str) -> Recipe:
    """All pairs of W17, fields of view of 3.5 m and 90°."""
    return Recipe(
        dataset="tb_places",
        split="w17_train",
        model=_small_model(backbone, (224, 224)),
        labels=FovOverlap(radius_m=3.5, fov_deg=90.0),
        optimiser=Optimiser(decay_every=5 / _SMALL_EPOCHS),
        epochs=_SMALL_EPOCHS,
        validation="tb_places_w17_w18",
    )


def seven_scenes_recipe(backbone: str, scene: str) -> Recipe:
    """One scene, labelled by the surface that two images share."""
    return Recipe(
        dataset="7scenes",
        split=f"{scene}/train",
        model=_small_model(backbone, (240, 320)),
        labels=DATASETS["7scenes"].rule,
        optimiser=Optimiser(decay_every=5 / _SMALL_EPOCHS),
        epochs=_SMALL_EPOCHS,
        validation=f"7scenes_{scene}",
    )


def _small_model(backbone: str, image_size: tuple[int, int]) -> ModelConfig:
    """The networks of the indoor and garden tables; their DenseNet ends with its norm, without a ReLU."""
    ending = backbone != "densenet161"
    return ModelConfig(BACKBONES[backbone], "avg", image_size, "last2", "pretrained", final_norm=ending)


_cl_by_label = partial(cl, same_place=None)
"""The baseline: a pair is of one place where its graded label is positive."""


def _small(variant: RecipeVariant, backbone: str, scene: str = "") -> Recipe:
    return at_methods_rate(variant(seven_scenes_recipe(backbone, scene) if scene else tb_places_recipe(backbone)))


_INDOOR: dict[str, Callable[[], Recipe]] = {
    "tb_places_resnet18_gcl": partial(_small, gcl, "resnet18"),
    "tb_places_resnet34_gcl": partial(_small, gcl, "resnet34"),
    "tb_places_densenet161_gcl": partial(_small, gcl, "densenet161"),
    "tb_places_resnet18_cl": partial(_small, _cl_by_label, "resnet18"),
    "tb_places_resnet34_cl": partial(_small, _cl_by_label, "resnet34"),
    "tb_places_densenet161_cl": partial(_small, _cl_by_label, "densenet161"),
    "7scenes_chess_resnet18_gcl": partial(_small, gcl, "resnet18", "chess"),
    "7scenes_chess_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "chess"),
    "7scenes_chess_resnet34_gcl": partial(_small, gcl, "resnet34", "chess"),
    "7scenes_chess_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "chess"),
    "7scenes_fire_resnet18_gcl": partial(_small, gcl, "resnet18", "fire"),
    "7scenes_fire_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "fire"),
    "7scenes_fire_resnet34_gcl": partial(_small, gcl, "resnet34", "fire"),
    "7scenes_fire_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "fire"),
    "7scenes_heads_resnet18_gcl": partial(_small, gcl, "resnet18", "heads"),
    "7scenes_heads_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "heads"),
    "7scenes_heads_resnet34_gcl": partial(_small, gcl, "resnet34", "heads"),
    "7scenes_heads_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "heads"),
    "7scenes_office_resnet18_gcl": partial(_small, gcl, "resnet18", "office"),
    "7scenes_office_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "office"),
    "7scenes_office_resnet34_gcl": partial(_small, gcl, "resnet34", "office"),
    "7scenes_office_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "office"),
    "7scenes_pumpkin_resnet18_gcl": partial(_small, gcl, "resnet18", "pumpkin"),
    "7scenes_pumpkin_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "pumpkin"),
    "7scenes_pumpkin_resnet34_gcl": partial(_small, gcl, "resnet34", "pumpkin"),
    "7scenes_pumpkin_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "pumpkin"),
    "7scenes_redkitchen_resnet18_gcl": partial(_small, gcl, "resnet18", "redkitchen"),
    "7scenes_redkitchen_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "redkitchen"),
    "7scenes_redkitchen_resnet34_gcl": partial(_small, gcl, "resnet34", "redkitchen"),
    "7scenes_redkitchen_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "redkitchen"),
    "7scenes_stairs_resnet18_gcl": partial(_small, gcl, "resnet18", "stairs"),
    "7scenes_stairs_resnet18_cl": partial(_small, _cl_by_label, "resnet18", "stairs"),
    "7scenes_stairs_resnet34_gcl": partial(_small, gcl, "resnet34", "stairs"),
    "7scenes_stairs_resnet34_cl": partial(_small, _cl_by_label, "resnet34", "stairs"),
}
RECIPES.update(_INDOOR)


# Recipes on the simulated town: the small network from scratch, everything trained.
#
# Streets are driven in both directions, so many cameras look at each other: labels reduce their ψ. Houses block the
# view: fields of view reach 30 m, which did better on the validation streets than 50 m or 80 m. Networks start from
# scratch, where 500 steps of SGD do worse than AdamW: at rates of 0.5, 2 and 6 with momentum they found 32, 39 and 45 %
# of the validation streets' queries at rank 1, and seeds differed by a factor of two; AdamW found 54 %.


@RECIPES.register("town_gcl")
def town_gcl() -> Recipe:
    """Generalised contrastive loss with graded batches."""
    return gcl(town_base())


@RECIPES.register("town_cl")
def town_cl() -> Recipe:
    """The baseline: contrastive loss with yes/no batches."""
    return cl(town_base())


@RECIPES.register("town_gcl_binary")
def town_gcl_binary() -> Recipe:
    """Generalised contrastive loss, yes/no batches."""
    return binary_batches(gcl(town_base()))


@RECIPES.register("town_cl_graded")
def town_cl_graded() -> Recipe:
    """Contrastive loss, graded batches."""
    return cl_graded(town_base())


@RECIPES.register("town_quick")
def town_quick() -> Recipe:
    """`town_gcl` in about a minute on two cores."""
    return replace(town_gcl(), validations=1)


def town_base() -> Recipe:
    """What these recipes share."""
    return Recipe(
        dataset="town",
        model=ModelConfig("tiny", "gem", image_size=(48, 64), trainable="all"),
        labels=FovOverlap(radius_m=30.0, fov_deg=90.0, facing=True),
        optimiser=Optimiser("adamw", learning_rate=0.005, schedule="cosine", warmup=0.05),
        steps=500,
        validation="town_val",
        validations=2,
    )


# The method's experiments on Mapillary Street-Level Sequences (Tables 1–4 and 8–10).
#
# One pass over about 500,000 pairs, SGD without momentum, the rate divided by ten after half of them; ImageNet weights,
# the last two convolutional blocks trained, images of 480×640, batches of 32 pairs.


NETVLAD_EPOCHS = {"netvlad16": 30, "netvlad64": 10}
"""Epochs of the published triplet baselines."""
TABLE4_LOSSES = (
    "triplet", "quadruplet", "lazy_triplet", "lazy_quadruplet", "triplet_huber", "log_ratio", "multi_similarity",
    "soft_contrastive",
)  # fmt: skip


_IN_CITY = replace(SAME_PLACE, within_group=True)


def _cl_in_city(recipe: Recipe) -> Recipe:
    """The baseline, with yes/no labels inside each city."""
    return cl(recipe, _IN_CITY)


def msls_base(backbone: str = "vgg16", pool: str = "gem") -> Recipe:
    """What all these experiments share; `backbone` is a name in `BACKBONES`."""
    return Recipe(
        dataset="msls",
        model=ModelConfig(BACKBONES[backbone], pool, (480, 640), "last2", "pretrained"),
        labels=FovOverlap(radius_m=50.0, fov_deg=90.0, within_group=True),
        validation="msls_val",
    )


def other_loss(name: str) -> Recipe:
    """A row of Table 4: VGG16 with NetVLAD, tuples with mined negatives where the loss takes tuples."""
    loss = LOSSES[name]()
    recipe = replace(
        msls_base("vgg16", "netvlad64"), optimiser=Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001)
    )
    if loss.shape != "tuples":
        return replace(recipe, loss=loss)
    return replace(recipe, loss=loss, batches=Tuples(4, negatives=5, mined=True))


def netvlad_triplet(pool: str) -> Recipe:
    """The baseline that the method beats on cost (Table 5): NetVLAD, triplet loss, cached hard negatives."""
    epochs = NETVLAD_EPOCHS[pool]
    return replace(
        msls_base("vgg16", pool),
        labels=Radius(25.0, within_group=True),
        loss=LOSSES["triplet"](),
        batches=Tuples(4, negatives=10, mined=True),
        optimiser=Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001, decay=0.5, decay_every=5 / epochs),
        epochs=epochs,
    )


def _msls(variant: RecipeVariant, backbone: str, pool: str = "gem") -> Recipe:
    return at_methods_rate(variant(msls_base(backbone, pool)))


def _msls_strategy(backbone: str, strategy: str) -> Recipe:
    return at_methods_rate(graded_batches(gcl(msls_base(backbone)), strategy))


_MSLS: dict[str, Callable[[], Recipe]] = {
    "msls_vgg16_gem_gcl": partial(_msls, gcl, "vgg16", "gem"),
    "msls_vgg16_gem_cl": partial(_msls, _cl_in_city, "vgg16", "gem"),
    "msls_vgg16_avg_gcl": partial(_msls, gcl, "vgg16", "avg"),
    "msls_vgg16_avg_cl": partial(_msls, _cl_in_city, "vgg16", "avg"),
    "msls_vgg16_gem_gcl_b": partial(_msls_strategy, "vgg16", "B"),
    "msls_vgg16_gem_gcl_c": partial(_msls_strategy, "vgg16", "C"),
    "msls_vgg16_gem_gcl_d": partial(_msls_strategy, "vgg16", "D"),
    "msls_resnet50_gem_gcl": partial(_msls, gcl, "resnet50", "gem"),
    "msls_resnet50_gem_cl": partial(_msls, _cl_in_city, "resnet50", "gem"),
    "msls_resnet50_avg_gcl": partial(_msls, gcl, "resnet50", "avg"),
    "msls_resnet50_avg_cl": partial(_msls, _cl_in_city, "resnet50", "avg"),
    "msls_resnet50_gem_gcl_b": partial(_msls_strategy, "resnet50", "B"),
    "msls_resnet50_gem_gcl_c": partial(_msls_strategy, "resnet50", "C"),
    "msls_resnet50_gem_gcl_d": partial(_msls_strategy, "resnet50", "D"),
    "msls_resnet152_gem_gcl": partial(_msls, gcl, "resnet152", "gem"),
    "msls_resnet152_gem_cl": partial(_msls, _cl_in_city, "resnet152", "gem"),
    "msls_resnet152_avg_gcl": partial(_msls, gcl, "resnet152", "avg"),
    "msls_resnet152_avg_cl": partial(_msls, _cl_in_city, "resnet152", "avg"),
    "msls_resnet152_gem_gcl_b": partial(_msls_strategy, "resnet152", "B"),
    "msls_resnet152_gem_gcl_c": partial(_msls_strategy, "resnet152", "C"),
    "msls_resnet152_gem_gcl_d": partial(_msls_strategy, "resnet152", "D"),
    "msls_resnext_gem_gcl": partial(_msls, gcl, "resnext", "gem"),
    "msls_resnext_gem_cl": partial(_msls, _cl_in_city, "resnext", "gem"),
    "msls_resnext_avg_gcl": partial(_msls, gcl, "resnext", "avg"),
    "msls_resnext_avg_cl": partial(_msls, _cl_in_city, "resnext", "avg"),
    "msls_resnext_gem_gcl_b": partial(_msls_strategy, "resnext", "B"),
    "msls_resnext_gem_gcl_c": partial(_msls_strategy, "resnext", "C"),
    "msls_resnext_gem_gcl_d": partial(_msls_strategy, "resnext", "D"),
    "msls_vgg16_gem_gcl_binary": lambda: at_methods_rate(binary_batches(gcl(msls_base()), _IN_CITY)),
    "msls_vgg16_gem_cl_graded": lambda: at_methods_rate(cl_graded(msls_base())),
    "msls_vgg16_netvlad64_gcl": partial(_msls, gcl, "vgg16", "netvlad64"),
    "msls_vgg16_netvlad64_cl": partial(_msls, _cl_in_city, "vgg16", "netvlad64"),
    "msls_vgg16_netvlad16_triplet": partial(netvlad_triplet, "netvlad16"),
    "msls_vgg16_netvlad64_triplet": partial(netvlad_triplet, "netvlad64"),
    "msls_table4_triplet": partial(other_loss, "triplet"),
    "msls_table4_quadruplet": partial(other_loss, "quadruplet"),
    "msls_table4_lazy_triplet": partial(other_loss, "lazy_triplet"),
    "msls_table4_lazy_quadruplet": partial(other_loss, "lazy_quadruplet"),
    "msls_table4_triplet_huber": partial(other_loss, "triplet_huber"),
    "msls_table4_log_ratio": partial(other_loss, "log_ratio"),
    "msls_table4_multi_similarity": partial(other_loss, "multi_similarity"),
    "msls_table4_soft_contrastive": partial(other_loss, "soft_contrastive"),
}
RECIPES.update(_MSLS)
