"""The method's experiments on Mapillary Street-Level Sequences (Tables 1–4 and 8–10).

One pass over about 500,000 pairs, SGD without momentum, the rate divided by ten after half of them; ImageNet weights,
the last two convolutional blocks trained, images of 480×640, batches of 32 pairs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from covis.experiments.variants import (
    SAME_PLACE,
    Variant,
    at_methods_rate,
    binary_batches,
    cl_graded,
    gcl,
    graded_batches,
)
from covis.experiments.variants import cl as plain_cl
from covis.labels import FovOverlap, Radius
from covis.losses import LOSSES
from covis.models import ModelConfig
from covis.sampling import Tuples
from covis.training.recipe import RECIPES, Optimiser, Recipe

BACKBONES = {
    "vgg16": "vgg16",
    "resnet50": "resnet50",
    "resnet152": "resnet152",
    "resnext": "resnext101_32x8d.fb_wsl_ig1b_ft_in1k",
}
"""Names in the tables → names in the model library. The tables' ResNeXt was trained on Instagram images first."""
POOLS = ("gem", "avg")
TABLE4_LOSSES = (
    "triplet", "quadruplet", "lazy_triplet", "lazy_quadruplet", "triplet_huber", "log_ratio", "multi_similarity",
    "soft_contrastive",
)  # fmt: skip


_IN_CITY = replace(SAME_PLACE, within_group=True)


def cl(recipe: Recipe) -> Recipe:
    """The baseline, with yes/no labels inside each city."""
    return plain_cl(recipe, _IN_CITY)


def base(backbone: str = "vgg16", pool: str = "gem") -> Recipe:
    """What all these experiments share."""
    return Recipe(
        dataset="msls",
        model=ModelConfig(backbone, pool, image_size=(480, 640), trainable="last2", weights="pretrained"),
        labels=FovOverlap(radius_m=50.0, fov_deg=90.0, within_group=True),
        validation="msls_val",
    )


def other_loss(name: str) -> Recipe:
    """A row of Table 4: VGG16 with NetVLAD, tuples with mined negatives where the loss takes tuples."""
    loss = LOSSES[name]()
    recipe = replace(
        base("vgg16", "netvlad64"), optimiser=Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001)
    )
    if loss.shape != "tuples":
        return replace(recipe, loss=loss)
    return replace(recipe, loss=loss, batches=Tuples(4, negatives=5, mined=True))


def netvlad_triplet(pool: str) -> Recipe:
    """The baseline that the method beats on cost (Table 5): NetVLAD, triplet loss, cached hard negatives, 30 epochs."""
    return replace(
        base("vgg16", pool),
        labels=Radius(25.0, within_group=True),
        loss=LOSSES["triplet"](),
        batches=Tuples(4, negatives=10, mined=True),
        optimiser=Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001, decay=0.5, decay_every=5 / 30),
        epochs=30,
    )


def _with(variant: Variant, backbone: str, pool: str = "gem") -> Recipe:
    return at_methods_rate(variant(base(backbone, pool)))


def _strategy(backbone: str, strategy: str) -> Recipe:
    return at_methods_rate(graded_batches(gcl(base(backbone)), strategy))


def _register() -> None:
    variants: dict[str, Variant] = {"gcl": gcl, "cl": cl}
    for short, backbone in BACKBONES.items():
        for pool in POOLS:
            for loss, variant in variants.items():
                RECIPES.register(f"msls_{short}_{pool}_{loss}")(partial(_with, variant, backbone, pool))
        for strategy in "BCD":
            RECIPES.register(f"msls_{short}_gem_gcl_{strategy.lower()}")(partial(_strategy, backbone, strategy))
    RECIPES.register("msls_vgg16_gem_gcl_binary")(lambda: at_methods_rate(binary_batches(gcl(base()), _IN_CITY)))
    RECIPES.register("msls_vgg16_gem_cl_graded")(lambda: at_methods_rate(cl_graded(base())))
    for loss, variant in variants.items():
        RECIPES.register(f"msls_vgg16_netvlad64_{loss}")(partial(_with, variant, "vgg16", "netvlad64"))
    for pool in ("netvlad16", "netvlad64"):
        RECIPES.register(f"msls_vgg16_{pool}_triplet")(partial(netvlad_triplet, pool))
    for name in TABLE4_LOSSES:
        RECIPES.register(f"msls_table4_{name}")(partial(other_loss, name))


_register()
