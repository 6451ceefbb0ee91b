"""What a run trains on: image sets, graded labels, the sampler, and which images each batch needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covis import datasets
from covis.arrays import Ids
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.losses import PairLoss, TupleLoss
from covis.progress import say
from covis.sampling import AllPairsSampler, PairBatch, PairSampler, TupleBatch, TupleSampler
from covis.training.mining import Miner
from covis.training.recipe import LabelRule, Recipe

Batch = PairBatch | TupleBatch


@dataclass(frozen=True, eq=False)
class Needed:
    """The images of a batch, each once, and for each place in the batch its image."""

    batch: Batch
    request: tuple[Ids, ...]
    """Ids for each image set: one set, or queries and map."""
    left: Ids
    """Position of each query among all requested images."""
    right: Ids
    """Position of each map image: (B,) of pairs, (B, 1 + n) of tuples, the positive first."""

    @property
    def images(self) -> int:
        """How many images are to be embedded."""
        return sum(len(part) for part in self.request)


def needed(batch: Batch, one_set: bool) -> Needed:
    """What a batch asks for."""
    right = batch.database if isinstance(batch, PairBatch) else np.column_stack([batch.positives, batch.negatives])
    if one_set:
        ids = np.unique(np.concatenate([batch.queries, right.ravel()]))
        return Needed(batch, (ids,), np.searchsorted(ids, batch.queries), np.searchsorted(ids, right))
    mine, theirs = np.unique(batch.queries), np.unique(right)
    return Needed(
        batch, (mine, theirs), np.searchsorted(mine, batch.queries), len(mine) + np.searchsorted(theirs, right)
    )


def relabelled(wanted: Needed, came: Ids, labels: SimilarityGraph) -> Needed:
    """The same where bad files were replaced by other images: ψ is looked up again for the images that came.

    `came` holds the ids of all images in the order of the request.
    """
    if not isinstance(wanted.batch, PairBatch) or np.array_equal(np.concatenate(wanted.request), came):
        return wanted
    queries, database = came[wanted.left], came[wanted.right]
    psi = labels.lookup(queries, database)
    if len(wanted.request) == 1:
        psi = np.where(queries == database, np.float32(1), psi)
    return replace(wanted, batch=replace(wanted.batch, queries=queries, database=database, psi=psi))


def weighted_loss(loss: PairLoss | TupleLoss, wanted: Needed, descriptors: Tensor, focus: bool = False) -> Tensor:
    """The sum of a batch's weighted losses; `descriptors` (images, dim) in the order of the request.

    With `focus`, pairs without overlap that are far enough apart leave their weight to those that are not.
    """
    za = descriptors[torch.from_numpy(wanted.left).to(descriptors.device)]
    zb = descriptors[torch.from_numpy(wanted.right).to(descriptors.device)]
    if isinstance(loss, PairLoss):
        assert isinstance(wanted.batch, PairBatch)
        psi, weight = _like(wanted.batch.psi, descriptors), _like(wanted.batch.weight, descriptors)
        losses = loss(za, zb, psi)
        return (losses * (_focused(losses.detach(), psi, weight) if focus else weight)).sum()
    return loss(za, zb[:, 0], zb[:, 1:], _like(wanted.batch.psi, descriptors)).sum()


def _focused(losses: Tensor, psi: Tensor, weight: Tensor) -> Tensor:
    """The weights with those of pairs without overlap moved to the pairs among them that have a loss."""
    apart = psi == 0
    active = apart & (losses > 0)
    share = weight[apart].sum() / weight[active].sum().clamp_min(1e-12)
    return torch.where(apart, weight * active * share, weight)


def weight_of(batch: Batch) -> float:
    """What a batch's losses are divided by."""
    return float(batch.weight.sum()) if isinstance(batch, PairBatch) else float(len(batch.queries))


def _like(array: NDArray[Any], tensor: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(tensor.device)


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
