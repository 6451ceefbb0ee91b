"""What is known about a dataset before its files are read, and the registry of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from covis.core.errors import InputError, unknown_name
from covis.core.registry import Registry
from covis.images import Split
from covis.labels.rules import FovOverlap, LabelRule
from covis.poses import PLACE_M


@dataclass(frozen=True)
class Dataset:
    """What is known about a dataset before its files are read."""

    name: str
    load: Callable[[Path, str], Split]
    """(path of the official layout, split) → image sets."""
    splits: tuple[str, ...]
    licence: str
    more_splits: bool = False
    """Whether `load` takes further splits, such as one city; it then refuses unknown ones itself."""
    published: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Split → queries and map images to check against; None where nothing is published."""
    at_least: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Lower bounds where only a server knows the exact counts: fewer images are a partial copy, more may still be."""
    volume: Callable[[str], str] | None = None
    """Image name → the download that holds it, to say what is missing."""
    positive_radius_m: float | None = PLACE_M
    """Map images this near answer a query, for `covis data check`; None where distance alone does not decide."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Split → how many groups (cities) it has when complete, to recognise a partial copy."""
    splits_by_group: bool = False
    """Whether a list of groups is a split, too: `zurich,goa`."""
    groups_apart: bool = True
    """Whether each group (city, slice) has a frame of its own, so that only images of one group are compared."""
    rule: LabelRule = field(default_factory=FovOverlap)
    """How its pairs are labelled unless another rule is asked for."""
    default: Callable[[], Path] | None = None
    """Where it lies if no path is given; None if a path is needed."""


def _some_splits(dataset: Dataset) -> str:
    shown = dataset.splits[:8]
    return f"splits: {', '.join(shown)}{', …' if len(dataset.splits) > len(shown) else ''}"


DATASETS: Registry[Dataset] = Registry("dataset", _some_splits)


def load(name: str, path: Path | str | None, split: str) -> Split:
    """The `split` of dataset `name` at `path`; only an embedded dataset, such as the town, needs none."""
    dataset = DATASETS[name]
    if split not in dataset.splits and not dataset.more_splits:
        raise unknown_name(f"split of {name}", split, dataset.splits)
    return dataset.load(data_path(name, path), split)


def data_path(name: str, path: Path | str | None) -> Path:
    """Where dataset `name` lies: at `path`, or without one in the default place of an embedded dataset."""
    default = DATASETS[name].default
    if path is not None:
        return Path(path)
    if default is None:
        raise InputError(f"dataset {name!r} needs a path to its files; give --data {name}=PATH")
    return default()


def given_paths(given: Sequence[str] | None, asked: Iterable[str]) -> dict[str, Path]:
    """Dataset → path, from entries of `--data`: DATASET=PATH, or a bare PATH where one dataset is asked for.

    `asked` are the datasets that the command needs; embedded ones, such as the town, need no path.
    """
    wanted = sorted(set(asked))
    needing = [name for name in wanted if name not in DATASETS or DATASETS[name].default is None] or wanted
    paths: dict[str, Path] = {}
    for entry in given or ():
        name, equals, path = entry.partition("=")
        if equals and name in DATASETS:
            paths[name] = Path(path)
        elif equals and not Path(entry).exists():
            raise unknown_name("dataset in --data", name, DATASETS)
        elif len(needing) == 1:
            paths[needing[0]] = Path(entry)
        else:
            cause = f"several datasets are asked for: {', '.join(needing)}" if needing else "no dataset is asked for"
            raise InputError(f"--data {entry}: write DATASET=PATH, since {cause}")
    return paths


def is_given(dataset: str, paths: Mapping[str, Path]) -> bool:
    """Whether a dataset can be read: its path is given, or it is embedded."""
    return dataset in paths or (dataset in DATASETS and DATASETS[dataset].default is not None)
