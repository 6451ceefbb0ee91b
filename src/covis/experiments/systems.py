"""Systems that the method is compared with, as recipes: their losses and labels in the shape of the house.

On MSLS and Pittsburgh with the networks of their papers, on 7Scenes for RelocNet, and on the town, where all of them see
as many images as `town_gcl` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from covis.experiments import indoor, msls, town
from covis.experiments.tables import TABLES, Row, Table
from covis.experiments.variants import gcl, graded_batches
from covis.labels import FrustumOverlap, Radius
from covis.losses import (
    LOSSES,
    AveragePrecision,
    GeneralizedContrastive,
    LargeMarginCosine,
    ListwiseSoftmax,
    Loss,
    OverlapRegression,
    RelaxedContrastive,
    RelocNet,
    Sare,
    SoftSupervisedContrastive,
)
from covis.models import ModelConfig
from covis.sampling import AllPairs, Classes, Pairs, Tuples
from covis.sampling.classes import Axis
from covis.training.recipe import RECIPES, Optimiser, Recipe

TUPLE_RATE = Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001)
"""As NetVLAD and those that build on it are trained."""
IMAGES = 64
"""Images a step of the town's recipes: 32 pairs."""


def town_tuples(loss: Loss) -> Recipe:
    """Eight tuples of a query, a positive and six mined negatives."""
    return replace(town.base(), loss=loss, batches=Tuples(8, negatives=6, mined=True, refresh=50, pool=400))


def town_lists(loss: Loss) -> Recipe:
    """Every image of a batch against all others."""
    return replace(town.base(), loss=loss, batches=AllPairs(size=IMAGES, places=8))


def town_pairs(loss: Loss) -> Recipe:
    """Graded pairs."""
    return replace(town.base(), loss=loss)


def town_relocnet() -> Recipe:
    """Squared distance regressed onto frustum overlap."""
    return replace(town_pairs(RelocNet()), labels=FrustumOverlap(near_m=1.0, far_m=30.0))


def seven_scenes_relocnet(scene: str) -> Recipe:
    """Squared distance regressed onto the overlap of frustums of 4 m, in one room."""
    return replace(indoor.seven_scenes("resnet18", scene), labels=FrustumOverlap(), loss=RelocNet())


def msls_tuples(loss: Loss) -> Recipe:
    """VGG16 with NetVLAD, a positive and ten mined negatives."""
    batches = Tuples(4, negatives=10, mined=True)
    return replace(msls.base("vgg16", "netvlad64"), loss=loss, batches=batches, optimiser=TUPLE_RATE)


def msls_lists(loss: Loss) -> Recipe:
    """ResNet50 with GeM, lists of 64 images around eight places."""
    return replace(msls.base("resnet50", "gem"), loss=loss, batches=AllPairs(size=IMAGES, places=8))


def msls_regression() -> Recipe:
    """Distance regressed onto field-of-view overlap, with the method's batches."""
    return replace(msls.base("resnet50", "gem"), loss=OverlapRegression())


def cosplace(start: Recipe, axis: Axis, least: int) -> Recipe:
    """Classification of cells by heading (CosPlace), or by the street's direction (EigenPlaces)."""
    batches = Classes(axis=axis, least=least) if axis == "north" else Classes(
        cell_m=15.0, angle_deg=90.0, axis=axis, apart=3, turns_apart=1, least=least
    )  # fmt: skip
    optimiser = Optimiser("adamw", learning_rate=1e-5, head_rate=1000.0, schedule="cosine")
    return replace(start, loss=LargeMarginCosine(), batches=batches, optimiser=optimiser)


def town_cosplace(axis: Axis) -> Recipe:
    """Cells of the town's few streets, each a class from four images on."""
    recipe = cosplace(town.base(), axis, 4)
    return replace(
        recipe, optimiser=replace(town.base().optimiser, head_rate=2.0), batches=replace(recipe.batches, size=64)
    )


