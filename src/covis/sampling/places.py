"""Batches of P places × K images, as GSV-Cities trains: every pair of the images enters the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels.rules import PLACE_COLUMN, place_names
from covis.sampling.allpairs import ListBatch
from covis.sampling.batches import BATCHES, Batches, check_index


@dataclass(frozen=True, eq=False)
class PlacesSampler:
    """Each place once an epoch, in an order of (seed, epoch), with `per_place` of its images drawn at random."""

    labels: SimilarityGraph
    images: ImageSet
    places: int
    per_place: int
    seed: int = 0
    _order: NDArray[np.int64] = field(init=False, repr=False)
    _starts: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        place = place_names(self.images)
        order = np.argsort(place, kind="stable")
        _, first, count = np.unique(place[order], return_index=True, return_counts=True)
        enough = count >= self.per_place
        if enough.sum() < 2:
            raise InputError(
                f"fewer than two places have {self.per_place} images; set batches.images lower, or give a column {PLACE_COLUMN!r}"
            )
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_starts", np.column_stack([first, count])[enough])

    def __len__(self) -> int:
        """Batches an epoch; the last one is filled up with the first places."""
        return -(-len(self._starts) // self.places)

    def batch(self, epoch: int, index: int) -> ListBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        shuffled = np.random.default_rng((self.seed, epoch)).permutation(len(self._starts))
        chosen = np.take(shuffled, np.arange(index * self.places, (index + 1) * self.places), mode="wrap")
        rng = np.random.default_rng((self.seed, epoch, index))
        drawn = [first + rng.permutation(count)[: self.per_place] for first, count in self._starts[np.unique(chosen)]]
        ids = self._order[np.concatenate(drawn)]
        psi = self.labels.lookup(ids[:, None], ids[None, :])
        return ListBatch(ids, ids, psi, ids[:, None] != ids[None, :])


@BATCHES.register("places")
@dataclass(frozen=True)
class Places(Batches):
    """Places × images of each: places are the column `place` of a set, its groups, or squares of 25 m."""

    losses: ClassVar[tuple[str, ...]] = ("lists",)
    places: int = 60
    images: int = 4
    """Images of each place."""

    def __post_init__(self) -> None:
        at_least(2, places=self.places, images=self.images)

    @property
    def size(self) -> int:  # type: ignore[override]
        """Images a batch."""
        return self.places * self.images

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> PlacesSampler:
        """Draws such images."""
        if split.queries is not split.database:
            raise InputError("batches=places needs a set that is matched with itself; use batches=all_pairs")
        return PlacesSampler(labels, split.queries, self.places, self.images, seed)
