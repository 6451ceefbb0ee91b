"""Systems that the method is compared with, as recipes: their losses and labels in the terms of this package.

They run on MSLS with the networks of their papers, and on the town, where all of them see as many images as
`town_gcl` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from covis.experiments import recipes
from covis.experiments.recipes import gcl, graded_batches
from covis.experiments.tables import TABLES, Row, Table
from covis.losses import (
    LOSSES,
    AveragePrecision,
    GeneralizedContrastive,
    ListwiseSoftmax,
    Loss,
    OverlapRegression,
    RelaxedContrastive,
    Sare,
    SoftSupervisedContrastive,
)
from covis.sampling import AllPairs, Tuples
from covis.training.recipe import RECIPES, Optimiser, Recipe

TUPLE_RATE = Optimiser(learning_rate=0.001, momentum=0.9, weight_decay=0.001)
"""The optimiser of NetVLAD and of systems that build on it."""
_IMAGES = 64
"""Images per step of the town's recipes: 32 pairs."""


def town_tuples(loss: Loss) -> Recipe:
    """Eight tuples of a query, a positive and six mined negatives."""
    return replace(recipes.town_base(), loss=loss, batches=Tuples(8, negatives=6, mined=True, refresh=50, pool=400))


def town_lists(loss: Loss) -> Recipe:
    """Every image of a batch against all others."""
    return replace(recipes.town_base(), loss=loss, batches=AllPairs(size=_IMAGES, places=8))


def town_pairs(loss: Loss) -> Recipe:
    """Graded pairs."""
    return replace(recipes.town_base(), loss=loss)


def msls_tuples(loss: Loss) -> Recipe:
    """VGG16 with NetVLAD, a positive and ten mined negatives."""
    batches = Tuples(4, negatives=10, mined=True)
    return replace(recipes.msls_base("vgg16", "netvlad64"), loss=loss, batches=batches, optimiser=TUPLE_RATE)


def msls_lists(loss: Loss) -> Recipe:
    """ResNet50 with GeM, lists of 64 images around eight places."""
    return replace(recipes.msls_base("resnet50", "gem"), loss=loss, batches=AllPairs(size=_IMAGES, places=8))


def msls_regression() -> Recipe:
    """Distance regressed onto field-of-view overlap, with the method's batches."""
    return replace(recipes.msls_base("resnet50", "gem"), loss=OverlapRegression())


@TABLES.register("town_systems")
def town_systems() -> Table:
    """Every loss and kind of batches on the town: as many images pass the network in each row."""
    names = {
        "town_gcl": "GCL, graded pairs",
        "town_cl": "CL, yes/no pairs",
        "town_gcl_binary": "GCL, yes/no pairs",
        "town_cl_graded": "CL, graded pairs",
    }
    start = recipes.town_base()
    rows = {label: RECIPES[name]() for name, label in names.items()}
    for strategy in "BCD":
        rows[f"GCL, graded pairs, strategy {strategy}"] = graded_batches(gcl(start), strategy)
    rows["GCL, all pairs"] = town_lists(GeneralizedContrastive())
    for name in recipes.TABLE4_LOSSES:
        loss = LOSSES[name]()
        rows[name.replace("_", " ")] = (town_tuples if loss.shape == "tuples" else town_pairs)(loss)
    for name, make in _ALL.items():
        if name.startswith("town_"):
            rows[name.removeprefix("town_").replace("_", " ")] = make()
    scored = tuple(Row(label, replace(recipe, validation=""), ("town",)) for label, recipe in rows.items())
    return Table("Losses and batches on the town, at equal forward passes", scored, seeds=3)


_ALL: dict[str, Callable[[], Recipe]] = {
    "town_sare": lambda: town_tuples(Sare()),
    "town_sare_cauchy": lambda: town_tuples(Sare("cauchy", "independent")),
    "town_sare_exponential": lambda: town_tuples(Sare("exponential")),
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
}
RECIPES.update(_ALL)
