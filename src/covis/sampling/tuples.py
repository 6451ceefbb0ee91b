"""A recipe's batches of tuples: a query, one positive, several negatives, drawn or mined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling.batches import BATCHES, Batches
from covis.sampling.mining import TupleMiner
from covis.sampling.tuple_sampler import TupleSampler


@BATCHES.register("tuples")
@dataclass(frozen=True)
class Tuples(Batches):
    """A query, one positive, several negatives; random ones, or the hardest of a cache of descriptors."""

    losses: ClassVar[tuple[str, ...]] = ("tuples",)
    size: int = 4
    """Tuples a batch."""
    negatives: int = 10
    """Negatives a tuple."""
    soft_share: float = 0.0
    """Share of the negatives with 0 < ψ < 0.5, for losses that use graded negatives."""
    mined: bool = False
    """Whether negatives are the hardest of a cache of descriptors, renewed every `refresh` batches."""
    refresh: int = 250
    pool: int = 1000
    """How many candidates the cache holds."""

    def __post_init__(self) -> None:
        at_least(1, size=self.size, negatives=self.negatives, refresh=self.refresh, pool=self.pool)
        if not 0 <= self.soft_share <= 1:
            raise InputError(f"soft_share is {self.soft_share}; expected a share from 0 to 1")

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> TupleSampler:
        """Draws such tuples, with a second negative where the loss compares negatives with each other."""
        return TupleSampler(
            labels, self.negatives, self.size, seed=seed, queries=split.queries, database=split.database,
            soft_share=self.soft_share, second_negative=loss.second_negative,
        )  # fmt: skip

    def miner(self, sampler: TupleSampler) -> TupleMiner | None:
        """The miner that finds the hardest negatives, if they are `mined`."""
        return TupleMiner(sampler, self.refresh, self.pool) if self.mined else None
