"""The method's experiments on small sets: TB-Places (a garden) and 7Scenes (rooms).

30 epochs, the rate divided by ten after every 5, average pooling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from covis.experiments.variants import Variant, at_methods_rate, gcl
from covis.experiments.variants import cl as plain_cl
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


cl = partial(plain_cl, same_place=None)
"""The baseline: a pair is of one place where its graded label is positive."""


def _small(variant: Variant, backbone: str, scene: str = "") -> Recipe:
    return at_methods_rate(variant(seven_scenes(backbone, scene) if scene else tb_places(backbone)))


ALL: dict[str, Callable[[], Recipe]] = {
    "tb_places_resnet18_gcl": partial(_small, gcl, "resnet18"),
    "tb_places_resnet34_gcl": partial(_small, gcl, "resnet34"),
    "tb_places_densenet161_gcl": partial(_small, gcl, "densenet161"),
    "tb_places_resnet18_cl": partial(_small, cl, "resnet18"),
    "tb_places_resnet34_cl": partial(_small, cl, "resnet34"),
    "tb_places_densenet161_cl": partial(_small, cl, "densenet161"),
    "7scenes_chess_resnet18_gcl": partial(_small, gcl, "resnet18", "chess"),
    "7scenes_chess_resnet18_cl": partial(_small, cl, "resnet18", "chess"),
    "7scenes_chess_resnet34_gcl": partial(_small, gcl, "resnet34", "chess"),
    "7scenes_chess_resnet34_cl": partial(_small, cl, "resnet34", "chess"),
    "7scenes_fire_resnet18_gcl": partial(_small, gcl, "resnet18", "fire"),
    "7scenes_fire_resnet18_cl": partial(_small, cl, "resnet18", "fire"),
    "7scenes_fire_resnet34_gcl": partial(_small, gcl, "resnet34", "fire"),
    "7scenes_fire_resnet34_cl": partial(_small, cl, "resnet34", "fire"),
    "7scenes_heads_resnet18_gcl": partial(_small, gcl, "resnet18", "heads"),
    "7scenes_heads_resnet18_cl": partial(_small, cl, "resnet18", "heads"),
    "7scenes_heads_resnet34_gcl": partial(_small, gcl, "resnet34", "heads"),
    "7scenes_heads_resnet34_cl": partial(_small, cl, "resnet34", "heads"),
    "7scenes_office_resnet18_gcl": partial(_small, gcl, "resnet18", "office"),
    "7scenes_office_resnet18_cl": partial(_small, cl, "resnet18", "office"),
    "7scenes_office_resnet34_gcl": partial(_small, gcl, "resnet34", "office"),
    "7scenes_office_resnet34_cl": partial(_small, cl, "resnet34", "office"),
    "7scenes_pumpkin_resnet18_gcl": partial(_small, gcl, "resnet18", "pumpkin"),
    "7scenes_pumpkin_resnet18_cl": partial(_small, cl, "resnet18", "pumpkin"),
    "7scenes_pumpkin_resnet34_gcl": partial(_small, gcl, "resnet34", "pumpkin"),
    "7scenes_pumpkin_resnet34_cl": partial(_small, cl, "resnet34", "pumpkin"),
    "7scenes_redkitchen_resnet18_gcl": partial(_small, gcl, "resnet18", "redkitchen"),
    "7scenes_redkitchen_resnet18_cl": partial(_small, cl, "resnet18", "redkitchen"),
    "7scenes_redkitchen_resnet34_gcl": partial(_small, gcl, "resnet34", "redkitchen"),
    "7scenes_redkitchen_resnet34_cl": partial(_small, cl, "resnet34", "redkitchen"),
    "7scenes_stairs_resnet18_gcl": partial(_small, gcl, "resnet18", "stairs"),
    "7scenes_stairs_resnet18_cl": partial(_small, cl, "resnet18", "stairs"),
    "7scenes_stairs_resnet34_gcl": partial(_small, gcl, "resnet34", "stairs"),
    "7scenes_stairs_resnet34_cl": partial(_small, cl, "resnet34", "stairs"),
}
RECIPES.update(ALL)
