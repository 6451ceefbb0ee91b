"""Plugins inside the tests' own process."""

from collections.abc import Iterator
from contextlib import contextmanager

from covis.datasets import DATASETS
from covis.evaluation import BENCHMARKS
from covis.experiments import RECIPES, TABLES
from covis.search.local import EXTRACTORS

REGISTRIES = (DATASETS, BENCHMARKS, RECIPES, TABLES, EXTRACTORS)


@contextmanager
def forgotten_afterwards() -> Iterator[dict[str, set[str]]]:
    """What is registered inside is forgotten at the end; gives the names of before by kind."""
    before = {registry.kind: dict(registry._entries) for registry in REGISTRIES}
    try:
        yield {kind: set(entries) for kind, entries in before.items()}
    finally:
        for registry in REGISTRIES:
            registry._entries.clear()
            registry._entries.update(before[registry.kind])
