"""Recipes by name: functions that return a `Recipe`, one file a family of experiments."""

from covis.recipes import campus, indoor, msls, own, town
from covis.training.recipe import RECIPES, Recipe

__all__ = ["RECIPES", "Recipe", "campus", "get", "indoor", "msls", "own", "town"]


def get(name: str) -> Recipe:
    """The recipe of that name; an unknown one suggests the nearest."""
    return RECIPES[name]()
