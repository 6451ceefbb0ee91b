"""Recipes for one's own photos: what did best on campus photographs, at two prices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from covis.experiments.campus import depths
from covis.training.recipe import RECIPES, Recipe

RECOMMENDED = "own_photos"


def own(model: str) -> Recipe:
    """Clusters of a pretrained backbone's features at several depths, fitted to the photos and whitened, then trained."""
    return replace(depths(model), dataset="photos", split="all")


RECIPES.update({"own_photos": partial(own, "dinov2"), "own_photos_small": partial(own, "mobilenetv2")})
