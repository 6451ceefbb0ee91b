"""How MixVPR, SALAD and Bag-of-Queries are trained on GSV-Cities, in their authors' settings.

60 to 160 places of four images, city by city, batch-wise multi-similarity with its miner, RandAugment, half precision. The authors
pick the best epoch by Pitts30k-val; here `covis.train(…, validation=covis.load_benchmark(…))` does. An epoch is each
place once, 62,000 places.
"""

from __future__ import annotations

from dataclasses import replace

from covis.labels import FovOverlap, SamePlace
from covis.losses import BatchMultiSimilarity
from covis.models import ModelConfig
from covis.sampling import Places
from covis.training.recipe import RECIPES, Optimiser, Recipe

_PLACES = 62_000
"""Places of GSV-Cities with at least four images, from which shares of a run are counted."""
_DINOV2 = "vit_base_patch14_dinov2"


def _gsv(model: ModelConfig, places: int, optimiser: Optimiser, epochs: int) -> Recipe:
    return Recipe(
        dataset="gsv",
        model=model,
        labels=SamePlace(),
        loss=BatchMultiSimilarity(),
        batches=Places(places=places, images=4, within_group=True),
        optimiser=optimiser,
        epochs=epochs,
        augment="randaugment",
        precision="float16",
        deterministic=False,
    )


@RECIPES.register("gsv_resnet50_mixvpr")
def gsv_resnet50_mixvpr() -> Recipe:
    """MixVPR of 4096 dimensions: ResNet-50 up to its third block, which learns."""
    epochs, places = 80, 120
    rates = Optimiser(
        "sgd", 0.05, momentum=0.9, weight_decay=0.001, decay=0.3,
        milestones=tuple(epoch / epochs for epoch in (5, 10, 15, 25, 45)), warmup=650 * places / (_PLACES * epochs),
    )  # fmt: skip
    model = ModelConfig(
        "resnet50.tv_in1k", "mixvpr4096", (320, 320), "last1", "pretrained", blocks=3, batchnorm="everywhere"
    )
    return _gsv(model, places, rates, epochs)


@RECIPES.register("gsv_dinov2_salad")
def gsv_dinov2_salad() -> Recipe:
    """SALAD of 8448 dimensions: the last four blocks of DINOv2 ViT-B learn."""
    rates = Optimiser("adamw", 6e-5, weight_decay=9.5e-9, schedule="linear", final_rate=0.2)
    model = ModelConfig(_DINOV2, "salad8448", (224, 224), "last4", "pretrained", positions="original")
    return _gsv(model, 60, rates, 4)


@RECIPES.register("gsv_dinov2_boq")
def gsv_dinov2_boq() -> Recipe:
    """Bag-of-Queries of 12288 dimensions: the last two blocks of DINOv2 ViT-B learn."""
    rates = Optimiser("adamw", 2e-4, weight_decay=0.001, decay=0.1, milestones=(0.25, 0.5, 0.75), warmup=0.25)
    model = ModelConfig(_DINOV2, "boq12288", (280, 280), "last2", "pretrained", positions="original", final_norm=False)
    return _gsv(model, 160, rates, 40)


def graded(recipe: Recipe) -> Recipe:
    """The same batches, with pairs that pull by how much two views share and push by the rest."""
    return replace(recipe, labels=FovOverlap(within_group=True), loss=BatchMultiSimilarity(graded=True))


@RECIPES.register("gsv_resnet50_mixvpr_graded")
def gsv_resnet50_mixvpr_graded() -> Recipe:
    """`gsv_resnet50_mixvpr` with graded labels."""
    return graded(gsv_resnet50_mixvpr())


@RECIPES.register("gsv_dinov2_salad_graded")
def gsv_dinov2_salad_graded() -> Recipe:
    """`gsv_dinov2_salad` with graded labels."""
    return graded(gsv_dinov2_salad())


@RECIPES.register("gsv_dinov2_boq_graded")
def gsv_dinov2_boq_graded() -> Recipe:
    """`gsv_dinov2_boq` with graded labels."""
    return graded(gsv_dinov2_boq())
