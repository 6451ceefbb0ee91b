"""Batches of tuples: a query, one positive, several negatives, drawn at random or mined.

Mining goes in rounds: a round draws the tuples of the next batches, has their queries and a pool of map images
described by the model as it is, and replaces negatives by the most similar images of the pool that do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Descriptors, Ids
from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import Split
from covis.sampling.batches import BATCHES, Batches, check_index
from covis.sampling.candidates import Tables, find_candidates, make_tables, pick, pick_zeros
from covis.sampling.composition import Band, Strategy
from covis.sampling.draws import RandomKey, below, epoch_key, permute

if TYPE_CHECKING:
    from torch import Tensor

_THIRD = Fraction(1, 3)
_BANDS = Strategy("tuples", (Band(POSITIVE, 1, _THIRD), Band(0, POSITIVE, _THIRD), Band(0, 0, _THIRD, zero=True)))
_PURPOSE, _ROUND = 1, 2
_POSITIVE, _NEGATIVE, _SECOND = 4, 5, 200
_TRIES = 64
"""Draws after which a negative may repeat an earlier one of its tuple, or a second one overlap with others."""


@BATCHES.register("tuples")
@dataclass(frozen=True)
class Tuples(Batches):
    """A query, one positive, several negatives; random ones, or the hardest of a pool of described images."""

    losses: ClassVar[tuple[str, ...]] = ("tuples",)
    size: int = 4
    """Tuples a batch."""
    negatives: int = 10
    """Negatives a tuple."""
    soft_share: float = 0.0
    """Share of the negatives with 0 < ψ < 0.5, for losses that use graded negatives."""
    mined: bool = False
    """Whether negatives are the hardest of a pool of described images, renewed every `refresh` batches."""
    refresh: int = 250
    pool: int = 1000
    """How many map images are described in each round."""

    def __post_init__(self) -> None:
        at_least(1, size=self.size, negatives=self.negatives, refresh=self.refresh, pool=self.pool)
        if not 0 <= self.soft_share <= 1:
            raise InputError(f"soft_share is {self.soft_share}; expected a share from 0 to 1")
        if self.mined and self.pool < self.negatives:
            raise InputError(
                f"a pool of {self.pool} images cannot give {self.negatives} negatives; set batches.pool higher"
            )

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> TupleSampler:
        """Draws such tuples, with a second negative where the loss compares negatives with each other."""
        return TupleSampler(self, labels, split, seed, second_negative=loss.second_negative)

    def miner(self, sampler: TupleSampler) -> TupleMiner | None:
        """What finds the hardest negatives, if they are `mined`."""
        return TupleMiner(sampler) if self.mined else None


@dataclass(frozen=True, eq=False)
class TupleBatch:
    """Index tuples of one training step."""

    queries: Ids
    """(B,) rows of the graph."""
    database: Ids
    """(B, 1 + n) columns of the graph: the positive (ψ ≥ 0.5), then negatives (ψ < 0.5)."""
    psi: NDArray[np.float32]
    """(B, 1 + n) similarities of the query with each of them."""
    redrawn: int = 0
    """0: queries without a positive start no tuple, so none has to be replaced."""

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def total_weight(self) -> float:
        """What the sum of the batch's losses is divided by."""
        return float(len(self))

    def images(self) -> tuple[Ids, Ids]:
        """(B,) queries and (B, 1 + n) map images, the positive first."""
        return self.queries, self.database

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of a tuple loss; za (B, dim), zb (B, 1 + n, dim)."""
        losses: Tensor = loss(za, zb[:, 0], zb[:, 1:], za.new_tensor(self.psi))
        return losses.sum()

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> TupleBatch:
        """The same batch: a tuple depends only on which image is its positive."""
        return self


class TupleSampler:
    """Batches of tuples with random negatives; one epoch passes once over the queries that have a positive.

    Stateless as `PairSampler` is, whose arguments these are. second_negative: whether the last negative must overlap
    with none of the others (quadruplets).
    """

    def __init__(
        self,
        batches: Tuples,
        graph: SimilarityGraph,
        split: Split | None = None,
        seed: int = 0,
        *,
        second_negative: bool = False,
    ) -> None:
        self.batches, self.graph, self.split, self.seed = batches, graph, split, seed
        self.second_negative = second_negative
        if batches.negatives < 1 + second_negative:
            raise InputError("a quadruplet has two negatives or more; set batches.negatives=2 or more")
        self.one_set = bool(graph.facts.get("one_set", False))
        if second_negative and not self.one_set and (split is None or "radius_m" not in graph.facts):
            raise InputError("second negatives between two sets are told apart by position; use labels with a radius")
        candidates = find_candidates(make_tables(graph, split), _BANDS, required=(0, 2))
        usable = (candidates.counts[:, 0] > 0) & (candidates.counts[:, 2] > 0)
        if not usable.any():
            raise InputError("no query has both a positive and an image without overlap; tuples cannot be drawn")
        self.candidates = candidates._replace(eligible=np.flatnonzero(usable).astype(np.int32))

    def __len__(self) -> int:
        """Batches an epoch; the last one is filled up with the epoch's first queries."""
        return -(-len(self.candidates.eligible) // self.batches.size)

    def batch(self, epoch: int, index: int) -> TupleBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        return self.draw(epoch, index * self.batches.size, self.batches.size)

    def draw(self, epoch: int, first: int, size: int) -> TupleBatch:
        """The tuples of positions first … first + size − 1 of `epoch`."""
        key = epoch_key(self.seed, epoch, _PURPOSE)
        positions, eligible = np.arange(first, first + size), self.candidates.eligible
        queries = eligible[permute(key, positions % len(eligible), len(eligible))].astype(np.int64)
        batch = TupleBatch(queries, *self._draw_images(key, positions, queries))
        return self.with_second_negatives(batch, epoch, first) if self.second_negative else batch

    def _draw_images(self, key: RandomKey, positions: Ids, queries: Ids) -> tuple[Ids, NDArray[np.float32]]:
        """A positive for each query, then negatives with their ψ; none is drawn twice unless a query has fewer."""
        c, width = self.candidates, 1 + self.batches.negatives
        soft = round(self.batches.soft_share * (self.batches.negatives - self.second_negative))
        graded = np.minimum(soft, c.counts[queries, 1])
        database, psi = np.empty((len(queries), width), np.int64), np.empty((len(queries), width), np.float32)
        for column in range(width):
            band = np.zeros(len(queries), np.int64) if column == 0 else np.where(column <= graded, 1, 2)
            left = np.arange(len(queries))
            for attempt in range(_TRIES):
                stream = _NEGATIVE + attempt if column else _POSITIVE
                count = c.counts[queries[left], band[left]]
                k = below(key, positions[left] * width + column, stream, count)
                database[left, column], psi[left, column] = pick(c, queries[left], band[left], k)
                left = left[(database[left, 1:column] == database[left, column, None]).any(1)]
                if not len(left):
                    break
        return database, psi

    def with_second_negatives(self, batch: TupleBatch, epoch: int, first: int) -> TupleBatch:
        """The batch with its last negatives replaced by ψ = 0 images that overlap with no other negative.

        Of up to 64 candidates the first that overlaps with none is taken, else the one that overlaps with the fewest.
        """
        key, zeros = epoch_key(self.seed, epoch, _PURPOSE), self.candidates.tables.zeros
        database, psi = batch.database.copy(), batch.psi.copy()
        psi[:, -1] = 0
        fewest = np.full(len(batch), database.shape[1])
        for attempt in range(_TRIES):
            rows = np.flatnonzero(fewest > 0)
            if not len(rows):
                break
            queries = batch.queries[rows]
            k = below(key, first + rows, _SECOND + attempt, zeros[queries])
            images = pick_zeros(self.candidates.tables, queries, k)
            overlaps = self._overlaps(images, database[rows, 1:-1])
            better = overlaps < fewest[rows]
            database[rows[better], -1], fewest[rows[better]] = images[better], overlaps[better]
        return TupleBatch(batch.queries, database, psi)

    def _overlaps(self, images: Ids, negatives: Ids) -> Ids:
        """(K,) how many of `negatives` (K, n − 1) each image may overlap; the image itself counts."""
        same = negatives == images[:, None]
        if self.one_set:
            return np.asarray((same | (self.graph.lookup(images[:, None], negatives) > 0)).sum(1))
        assert self.split is not None
        xy = self.split.database.poses.xy
        gap_m = np.linalg.norm(xy[negatives] - xy[images][:, None], axis=-1)
        reach_m = 2 * float(np.max(self.graph.facts["radius_m"]))  # two depths of view
        return np.asarray((same | (gap_m < reach_m)).sum(1))


Describe = Callable[[int, Ids], Descriptors]
"""(0 for queries or 1 for the map, ids) → unit descriptors (len(ids), dim)."""


class TupleMiner:
    """The round of tuples that a run is in, their negatives the hardest of newly described map images."""

    def __init__(self, sampler: TupleSampler) -> None:
        self.sampler = sampler
        self.epoch, self.first = -1, 0
        self.tuples: TupleBatch | None = None
        """Those of the round, one batch after another; where the pool had too few candidates, negatives are random."""

    def renew(self, number: int, describe: Describe) -> int:
        """Mines the round of the run's `number`-th batch unless it is at hand; returns the first batch after it."""
        epoch, index = divmod(number, len(self.sampler))
        refresh = self.sampler.batches.refresh
        first = index - index % refresh
        if (epoch, first) != (self.epoch, self.first):
            self.epoch, self.first, self.tuples = epoch, first, self._mined(epoch, first, describe)
        return number + min(first + refresh, len(self.sampler)) - index

    def batch(self, number: int) -> TupleBatch:
        """The run's `number`-th batch, which must be of the round."""
        epoch, index = divmod(number, len(self.sampler))
        size = self.sampler.batches.size
        part = slice((index - self.first) * size, (index - self.first + 1) * size)
        if self.tuples is None or epoch != self.epoch or not 0 <= part.start < len(self.tuples):
            raise InputError(f"batch {number} is not in the mined round; renew it first")
        return TupleBatch(self.tuples.queries[part], self.tuples.database[part], self.tuples.psi[part])

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps."""
        if self.tuples is None:
            return {}
        t = self.tuples
        return {"at": np.array([self.epoch, self.first]), "queries": t.queries, "database": t.database, "psi": t.psi}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Back from `state`."""
        if state:
            self.epoch, self.first = (int(x) for x in state["at"])
            self.tuples = TupleBatch(state["queries"], state["database"], state["psi"])

    def _mined(self, epoch: int, first: int, describe: Describe) -> TupleBatch:
        sampler, size = self.sampler, self.sampler.batches.size
        count = min(sampler.batches.refresh, len(sampler) - first)
        tuples = sampler.draw(epoch, first * size, count * size)
        queries, pool = np.unique(tuples.queries), self._pool(epoch, first)
        farness = -(describe(0, queries) @ describe(1, pool).T)
        farness[_forbidden(sampler.candidates.tables, queries, pool)] = np.inf
        n = min(sampler.batches.negatives - sampler.second_negative, len(pool))
        order = np.argsort(farness, axis=1, kind="stable")[:, :n]
        hardest = np.where(np.take_along_axis(farness, order, 1) < np.inf, pool[order], -1)
        hardest = hardest[np.searchsorted(queries, tuples.queries)]
        database, psi = tuples.database.copy(), tuples.psi.copy()
        database[:, 1 : 1 + n][hardest >= 0] = hardest[hardest >= 0]
        psi[:, 1 : 1 + n][hardest >= 0] = 0
        mined = TupleBatch(tuples.queries, database, psi)
        return sampler.with_second_negatives(mined, epoch, first * size) if sampler.second_negative else mined

    def _pool(self, epoch: int, first: int) -> Ids:
        """The map images that compete in the round, ascending."""
        ids = self.sampler.candidates.tables.pool_ids
        # Each round has its own key, so that rounds of one epoch look at different images.
        key = epoch_key(int(epoch_key(self.sampler.seed, epoch, _ROUND) >> np.uint64(1)), first, _ROUND)
        chosen = permute(key, np.arange(min(self.sampler.batches.pool, len(ids))), len(ids))
        return np.sort(ids[chosen]).astype(np.int64)


def _forbidden(tables: Tables, queries: Ids, pool: Ids) -> NDArray[np.bool_]:
    """(Q, P) pairs that are no negatives: overlapping, of another pool, or an image with itself."""
    wrong = np.asarray(tables.row_pool[queries][:, None] != tables.pool_of[pool][None, :])
    if tables.one_set:
        wrong |= queries[:, None] == pool[None, :]
    for row, query in zip(wrong, queries, strict=True):
        row |= np.isin(pool, tables.graph.row(query)[0])
    return wrong
