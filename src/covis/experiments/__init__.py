"""Experiments: recipes and tables, one file per family, found by scanning this folder; they fill `RECIPES` and `TABLES`."""

from covis.core.registry import import_modules
from covis.experiments.recipes import get
from covis.experiments.tables import TABLES
from covis.training.recipe import RECIPES, Recipe

__all__ = ["RECIPES", "TABLES", "Recipe", "get"]

import_modules(__name__, __path__, without=("running",))  # which runs them: it registers nothing and needs torch
