"""What a run trains on: image sets, graded labels and the sampler of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.core.errors import InputError
from covis.core.progress import say
from covis.datasets import DATASETS
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels import LabelRule
from covis.reading.screening import MISSING_LIMIT, Screened, check_limits, look_at_all
from covis.sampling import Batch, Sampler
from covis.training.mining import Miner
from covis.training.recipe import Recipe

Data = Path | Split | None
"""Where a recipe's dataset lies, or images that were read already."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """A labelled split with its sampler."""

    split: Split
    labels: SimilarityGraph
    sampler: Sampler

    @property
    def one_set(self) -> bool:
        """Whether a set is matched with itself."""
        return self.split.queries is self.split.database

    @property
    def sets(self) -> tuple[ImageSet, ...]:
        """The image sets that ids point into: one, or queries and map."""
        return (self.split.queries,) if self.one_set else (self.split.queries, self.split.database)

    def batch(self, number: int, miner: Miner | None = None) -> Batch:
        """The run's `number`-th batch, counted across epochs; with mined negatives where there is a miner."""
        if miner is not None:
            return miner.batch(number)
        epoch, index = divmod(number, len(self.sampler))
        return self.sampler.batch(epoch, index)

    def names(self, request: tuple[NDArray[np.int64], ...]) -> list[str]:
        """Names of requested images."""
        return [images.name(int(i)) for images, ids in zip(self.sets, request, strict=True) for i in ids]


def prepare(recipe: Recipe, data: Data, run: Path, seed: int) -> TrainingData:
    """Reads the split, labels it (once: the graph is kept in the run) and sets up the sampler."""
    split = data if isinstance(data, Split) else datasets.load(recipe.dataset, data, recipe.split)
    if not (run / "labels").exists():
        screen_files(split, recipe.dataset)
    labels = _open_labels(recipe.labels, split, run / "labels")
    graphs = {name: _open_labels(rule, split, run / name) for name, rule in recipe.batches.rules().items()}
    return TrainingData(split, labels, recipe.batches.sampler(labels, split, seed, loss=recipe.loss, graphs=graphs))


def screen_files(split: Split, dataset: str) -> None:
    """Raises where too many files are absent or bad; names the groups, such as cities, that could be trained on."""
    sets = [split.queries] if split.queries is split.database else list(split)
    screened = [look_at_all(images) for images in sets]
    try:
        for images, found in zip(sets, screened, strict=True):
            check_limits(found.rejects, len(images), images.root)
    except InputError as error:
        if not DATASETS[dataset].splits_by_group:
            raise
        there = _complete_groups(sets, screened)
        option = f"train on those that are there: --set split={','.join(there)}" if there else "no city is there"
        raise InputError(f"{error}; {option}") from None


def _complete_groups(sets: Sequence[ImageSet], screened: Sequence[Screened]) -> list[str]:
    """Groups of which no set lacks more than the limit."""
    lacking: set[str] = set()
    for images, found in zip(sets, screened, strict=True):
        total = np.bincount(images.group, minlength=len(images.group_names))
        usable = np.bincount(images.group[found.ids], minlength=len(images.group_names))
        lacking |= {images.group_names[g] for g in np.flatnonzero(total - usable > MISSING_LIMIT * total)}
    return [name for name in sets[0].group_names if name not in lacking]


def _open_labels(rule: LabelRule, split: Split, path: Path) -> SimilarityGraph:
    if not path.exists():
        graph = rule(split.queries, split.database)
        say(f"labels: {graph.pairs} pairs with ψ > 0 among {graph.shape[0]} × {graph.shape[1]} images")
        graph.save(path)
    return SimilarityGraph.open(path)


def make_miner(recipe: Recipe, data: TrainingData) -> Miner | None:
    """The miner of the recipe's batches, if they are mined."""
    rounds = recipe.batches.miner(data.sampler)
    return None if rounds is None else Miner(rounds, data.one_set)
