"""What a run trains on: image sets, their graded labels, and the sampler that draws from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.datasets import Split
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.losses import TupleLoss
from covis.progress import say
from covis.sampling import AllPairsSampler, PairSampler, TupleSampler
from covis.training.batches import Batch
from covis.training.mining import Miner
from covis.training.recipe import LabelRule, Recipe

Data = Path | Split | None
"""Where a recipe's dataset lies, or images that are read already."""
Sampler = PairSampler | AllPairsSampler | TupleSampler


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
        """The run's `number`-th batch, epochs counted through; with mined negatives where there is a miner."""
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
    labels = _labelled(recipe.labels, split, run / "labels")
    drawn_by = (
        None if recipe.batches.composed_by is None else _labelled(recipe.batches.composed_by, split, run / "yes-no")
    )
    return TrainingData(split, labels, make_sampler(recipe, split, labels, drawn_by, seed))


def _labelled(rule: LabelRule, split: Split, path: Path) -> SimilarityGraph:
    if not path.exists():
        graph = rule(split.queries, split.database)
        say(f"labels: {graph.pairs} pairs with ψ > 0 among {graph.shape[0]} × {graph.shape[1]} images")
        graph.save(path)
    return SimilarityGraph.open(path)


def make_sampler(
    recipe: Recipe, split: Split, labels: SimilarityGraph, drawn_by: SimilarityGraph | None, seed: int
) -> Sampler:
    """The sampler that the recipe's batches name."""
    b, queries, database = recipe.batches, split.queries, split.database
    if isinstance(recipe.loss, TupleLoss):
        second = recipe.loss.second_negative
        return TupleSampler(labels, b.negatives, b.size, seed, queries, database, b.zeros, second_negative=second)
    drawn = labels if drawn_by is None else drawn_by
    if b.partners == "other_groups":
        drawn = drawn.keep(queries.group[drawn.rows] != database.group[drawn.indices], partners=b.partners)
    graded = None if drawn is labels else labels
    if b.strategy == "all_pairs":
        return AllPairsSampler(drawn, "A", b.size, seed, queries, database, graded, b.places)
    return PairSampler(drawn, b.strategy, b.size, seed, queries, database, graded, b.zeros)


def make_miner(recipe: Recipe, data: TrainingData) -> Miner | None:
    """The miner of the recipe's tuples, if it mines."""
    if not recipe.batches.mined or not isinstance(data.sampler, TupleSampler):
        return None
    return Miner(data.sampler, recipe.batches.refresh, recipe.batches.pool, data.one_set)
