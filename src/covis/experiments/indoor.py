"""The method's experiments on small sets: TB-Places (a garden) and 7Scenes (rooms).

30 epochs, the rate divided by ten after every 5, average pooling.
"""

from __future__ import annotations

from functools import partial

from covis.experiments.variants import Variant, at_methods_rate, cl, gcl
from covis.labels import FovOverlap, SurfaceOverlap
from covis.models import ModelConfig
from covis.training.recipe import RECIPES, Optimiser, Recipe

SCENES = ("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs")
EPOCHS = 30


def tb_places(backbone: str) -> Recipe:
    """All pairs of W17, fields of view of 3.5 m and 90°."""
    return Recipe(
        dataset="tb_places",
        split="w17_train",
        model=ModelConfig(backbone, "avg", image_size=(224, 224), trainable="last2", weights="pretrained"),
        labels=FovOverlap(radius_m=3.5, fov_deg=90.0),
        optimiser=Optimiser(decay_every=5 / EPOCHS),
        epochs=EPOCHS,
        validation="tb_places_w17_w18",
    )


def seven_scenes(backbone: str, scene: str) -> Recipe:
    """One scene, labelled by the surface that two images share."""
    return Recipe(
        dataset="7scenes",
        split=f"{scene}/train",
        model=ModelConfig(backbone, "avg", image_size=(240, 320), trainable="last2", weights="pretrained"),
        labels=SurfaceOverlap(),
        optimiser=Optimiser(decay_every=5 / EPOCHS),
        epochs=EPOCHS,
        validation=f"7scenes_{scene}",
    )


def _small(variant: Variant, backbone: str, scene: str = "") -> Recipe:
    return at_methods_rate(variant(seven_scenes(backbone, scene) if scene else tb_places(backbone)))


def _register() -> None:
    variants: dict[str, Variant] = {"gcl": gcl, "cl": partial(cl, same_place=None)}
    for loss, variant in variants.items():
        for backbone in ("resnet18", "resnet34", "densenet161"):
            RECIPES.register(f"tb_places_{backbone}_{loss}")(partial(_small, variant, backbone))
        for backbone in ("resnet18", "resnet34"):
            for scene in SCENES:
                RECIPES.register(f"7scenes_{scene}_{backbone}_{loss}")(partial(_small, variant, backbone, scene))


_register()
