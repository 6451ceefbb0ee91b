"""Batches of graded pairs whose composition holds in every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.settings import at_least, one_of
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.labels.rules import LabelRule
from covis.sampling.batches import BATCHES, Batches, check_index
from covis.sampling.candidates import Candidates, find_candidates, make_tables, pick, possible
from covis.sampling.composition import STRATEGIES
from covis.sampling.draws import RandomKey, below, epoch_key, permute

if TYPE_CHECKING:
    from torch import Tensor

Partners = Literal["any", "other_groups"]
_REDRAW, _PARTNER = 1, 2
_COMPOSED_BY = "yes-no"
"""Name of the graph that composes batches where it is not the one that grades them."""


@dataclass(frozen=True)
class ComposedBatches(Batches):
    """What batches of pairs have in common: a composition by bands of ψ."""

    strategy: str = "A"
    """A, B, C, D or binary: the share of each band of ψ."""
    size: int = 32
    """How large a batch is."""
    composed_by: LabelRule | None = None
    """Rule that decides what is drawn and in which band a pair counts, if not the rule that grades the pairs."""
    partners: Partners = "any"
    """Overlapping pairs of any images, or only across groups: other walks and days, as for real queries."""
    focus: bool = False
    """Whether the weight of pairs without overlap goes to those whose loss is not 0 yet."""

    def __post_init__(self) -> None:
        one_of(STRATEGIES, batch_strategy=self.strategy)
        at_least(1, size=self.size)

    def rules(self) -> Mapping[str, LabelRule]:
        """The rule that composes batches, if it is not the one that grades pairs."""
        return {} if self.composed_by is None else {_COMPOSED_BY: self.composed_by}

    def drawn_and_graded(
        self, labels: SimilarityGraph, split: Split, graphs: Mapping[str, SimilarityGraph]
    ) -> tuple[SimilarityGraph, SimilarityGraph | None]:
        """The graph that decides which pairs are drawn, and the one that grades them, if it is another (else None)."""
        drawn = graphs.get(_COMPOSED_BY, labels)
        if self.partners == "other_groups":
            across = split.queries.group[drawn.rows] != split.database.group[drawn.indices]
            drawn = drawn.keep(across, partners=self.partners)
        return drawn, None if drawn is labels else labels


@BATCHES.register("pairs")
@dataclass(frozen=True)
class Pairs(ComposedBatches):
    """Graded pairs; every batch holds the shares of a composition, `size` pairs in all."""

    losses: ClassVar[tuple[str, ...]] = ("pairs",)

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> PairSampler:
        """Draws such pairs."""
        drawn, graded = self.drawn_and_graded(labels, split, graphs)
        return PairSampler(self, drawn, split, seed, graded)


class PairSampler:
    """Batches of pairs: one epoch passes once over the queries, every batch holds the strategy's shares.

    Nothing is remembered between calls: a batch is a function of the arguments, so that workers, ranks and a resumed
    run see the same batches. split: the graph's two image sets, needed where it was labelled within groups, and to
    leave out images without a place. labels: the graph in which ψ of the drawn pairs is looked up, if not `graph`.
    """

    def __init__(
        self,
        batches: Pairs,
        graph: SimilarityGraph,
        split: Split | None = None,
        seed: int = 0,
        labels: SimilarityGraph | None = None,
    ) -> None:
        self.batches, self.graph, self.seed, self.labels = batches, graph, seed, labels
        tables = make_tables(graph, split)
        self.strategy = possible(STRATEGIES[batches.strategy], tables)
        self.candidates = find_candidates(tables, self.strategy)

    def __len__(self) -> int:
        """Batches an epoch; the last one is filled up with the epoch's first queries."""
        return -(-len(self.candidates.eligible) // self.batches.size)

    def batch(self, epoch: int, index: int) -> PairBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        return self.draw(epoch, index, 1)

    def draw(self, epoch: int, first: int, count: int) -> PairBatch:
        """The batches first … first + count − 1 of `epoch` as one, for callers that want many pairs at once."""
        quota = self.strategy.quota(self.batches.size, np.arange(first, first + count))
        bands = np.repeat(np.tile(np.arange(quota.shape[1]), count), quota.ravel()).reshape(count, -1)
        c, key, eligible = self.candidates, epoch_key(self.seed, epoch), self.candidates.eligible
        positions = first * bands.shape[1] + np.arange(bands.size)
        queries = eligible[permute(key, positions % len(eligible), len(eligible))].astype(np.int64).reshape(bands.shape)
        redrawn = sum(map(partial(assign_queries, c, key), positions.reshape(bands.shape), queries, bands))
        i, band = queries.ravel(), bands.ravel()
        database, psi = pick(c, i, band, below(key, positions, _PARTNER, c.counts[i, band]))
        if self.labels is not None:
            psi = self.labels.lookup(i, database)
        return PairBatch(i, database, psi, np.ones_like(psi), redrawn, self.batches.focus)


def assign_queries(c: Candidates, key: RandomKey, positions: Ids, queries: Ids, bands: Ids) -> int:
    """Gives each slot of a batch a query with a candidate in its band, in place; returns how many had to be redrawn.

    A query without a candidate in its slot's band swaps places with a suitable one of the same batch; if there is none,
    another query that has a candidate takes the slot.
    """
    redrawn = 0
    for s in np.flatnonzero(c.counts[queries, bands] == 0):
        band = bands[s]
        if c.counts[queries[s], band] > 0:  # by an earlier swap
            continue
        others = np.roll(np.arange(len(queries)), -s)[1:]
        both = (c.counts[queries[s], bands[others]] > 0) & (c.counts[queries[others], band] > 0)
        suited = others[both & (bands[others] != band)]
        if len(suited):
            queries[[s, suited[0]]] = queries[[suited[0], s]]
        else:
            rows = c.band_rows[band]
            queries[s] = rows[below(key, positions[s], _REDRAW, len(rows))]
            redrawn += 1
    return redrawn


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
