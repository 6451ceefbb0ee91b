"""Recipes for your own photos: what did best on photographs of a campus, at two levels of cost."""

from __future__ import annotations

from dataclasses import replace

from covis.labels import FovOverlap
from covis.losses import GeneralizedContrastive
from covis.models import ModelConfig
from covis.sampling import AllPairs
from covis.training.recipe import RECIPES, Optimiser, Recipe

RECOMMENDED, SMALL = "own_photos", "own_photos_small"
GENTLE = Optimiser("adamw", learning_rate=5e-5, weight_decay=1e-4, schedule="cosine", warmup=0.1)
"""For transformers, and for clusters that are fitted to the photos before training."""


@RECIPES.register("own_photos")
def own_photos() -> Recipe:
    """Clusters of DINOv2's features at several depths: fitted to the photos, whitened, then trained.

    The distances of such descriptors start around 1.2, so that is the margin; fields of view reach as far as positives
    do.
    """
    return Recipe(
        dataset="photos",
        split="all",
        model=ModelConfig(
            "vit_small_patch14_reg4_dinov2", "netvlad32", (224, 224), "none", "pretrained", levels=(6, 8, 10)
        ),
        labels=FovOverlap(radius_m=25.0, fov_deg=90.0, facing=True),
        loss=GeneralizedContrastive(margin=1.2),
        batches=AllPairs(size=64, partners="other_groups", places=16, focus=True),
        optimiser=GENTLE,
        steps=40,
        whiten=1024,
    )


@RECIPES.register("own_photos_small")
def own_photos_small() -> Recipe:
    """`own_photos` with MobileNetV2."""
    model = ModelConfig("mobilenetv2_100", "netvlad64", (320, 320), "none", "pretrained", levels=(4, 5))
    return replace(own_photos(), model=model)


@RECIPES.register("fine_tune")
def fine_tune() -> Recipe:
    """Any model on your own photos (`covis train fine_tune --init MODEL`): graded pairs of three of four walks.

    The other walks decide whether training helped; if it did not, the model is kept as it was.
    """
    return replace(
        own_photos(),
        split="known_walks",
        model=ModelConfig("mobilenetv2_100", "gem", (224, 224), "last1", "pretrained", batchnorm="frozen"),
        validation="photos_new_walks",
        keep_better=True,
        whiten=0,
        steps=100,
    )
