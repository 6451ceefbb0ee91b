"""What a run trains on: image sets, graded labels and the sampler of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.core.errors import InputError
from covis.core.files import sha256
from covis.core.progress import say
from covis.datasets import DATASETS
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels import LabelRule
from covis.poses import PLACE_M
from covis.reading.screening import MISSING_LIMIT, Screened, check_limits, look_at_all
from covis.sampling import Batch, Sampler, TupleMiner
from covis.training.recipe import Recipe, Shared

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

    def batch(self, number: int, miner: TupleMiner | None = None) -> Batch:
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


def refuse_shared(trained: Sequence[ImageSet], queries: ImageSet, by: Shared) -> None:
    """Raises where photos of validation are trained on: the best model by them would be the one that knows them best."""
    shared = np.flatnonzero(np.any([_SHARED[by](images, queries) for images in trained], axis=0))
    if len(shared):
        names = ", ".join(queries.name(int(i)) for i in shared[:5]) + (", …" if len(shared) > 5 else "")
        near = f" or lie within {PLACE_M:g} m of a training photo" if by == "distance" else ""
        raise InputError(
            f"{len(shared)} of {len(queries)} photos of validation are also trained on{near} ({names}); validate on other "
            "photos (--data train=A.csv --data val=B.csv), or not at all (--set validation=)"
        )


def _by_file(images: ImageSet, queries: ImageSet) -> NDArray[np.bool_]:
    known = {images.path(i).absolute() for i in range(len(images))}
    return np.array([queries.path(i).absolute() in known for i in range(len(queries))], bool)


def _by_content(images: ImageSet, queries: ImageSet) -> NDArray[np.bool_]:
    known, own = ([sha256(p) if p.is_file() else None for p in map(s.path, range(len(s)))] for s in (images, queries))
    known_digests = set(known)
    return np.array([digest is not None and digest in known_digests for digest in own], bool)


def _by_distance(images: ImageSet, queries: ImageSet) -> NDArray[np.bool_]:
    known = images.poses.xy[images.poses.known]
    return np.array([len(known) and np.hypot(*(known - xy).T).min() <= PLACE_M for xy in queries.poses.xy], bool)


_SHARED = {"file": _by_file, "content": _by_content, "distance": _by_distance}


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
