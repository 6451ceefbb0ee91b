"""Recipes for one's own photos: what did best on campus photographs, at two prices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from covis.experiments.campus import depths
from covis.training.recipe import RECIPES, Recipe

RECOMMENDED, SMALL = "own_photos", "own_photos_small"


def own(model: str) -> Recipe:
    """Clusters of a pretrained backbone's features at several depths, fitted to the photos and whitened, then trained."""
    return replace(depths(model), dataset="photos", split="all")


RECIPES.update({RECOMMENDED: partial(own, "dinov2"), SMALL: partial(own, "mobilenetv2")})
