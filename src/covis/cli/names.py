"""The registries that names on the command line are checked against, each imported when it is first needed."""

from __future__ import annotations

import importlib
from typing import Any

from covis.core.errors import unknown_name
from covis.core.plugins import load_installed_plugins
from covis.core.registry import Registry

_OWNERS = {
    "dataset": ("covis.datasets", "DATASETS"),
    "benchmark": ("covis.evaluation", "BENCHMARKS"),
    "recipe": ("covis.experiments", "RECIPES"),
    "table": ("covis.experiments", "TABLES"),
    "rule": ("covis.town.dataset", "RULES"),  # the town brings a rule of its own
    "kind of batches": ("covis.sampling", "BATCHES"),
    "loss": ("covis.losses", "LOSSES"),
    "augmentation": ("covis.training.augmentation", "AUGMENTATIONS"),
    "pooling": ("covis.models", "POOLS"),
    "published model": ("covis.models.published", "PUBLISHED"),
    "reader": ("covis.reading.sources", "READERS"),
    "re-ranker": ("covis.describing.rerankers", "RERANKERS"),
}
"""Kind → module and name of its registry."""


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind."""
    module, name = _OWNERS[kind]
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


def known_names(kind: str) -> Registry[Any]:
    """What is registered of a kind, installed plugins included."""
    load_installed_plugins()
    return registry(kind)


def check_name(kind: str, name: str) -> str:
    """The name, if a thing of that kind has it; else an error with the nearest."""
    known = registry(kind)
    if name not in known:
        raise unknown_name(kind, name, known)
    return name
