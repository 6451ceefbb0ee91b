"""What there is to know of a dataset before its files are read, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from covis.errors import InputError
from covis.images import Split
from covis.registry import Registry


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
    volume: Callable[[str], str] | None = None
    """Image name → the download that holds it, to say what is missing."""
    left_out: Callable[[Path, str], list[str]] | None = None
    """(path, split) → panoramas that the split leaves out, for the doctor to list."""
    positive_radius_m: float | None = 25.0
    """Within which a map image answers a query, for the doctor; None where distance alone does not tell."""
    default: Callable[[], Path] | None = None
    """Where it lies if no path is given; None if a path is needed."""


DATASETS: Registry[Dataset] = Registry("dataset")


def load(name: str, path: Path | str | None, split: str) -> Split:
    """The `split` of dataset `name` at `path`; only an embedded dataset, such as the town, needs none."""
    dataset = DATASETS[name]
    if path is None:
        if dataset.default is None:
            raise InputError(f"dataset {name!r} needs a path to its files; give --data PATH")
        path = dataset.default()
    return dataset.load(Path(path), split)
