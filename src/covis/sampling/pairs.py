"""Batches of graded pairs whose composition holds in every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.settings import at_least, one_of
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels.rules import LabelRule
from covis.sampling.batches import BATCHES, COMPOSED_BY, Batches, Partners, check_index, drawn_and_graded
from covis.sampling.candidates import find_candidates, make_tables, possible
from covis.sampling.composition import STRATEGIES, Strategy, strategy
from covis.sampling.kernels import Candidates, draw_batches, epoch_key

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class IndexBatch:
    """Rows and columns of a graph, and the similarities between them."""

    queries: Ids
    """(B,) rows of the graph."""
    database: Ids
    """(M,) columns of the graph; of pairs as many as queries."""
    psi: NDArray[np.float32]
    """Similarities in [0, 1]: (B,) of pairs, (B, M) of lists."""

    def images(self) -> tuple[Ids, Ids]:
        """(B,) queries and (M,) map images."""
        return self.queries, self.database


@dataclass(frozen=True, eq=False)
class PairBatch(IndexBatch):
    """Index pairs of one training step."""

    weight: NDArray[np.float32]
    """(B,) weight of each pair's loss; the whole batch sums to B."""
    redrawn: int = 0
    """How many pairs took another query because theirs had no candidate in the band."""
    focus: bool = False
    """Whether pairs without overlap that are far enough apart pass their weight on to those that are not."""

    def __post_init__(self) -> None:
        lengths = {len(self.queries), len(self.database), len(self.psi), len(self.weight)}
        if len(lengths) != 1:
            raise InputError(f"a batch of pairs has arrays of different lengths {sorted(lengths)}")
        if len(self.psi) and not (self.psi.min() >= 0 and self.psi.max() <= 1):
            k = int(np.flatnonzero(~((self.psi >= 0) & (self.psi <= 1)))[0])
            raise InputError(
                f"similarity of pair ({self.queries[k]}, {self.database[k]}) is {self.psi[k]}; it must be in [0, 1]"
            )

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def total_weight(self) -> float:
        """What the sum of the batch's losses is divided by."""
        return float(self.weight.sum())

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of the weighted losses of a pair loss; za, zb (B, dim)."""
        psi, weight = za.new_tensor(self.psi), za.new_tensor(self.weight)
        losses: Tensor = loss(za, zb, psi)
        return (losses * (_focus_weights(losses.detach(), psi, weight) if self.focus else weight)).sum()

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> PairBatch:
        """The same pairs with other images: ψ is looked up again."""
        psi = labels.lookup(queries, database)
        if labels.facts.get("one_set", False):
            psi = np.where(queries == database, np.float32(1), psi)
        return replace(self, queries=queries, database=database, psi=psi)


def _focus_weights(losses: Tensor, psi: Tensor, weight: Tensor) -> Tensor:
    """The weights, with those of pairs without overlap shifted to the pairs among them whose loss is above 0."""
    apart = psi == 0
    active = apart & (losses > 0)
    share = weight[apart].sum() / weight[active].sum().clamp_min(1e-12)
    return (weight * active * share).where(apart, weight)


class QuerySampler:
    """A sampler whose epoch passes once over the queries that have candidates."""

    graph: SimilarityGraph
    batch_size: int
    candidates: Candidates

    def __len__(self) -> int:
        """Batches an epoch; the last one is filled up with the epoch's first queries."""
        return -(-len(self.candidates.eligible) // self.batch_size)


@dataclass(frozen=True, eq=False)
class PairSampler(QuerySampler):
    """Batches of pairs: one epoch passes once over the queries, every batch holds the strategy's shares.

    Nothing is remembered between calls: `batch(epoch, index)` is a function of its arguments and the fields, so that
    workers, ranks and a resumed run see the same batches.
    """

    graph: SimilarityGraph
    strategy: str | Strategy = "A"
    batch_size: int = 32
    seed: int = 0
    queries: ImageSet | None = None
    """The graph's two image sets: needed where it was labelled within groups, and to leave out images without a place."""
    database: ImageSet | None = None
    labels: SimilarityGraph | None = None
    """The graph in which ψ of the drawn pairs is looked up, if not `graph`: yes/no batches with graded losses."""
    focus: bool = False
    """As in `PairBatch`."""
    candidates: Candidates = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"a batch of {self.batch_size} pairs is empty; set batches.size=1 or more")
        if self.labels is not None and self.labels.shape != self.graph.shape:
            raise InputError(
                f"labels are {self.labels.shape}, the graph is {self.graph.shape}; both must be of one set"
            )
        tables = make_tables(self.graph, self.queries, self.database)
        chosen = possible(strategy(self.strategy), tables)
        object.__setattr__(self, "strategy", chosen)
        object.__setattr__(self, "candidates", find_candidates(tables, chosen))

    def batch(self, epoch: int, index: int) -> PairBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        queries, database, psi, weight, redrawn = self._draw(epoch, index, 1)
        return PairBatch(queries[0], database[0], psi[0], weight[0], int(redrawn[0]), self.focus)

    def draw(self, epoch: int, first: int, batches: int) -> PairBatch:
        """The batches first … first + batches − 1 of `epoch` as one, for callers that want many pairs at once."""
        queries, database, psi, weight, redrawn = self._draw(epoch, first, batches)
        return PairBatch(queries.ravel(), database.ravel(), psi.ravel(), weight.ravel(), int(redrawn.sum()), self.focus)

    def _draw(
        self, epoch: int, first: int, batches: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        key = epoch_key(self.seed, epoch)
        slots = self._slot_bands(first, batches)
        queries, database, psi, redrawn = draw_batches(self.candidates, key, first, slots)
        if self.labels is not None:
            psi = self.labels.lookup(queries, database)
        return queries, database, psi, np.ones_like(psi), redrawn

    def _slot_bands(self, first: int, batches: int) -> NDArray[np.int64]:
        """(batches, size) the band of each slot, band by band."""
        quota = strategy(self.strategy).quota(self.batch_size, np.arange(first, first + batches))
        bands = np.tile(np.arange(quota.shape[1]), batches)
        return np.repeat(bands, quota.ravel()).reshape(batches, self.batch_size)


@BATCHES.register("pairs")
@dataclass(frozen=True)
class Pairs(Batches):
    """Graded pairs; every batch holds the shares of a composition."""

    losses: ClassVar[tuple[str, ...]] = ("pairs",)
    strategy: str = "A"
    """A, B, C, D or binary."""
    size: int = 32
    """Pairs a batch."""
    composed_by: LabelRule | None = None
    """Rule that decides which pairs are drawn, where it is not the rule that grades them (yes/no batches)."""
    partners: Partners = "any"
    """Overlapping pairs of any images, or only across groups: other walks and days, as for real queries."""
    focus: bool = False
    """Whether the weight of pairs without overlap goes to those whose loss is not 0 yet."""

    def __post_init__(self) -> None:
        one_of(STRATEGIES, batch_strategy=self.strategy)
        at_least(1, size=self.size)

    def rules(self) -> Mapping[str, LabelRule]:
        """The rule that composes batches, if it is not the one that grades pairs."""
        return {} if self.composed_by is None else {COMPOSED_BY: self.composed_by}

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> PairSampler:
        """Draws such pairs."""
        drawn, graded = drawn_and_graded(labels, split, graphs, self.partners)
        return PairSampler(
            drawn, self.strategy, self.size, seed=seed, queries=split.queries, database=split.database, labels=graded,
            focus=self.focus,
        )  # fmt: skip
