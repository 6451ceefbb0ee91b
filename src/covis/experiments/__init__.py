"""Experiments: recipes and tables, one file per family; importing this fills `RECIPES` and `TABLES`."""

from covis.experiments import campus, paper, recipes, surveys, systems
from covis.experiments.recipes import get
from covis.experiments.tables import TABLES
from covis.training.recipe import RECIPES, Recipe

__all__ = ["RECIPES", "TABLES", "Recipe", "campus", "get", "paper", "recipes", "surveys", "systems"]
