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
    """Generalised contrastive loss with graded batches (strategy A)."""
    return replace(recipe, loss=GeneralizedContrastive())


def cl(recipe: Recipe, same_place: Radius | None = SAME_PLACE) -> Recipe:
    """The baseline: contrastive loss, labels and batches of yes and no.

    Without `same_place`, a pair is of one place where its graded label is positive.
    """
    labels = recipe.labels if same_place is None else same_place
    return replace(recipe, loss=Contrastive(), labels=labels, batches=replace(recipe.batches, strategy="binary"))


def cl_graded(recipe: Recipe) -> Recipe:
    """Contrastive loss, graded batches: a pair is of one place where its graded label is positive."""
    return replace(recipe, loss=Contrastive())


def at_methods_rate(recipe: Recipe) -> Recipe:
    """The method's learning rate for the recipe's loss: 0.1 for the generalised contrastive one, 0.01 for the plain."""
    rate = GCL_RATE if isinstance(recipe.loss, GeneralizedContrastive) else CL_RATE
    return replace(recipe, optimiser=replace(recipe.optimiser, learning_rate=rate))


def binary_batches(recipe: Recipe, same_place: Radius = SAME_PLACE) -> Recipe:
    """Half of each batch the same place, half not; the loss still sees the recipe's graded labels."""
    return replace(recipe, batches=replace(recipe.batches, strategy="binary", composed_by=same_place))


def graded_batches(recipe: Recipe, strategy: str = "A") -> Recipe:
    """Batches composed by the graded labels, as strategy A, B, C or D says."""
    return replace(recipe, batches=replace(recipe.batches, strategy=strategy, composed_by=None))