def pitts_sare() -> Recipe:
    """SARE as published: VGG16 with NetVLAD on Pittsburgh 30k, positives within 10 m."""
    return Recipe(
        dataset="pitts30k",
        model=ModelConfig("vgg16", "netvlad64", image_size=(480, 640), trainable="last2", weights="pretrained"),
        labels=Radius(10.0),
        loss=Sare(),
        batches=Tuples(4, negatives=10, mined=True),
        optimiser=TUPLE_RATE,
        epochs=30,
    )


@TABLES.register("town_systems")
def town_systems() -> Table:
    """Every loss and kind of batches on the town: as many images pass the network in each row."""
    names = {
        "town_gcl": "GCL, graded pairs",
        "town_cl": "CL, yes/no pairs",
        "town_gcl_binary": "GCL, yes/no pairs",
        "town_cl_graded": "CL, graded pairs",
    }
    start = town.base()
    rows = {label: RECIPES[name]() for name, label in names.items()}
    for strategy in "BCD":
        rows[f"GCL, graded pairs, strategy {strategy}"] = graded_batches(gcl(start), strategy)
    rows["GCL, near zero-pairs"] = replace(gcl(start), batches=Pairs(zeros="near"))
    rows["GCL, all pairs"] = town_lists(GeneralizedContrastive())
    for name in msls.TABLE4_LOSSES:
        loss = LOSSES[name]()
        rows[name.replace("_", " ")] = (town_tuples if loss.shape == "tuples" else town_pairs)(loss)
    for name, make in ALL.items():
        if name.startswith("town_"):
            rows[name.removeprefix("town_").replace("_", " ")] = make()
    scored = tuple(Row(label, replace(recipe, validation=""), ("town",)) for label, recipe in rows.items())
    return Table("Losses and batches on the town, at equal forward passes", scored, seeds=3)


ALL: dict[str, Callable[[], Recipe]] = {
    "town_sare": lambda: town_tuples(Sare()),
    "town_sare_cauchy": lambda: town_tuples(Sare("cauchy", "independent")),
    "town_relocnet": town_relocnet,
    "town_overlap_regression": lambda: town_pairs(OverlapRegression()),
    "town_relaxed_contrastive": lambda: town_lists(RelaxedContrastive()),
    "town_average_precision": lambda: town_lists(AveragePrecision()),
    "town_listwise_softmax": lambda: town_lists(ListwiseSoftmax()),
    "town_soft_supervised_contrastive": lambda: town_lists(SoftSupervisedContrastive()),
    "msls_vgg16_netvlad64_sare": lambda: msls_tuples(Sare()),
    "msls_resnet50_gem_overlap_regression": msls_regression,
    "msls_resnet50_gem_relaxed_contrastive": lambda: msls_lists(RelaxedContrastive()),
    "msls_resnet50_gem_average_precision": lambda: msls_lists(AveragePrecision()),
    "msls_resnet50_gem_listwise_softmax": lambda: msls_lists(ListwiseSoftmax()),
    "msls_resnet50_gem_soft_supervised_contrastive": lambda: msls_lists(SoftSupervisedContrastive()),
    "pitts30k_vgg16_netvlad64_sare": pitts_sare,
    "town_cosplace": lambda: town_cosplace("north"),
    "town_eigenplaces": lambda: town_cosplace("street"),
    "msls_resnet50_gem_cosplace": lambda: cosplace(msls.base("resnet50", "gem"), "north", 10),
    "msls_resnet50_gem_eigenplaces": lambda: cosplace(msls.base("resnet50", "gem"), "street", 10),
    "7scenes_chess_resnet18_relocnet": partial(seven_scenes_relocnet, "chess"),
    "7scenes_fire_resnet18_relocnet": partial(seven_scenes_relocnet, "fire"),
    "7scenes_heads_resnet18_relocnet": partial(seven_scenes_relocnet, "heads"),
    "7scenes_office_resnet18_relocnet": partial(seven_scenes_relocnet, "office"),
    "7scenes_pumpkin_resnet18_relocnet": partial(seven_scenes_relocnet, "pumpkin"),
    "7scenes_redkitchen_resnet18_relocnet": partial(seven_scenes_relocnet, "redkitchen"),
    "7scenes_stairs_resnet18_relocnet": partial(seven_scenes_relocnet, "stairs"),
}
RECIPES.update(ALL)
