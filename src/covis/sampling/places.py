"""Batches of P places × K images, as GSV-Cities trains: every pair of the images enters the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels.rules import PLACE_COLUMN, place_names
from covis.sampling.allpairs import ListBatch
from covis.sampling.batches import BATCHES, Batches, check_index


@BATCHES.register("places")
@dataclass(frozen=True)
class Places(Batches):
    """Places × images of each: places are the column `place` of a set, its groups, or squares of 25 m."""

    losses: ClassVar[tuple[str, ...]] = ("lists",)
    places: int = 60
    images: int = 4
    """Images of each place."""
    within_group: bool = False
    """Whether one group (city) comes after the other, so that nearly all negatives of a batch are of its own."""

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
        return PlacesSampler(self, labels, split.queries, seed)


class PlacesSampler:
    """Each place once an epoch, in an order of (seed, epoch), with as many of its images drawn at random."""

    def __init__(self, batches: Places, labels: SimilarityGraph, images: ImageSet, seed: int) -> None:
        self.batches, self.labels, self.seed = batches, labels, seed
        place = place_names(images)
        self.order = np.argsort(place, kind="stable")
        _, first, count = np.unique(place[self.order], return_index=True, return_counts=True)
        enough = count >= batches.images
        if enough.sum() < 2:
            raise InputError(
                f"fewer than two places have {batches.images} images; set batches.images lower, or give a column {PLACE_COLUMN!r}"
            )
        self.places = np.column_stack([first, count])[enough]
        self.group = images.group[self.order[self.places[:, 0]]]

    def __len__(self) -> int:
        """Batches an epoch; the last one is filled up with the first places."""
        return -(-len(self.places) // self.batches.places)

    def batch(self, epoch: int, index: int) -> ListBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        count = self.batches.places
        shuffled = np.random.default_rng((self.seed, epoch)).permutation(len(self.places))
        if self.batches.within_group:
            shuffled = shuffled[np.argsort(self.group[shuffled], kind="stable")]
        chosen = np.take(shuffled, np.arange(index * count, (index + 1) * count), mode="wrap")
        rng = np.random.default_rng((self.seed, epoch, index))
        drawn = [first + rng.permutation(n)[: self.batches.images] for first, n in self.places[np.unique(chosen)]]
        ids = self.order[np.concatenate(drawn)]
        psi = self.labels.lookup(ids[:, None], ids[None, :])
        return ListBatch(ids, ids, psi, ids[:, None] != ids[None, :])
