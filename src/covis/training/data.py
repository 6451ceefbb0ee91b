"""What a run trains on and is validated on: image sets, graded labels, the sampler, mined negatives, a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covis import datasets
from covis.core.arrays import Ids
from covis.core.progress import say
from covis.describing.features import Features
from covis.evaluation import Benchmark, recall_at_k
from covis.evaluation.retrieval import rank_descriptors
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels import LabelRule
from covis.models import PlaceModel
from covis.sampling import Batch, MinedRound, Sampler, TupleBatch, TupleMiner
from covis.training.recipe import Recipe

CHUNK = 128


class Validator:
    """Scores a model on a benchmark; every rank computes the same."""

    def __init__(self, benchmark: Benchmark, source: Features) -> None:
        self.benchmark, self.source = benchmark, source

    @staticmethod
    def sets(benchmark: Benchmark) -> tuple[ImageSet, ...]:
        """The image sets whose features are needed."""
        return (benchmark.queries,) if benchmark.one_set else (benchmark.queries, benchmark.database)

    def recall(self, model: PlaceModel) -> dict[str, float]:
        """Recall@k in percent, keyed by k."""
        b = self.benchmark
        vectors = [describe_all(model, self.source, which, len(s)) for which, s in enumerate(self.sets(b))]
        ids, _ = b.settle(rank_descriptors(vectors[0], vectors[-1], b))
        return {str(k): float(v) for k, v in recall_at_k(ids, b.positives, b.ks).items()}


def describe_all(model: PlaceModel, source: Features, which: int, count: int) -> NDArray[np.float32]:
    """(count, dim) descriptors of every image of the source's set number `which`."""
    return describe_images(model, source, which, np.arange(count))


@torch.no_grad()
def describe_images(model: PlaceModel, source: Features, which: int, ids: Ids) -> NDArray[np.float32]:
    """(len(ids), dim) descriptors of images of the source's set number `which`."""
    training = model.training
    model.eval()
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    nothing = np.zeros(0, np.int64)
    requests = [(chunk,) if which == 0 else (nothing, chunk) for chunk in chunks]
    parts = [model.suffix(fetched.features).float().cpu().numpy() for fetched in source.fetch(requests)]
    model.train(training)
    return np.concatenate(parts)


# What a run trains on: image sets, graded labels, the sampler, and which images each batch needs.


_ARRAYS = ("queries", "positives", "negatives", "psi", "further")


class Miner:
    """The round of mined tuples that training is in; part of every checkpoint."""

    def __init__(self, rounds: TupleMiner, one_set: bool) -> None:
        self.rounds, self.one_set = rounds, one_set
        self.round: MinedRound | None = None

    def batch(self, number: int) -> TupleBatch:
        """The run's `number`-th batch, with mined negatives."""
        assert self.round is not None
        return self.round.batch(*divmod(number, len(self.rounds.sampler)))

    def renew(self, number: int, model: PlaceModel, source: Features) -> int:
        """Mines the round of batch `number` unless it is at hand; returns the first batch after the round."""
        epoch, index = divmod(number, len(self.rounds.sampler))
        if self.round is None or (epoch, index) not in self.round:
            plan = self.rounds.plan(epoch, index)
            queries = describe_images(model, source, 0, plan.queries)
            pool = describe_images(model, source, 0 if self.one_set else 1, plan.pool)
            self.round = self.rounds.mine(plan, queries, pool)
        left = len(self.round.tuples) // self.round.batch_size - (index - self.round.first)
        return number + left

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        if self.round is None:
            return {}
        arrays = {name: torch.from_numpy(_owned(getattr(self.round.tuples, name))) for name in _ARRAYS}
        return {"epoch": self.round.epoch, "first": self.round.first, "mined": self.round.mined, **arrays}

    def restore(self, state: dict[str, Any]) -> None:
        """Back from `state`."""
        if state:
            tuples = TupleBatch(*(state[name].numpy() for name in _ARRAYS if name in state))
            size = self.rounds.sampler.batch_size
            self.round = MinedRound(state["epoch"], state["first"], size, tuples, state["mined"])


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).copy()


# What a run trains on: image sets, graded labels, the sampler, and which images each batch needs.


@dataclass(frozen=True, eq=False)
class Needed:
    """The distinct images of a batch, and which of them belongs at each place in the batch."""

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
    """The images that a batch needs."""
    queries, right = batch.images()
    if one_set:
        ids = np.unique(np.concatenate([queries.ravel(), right.ravel()]))
        return Needed(batch, (ids,), np.searchsorted(ids, queries), np.searchsorted(ids, right))
    mine, theirs = np.unique(queries), np.unique(right)
    return Needed(batch, (mine, theirs), np.searchsorted(mine, queries), len(mine) + np.searchsorted(theirs, right))


def relabelled(wanted: Needed, came: Ids, labels: SimilarityGraph) -> Needed:
    """The same after bad files were replaced by other images; `came` holds all ids in the order of the request."""
    if np.array_equal(np.concatenate(wanted.request), came):
        return wanted
    return replace(wanted, batch=wanted.batch.relabelled(came[wanted.left], came[wanted.right], labels))


def weighted_loss(loss: Callable[..., Tensor], wanted: Needed, descriptors: Tensor) -> Tensor:
    """The sum of a batch's weighted losses; `descriptors` (images, dim) in the order of the request."""
    za = descriptors[torch.from_numpy(wanted.left).to(descriptors.device)]
    zb = descriptors[torch.from_numpy(wanted.right).to(descriptors.device)]
    return wanted.batch.loss(loss, za, zb)


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
    labels = _labelled(recipe.labels, split, run / "labels")
    graphs = {name: _labelled(rule, split, run / name) for name, rule in recipe.batches.rules().items()}
    return TrainingData(split, labels, recipe.batches.sampler(labels, split, seed, loss=recipe.loss, graphs=graphs))


def _labelled(rule: LabelRule, split: Split, path: Path) -> SimilarityGraph:
    if not path.exists():
        graph = rule(split.queries, split.database)
        say(f"labels: {graph.pairs} pairs with ψ > 0 among {graph.shape[0]} × {graph.shape[1]} images")
        graph.save(path)
    return SimilarityGraph.open(path)


def make_miner(recipe: Recipe, data: TrainingData) -> Miner | None:
    """The miner of the recipe's batches, if they are mined."""
    rounds = recipe.batches.miner(data.sampler)
    return None if rounds is None else Miner(rounds, data.one_set)
