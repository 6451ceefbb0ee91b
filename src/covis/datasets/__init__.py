"""Datasets by name: official layout on disk → image sets, one file a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from covis.images import ImageSet
from covis.registry import Registry


class Split(NamedTuple):
    """Queries and the map that they are matched against; one object twice where a set is matched with itself."""

    queries: ImageSet
    database: ImageSet


@dataclass(frozen=True)
class Dataset:
    """What there is to know of a dataset before its files are read."""

    name: str
    load: Callable[[Path, str], Split]
    """(path of the official layout, split) → image sets."""
    splits: tuple[str, ...]
    licence: str
    published: dict[str, int] = field(default_factory=dict)
    """Counts to check against, such as {"val/queries": 740}."""


DATASETS: Registry[Dataset] = Registry("dataset")


def load(name: str, path: Path | str, split: str) -> Split:
    """The `split` of dataset `name` at `path`."""
    return DATASETS[name].load(Path(path), split)


def _register() -> None:
    """Fills the registry: each dataset's module registers itself."""
    from covis.datasets import campus  # noqa: F401


_register()
