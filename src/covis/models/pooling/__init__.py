"""Poolings and aggregators: feature maps → one vector. Every module of this folder registers its own."""

from covis.core.registry import import_modules
from covis.models.pooling.base import POOLS, GridSize, PerLevel, Pool

import_modules(__name__, __path__)

__all__ = ["POOLS", "GridSize", "PerLevel", "Pool"]
