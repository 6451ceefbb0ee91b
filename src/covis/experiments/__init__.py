"""Experiments: recipes and tables, one file per family; importing this fills `RECIPES` and `TABLES`."""

from pathlib import Path

from covis.experiments import campus, paper, recipes, surveys, systems
from covis.experiments.tables import TABLES
from covis.training.recipe import RECIPES, Recipe, read_recipe

__all__ = ["RECIPES", "TABLES", "Recipe", "campus", "get", "paper", "recipes", "surveys", "systems"]


def get(name: str) -> Recipe:
    """The recipe of that name, or of a file (.toml, .json); an unknown one suggests the nearest."""
    return read_recipe(Path(name)) if name.endswith((".toml", ".json")) else RECIPES[name]()
