"""The method's idea on today's backbones: DINOv2 with GeM, SALAD or BoQ on MSLS, graded lists beside yes/no ones.

The two recipes of a pair draw the same batches and differ only in their labels, so that a comparison shows what the grades
are worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from covis.experiments import recipes
from covis.losses import SoftSupervisedContrastive
from covis.models import ModelConfig
from covis.sampling import AllPairs
from covis.training.recipe import RECIPES, Optimiser, Recipe

_GENTLE = Optimiser("adamw", learning_rate=6e-5, weight_decay=1e-4, schedule="cosine", warmup=0.05)
"""The learning rate with which SALAD's authors train DINOv2's last blocks."""


def dinov2_lists(size: str, pool: str, *, graded: bool) -> Recipe:
    """Lists of 128 images around 16 places at 224 × 224 in bfloat16: one epoch of MSLS, meant for a GPU and a day."""
    backbone = f"vit_{size}_patch14_dinov2.lvd142m"
    base = recipes.msls_base()
    return replace(
        base,
        model=ModelConfig(backbone, pool, (224, 224), "last2", "pretrained", positions="original"),
        labels=base.labels if graded else replace(recipes.SAME_PLACE, within_group=True),
        loss=SoftSupervisedContrastive(),
        batches=AllPairs(size=128, places=16, composed_by=None if graded else base.labels),
        optimiser=_GENTLE,
        precision="bfloat16",
    )


_DINOV2: dict[str, Callable[[], Recipe]] = {
    "msls_dinov2s_gem_graded": partial(dinov2_lists, "small", "gem", graded=True),
    "msls_dinov2s_gem_binary": partial(dinov2_lists, "small", "gem", graded=False),
    "msls_dinov2s_salad_graded": partial(dinov2_lists, "small", "salad8448", graded=True),
    "msls_dinov2s_salad_binary": partial(dinov2_lists, "small", "salad8448", graded=False),
    "msls_dinov2s_boq_graded": partial(dinov2_lists, "small", "boq12288", graded=True),
    "msls_dinov2s_boq_binary": partial(dinov2_lists, "small", "boq12288", graded=False),
    "msls_dinov2b_gem_graded": partial(dinov2_lists, "base", "gem", graded=True),
    "msls_dinov2b_gem_binary": partial(dinov2_lists, "base", "gem", graded=False),
    "msls_dinov2b_salad_graded": partial(dinov2_lists, "base", "salad8448", graded=True),
    "msls_dinov2b_salad_binary": partial(dinov2_lists, "base", "salad8448", graded=False),
    "msls_dinov2b_boq_graded": partial(dinov2_lists, "base", "boq12288", graded=True),
    "msls_dinov2b_boq_binary": partial(dinov2_lists, "base", "boq12288", graded=False),
}
RECIPES.update(_DINOV2)
