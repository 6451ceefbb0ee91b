"""The method's experiments on Mapillary Street-Level Sequences (Tables 1–4 and 8–10).

One pass over about 500,000 pairs, SGD without momentum, the rate divided by ten after half of them; ImageNet weights,
the last two convolutional blocks trained, images of 480×640, batches of 32 pairs.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Names in the tables → names in timm. The tables' ResNeXt was trained on Instagram images first."""
NETVLAD_EPOCHS = {"netvlad16": 30, "netvlad64": 10}
"""Epochs of the published triplet baselines."""
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
    """The baseline that the method beats on cost (Table 5): NetVLAD, triplet loss, cached hard negatives."""
    epochs = NETVLAD_EPOCHS[pool]
    return replace(
        base("vgg16", pool),
        labels=Radius(25.0, within_group=True),
        loss=LOSSES["triplet"](),
        batches=Tuples(4, negatives=10, mined=True),
        optimiser=Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001, decay=0.5, decay_every=5 / epochs),
        epochs=epochs,
    )


def _with(variant: Variant, backbone: str, pool: str = "gem") -> Recipe:
    return at_methods_rate(variant(base(BACKBONES[backbone], pool)))


def _strategy(backbone: str, strategy: str) -> Recipe:
    return at_methods_rate(graded_batches(gcl(base(BACKBONES[backbone])), strategy))


ALL: dict[str, Callable[[], Recipe]] = {
    "msls_vgg16_gem_gcl": partial(_with, gcl, "vgg16", "gem"),
    "msls_vgg16_gem_cl": partial(_with, cl, "vgg16", "gem"),
    "msls_vgg16_avg_gcl": partial(_with, gcl, "vgg16", "avg"),
    "msls_vgg16_avg_cl": partial(_with, cl, "vgg16", "avg"),
    "msls_vgg16_gem_gcl_b": partial(_strategy, "vgg16", "B"),
    "msls_vgg16_gem_gcl_c": partial(_strategy, "vgg16", "C"),
    "msls_vgg16_gem_gcl_d": partial(_strategy, "vgg16", "D"),
    "msls_resnet50_gem_gcl": partial(_with, gcl, "resnet50", "gem"),
    "msls_resnet50_gem_cl": partial(_with, cl, "resnet50", "gem"),
    "msls_resnet50_avg_gcl": partial(_with, gcl, "resnet50", "avg"),
    "msls_resnet50_avg_cl": partial(_with, cl, "resnet50", "avg"),
    "msls_resnet50_gem_gcl_b": partial(_strategy, "resnet50", "B"),
    "msls_resnet50_gem_gcl_c": partial(_strategy, "resnet50", "C"),
    "msls_resnet50_gem_gcl_d": partial(_strategy, "resnet50", "D"),
    "msls_resnet152_gem_gcl": partial(_with, gcl, "resnet152", "gem"),
    "msls_resnet152_gem_cl": partial(_with, cl, "resnet152", "gem"),
    "msls_resnet152_avg_gcl": partial(_with, gcl, "resnet152", "avg"),
    "msls_resnet152_avg_cl": partial(_with, cl, "resnet152", "avg"),
    "msls_resnet152_gem_gcl_b": partial(_strategy, "resnet152", "B"),
    "msls_resnet152_gem_gcl_c": partial(_strategy, "resnet152", "C"),
    "msls_resnet152_gem_gcl_d": partial(_strategy, "resnet152", "D"),
    "msls_resnext_gem_gcl": partial(_with, gcl, "resnext", "gem"),
    "msls_resnext_gem_cl": partial(_with, cl, "resnext", "gem"),
    "msls_resnext_avg_gcl": partial(_with, gcl, "resnext", "avg"),
    "msls_resnext_avg_cl": partial(_with, cl, "resnext", "avg"),
    "msls_resnext_gem_gcl_b": partial(_strategy, "resnext", "B"),
    "msls_resnext_gem_gcl_c": partial(_strategy, "resnext", "C"),
    "msls_resnext_gem_gcl_d": partial(_strategy, "resnext", "D"),
    "msls_vgg16_gem_gcl_binary": lambda: at_methods_rate(binary_batches(gcl(base()), _IN_CITY)),
    "msls_vgg16_gem_cl_graded": lambda: at_methods_rate(cl_graded(base())),
    "msls_vgg16_netvlad64_gcl": partial(_with, gcl, "vgg16", "netvlad64"),
    "msls_vgg16_netvlad64_cl": partial(_with, cl, "vgg16", "netvlad64"),
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
RECIPES.update(ALL)
