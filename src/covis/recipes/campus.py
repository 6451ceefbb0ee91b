"""Recipes on photographs of a campus: pretrained backbones, the last block trained on cached features.

Nothing is validated while training: the other part of the campus is kept for the end. Give the backbone's weights with
`--set model.weights=FILE` where the model library cannot fetch them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from covis.labels import FovOverlap
from covis.losses import GeneralizedContrastive
from covis.models import ModelConfig
from covis.recipes.variants import Variant, at_methods_rate, binary_batches, cl, cl_graded, gcl
from covis.training.recipe import RECIPES, Batches, Optimiser, Recipe

MODELS = {
    "mobilenetv2": ModelConfig("mobilenetv2_100", "gem", (160, 160), "last1", "pretrained"),
    "resnet50": ModelConfig("resnet50", "gem", (160, 160), "last1", "pretrained"),
    "vgg16": ModelConfig("vgg16", "gem", (160, 160), "last1", "pretrained"),
    "dinov2": ModelConfig("vit_small_patch14_reg4_dinov2", "avg", (224, 224), "last1", "pretrained", blocks=8),
}
STEPS = {"dinov2": 40}
"""What two processor cores can afford; 125 (4,000 pairs) elsewhere."""
GENTLE = Optimiser("adamw", learning_rate=5e-5, weight_decay=1e-4, schedule="cosine", warmup=0.1)
"""For transformers, and for clusters that start from what they are to find."""
PLACES = {
    "mobilenetv2": replace(MODELS["mobilenetv2"], pool="netvlad64", blocks=5, image_size=(224, 224)),
    "dinov2": replace(MODELS["dinov2"], pool="netvlad32"),
}
"""Clusters of the features of the middle blocks, which find places better than the last as they come."""
DEPTHS = {
    model: replace(PLACES[model], blocks=0, levels=levels, trainable="none")
    for model, levels in {"mobilenetv2": (4, 5), "dinov2": (6, 8, 10)}.items()
}
"""Clusters at several depths, each by itself: what finds places best."""
VARIANTS: dict[str, Variant] = {
    "gcl": gcl,
    "cl": cl,
    "gcl_binary": binary_batches,
    "cl_graded": cl_graded,
}


def base(model: str) -> Recipe:
    """What these recipes share: phones point anywhere, so labels weigh how much two cameras face each other."""
    return Recipe(
        dataset="campus",
        model=MODELS[model],
        labels=FovOverlap(radius_m=50.0, fov_deg=90.0, facing=True),
        optimiser=GENTLE if model == "dinov2" else Optimiser(),
        steps=STEPS.get(model, 125),
    )


def rated(recipe: Recipe) -> Recipe:
    """At the method's rate where its optimiser is used."""
    return at_methods_rate(recipe) if recipe.optimiser.name == "sgd" else recipe


def _recipe(model: str, variant: Variant) -> Recipe:
    return rated(variant(base(model)))


def all_pairs(model: str) -> Recipe:
    """GCL over every pair of a batch's images."""
    recipe = gcl(base(model))
    return replace(recipe, batches=replace(recipe.batches, strategy="all_pairs", size=64))


def places(model: str) -> Recipe:
    """Clusters of middle features, fitted to the photos and whitened; GCL over all pairs of sixteen places.

    The distances of such descriptors start around 1.2, so the margin is as wide; fields of view reach as far as
    positives do.
    """
    return replace(
        base(model),
        model=PLACES[model],
        labels=FovOverlap(radius_m=25.0, fov_deg=90.0, facing=True),
        loss=GeneralizedContrastive(margin=1.2),
        batches=Batches("all_pairs", 64, partners="other_groups", places=16, focus=True),
        optimiser=GENTLE,
        steps=40,
        whiten=1024,
    )


def depths(model: str) -> Recipe:
    """Clusters of features at several depths; training moves the clusters alone."""
    return replace(places(model), model=DEPTHS[model])


for _model in MODELS:
    for _name, _variant in VARIANTS.items():
        RECIPES.register(f"campus_{_model}_{_name}")(partial(_recipe, _model, _variant))
    RECIPES.register(f"campus_{_model}_gcl_all_pairs")(partial(all_pairs, _model))
for _model in PLACES:
    RECIPES.register(f"campus_{_model}_places")(partial(places, _model))
    RECIPES.register(f"campus_{_model}_depths")(partial(depths, _model))
