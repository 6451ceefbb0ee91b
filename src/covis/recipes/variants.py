"""What the method's tables vary, as functions from recipe to recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from covis.labels import Radius
from covis.losses import Contrastive, GeneralizedContrastive
from covis.training.recipe import Recipe

Variant = Callable[[Recipe], Recipe]
GCL_RATE, CL_RATE = 0.1, 0.01
"""Learning rates of the method for the generalised and for the plain contrastive loss."""
SAME_PLACE = Radius(25.0, max_angle_deg=40.0)
"""The yes/no label of the method's baseline."""


def gcl(recipe: Recipe) -> Recipe:
    """Generalised contrastive loss, graded batches (strategy A), learning rate 0.1."""
    return _rated(replace(recipe, loss=GeneralizedContrastive()), GCL_RATE)


def cl(recipe: Recipe, same_place: Radius | None = SAME_PLACE) -> Recipe:
    """The baseline: contrastive loss, yes/no batches, learning rate 0.01."""
    return binary_batches(_rated(replace(recipe, loss=Contrastive()), CL_RATE), same_place)


def binary_batches(recipe: Recipe, same_place: Radius | None = SAME_PLACE) -> Recipe:
    """Half of each batch the same place, half not; the loss still sees what the recipe's own labels say.

    Without `same_place`, a pair is of one place where its graded label is positive.
    """
    return replace(recipe, batches=replace(recipe.batches, strategy="binary", composed_by=same_place))


def graded_batches(recipe: Recipe, strategy: str = "A") -> Recipe:
    """Batches composed by the graded labels, as strategy A, B, C or D says."""
    return replace(recipe, batches=replace(recipe.batches, strategy=strategy, composed_by=None))


def _rated(recipe: Recipe, rate: float) -> Recipe:
    return replace(recipe, optimiser=replace(recipe.optimiser, learning_rate=rate))
