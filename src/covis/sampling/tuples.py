"""Batches of tuples: a query, one positive, several negatives, drawn or mined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet, Split
from covis.sampling.batches import BATCHES, Band, Batches, Strategy, check_index
from covis.sampling.kernels import Candidates, draw_tuples, epoch_key, many_below, permute_many, pick_zeros
from covis.sampling.pairs import NearZeros, QuerySampler, Zeros, find_candidates, make_tables, near_zeros

if TYPE_CHECKING:
    from torch import Tensor


_THIRD = Fraction(1, 3)
_BANDS = Strategy("tuples", (Band(POSITIVE, 1, _THIRD), Band(0, POSITIVE, _THIRD), Band(0, 0, _THIRD, zero=True)))
_PURPOSE, _SHUFFLE, _SECOND, _FURTHER, _TRIES = 1, 100, 200, 300, 64


@dataclass(frozen=True, eq=False)
class TupleBatch:
    """Index tuples of one training step."""

    queries: NDArray[np.int64]
    """(B,) rows of the graph."""
    positives: NDArray[np.int64]
    """(B,) columns of the graph with ψ of at least 0.5."""
    negatives: NDArray[np.int64]
    """(B, n) columns of the graph with ψ below 0.5."""
    psi: NDArray[np.float32]
    """(B, 1 + n) similarity of the query with the positive and with each negative."""
    further: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """(B, k) further positives, for losses that use them; an image may occur twice where a query has few."""

    def __post_init__(self) -> None:
        b, n = self.negatives.shape
        if not self.further.size:
            object.__setattr__(self, "further", np.zeros((b, 0), np.int64))
        if self.queries.shape != (b,) or self.positives.shape != (b,) or self.psi.shape != (b, 1 + n):
            raise InputError(
                f"a batch of {b} tuples with {n} negatives has queries {self.queries.shape}, positives "
                f"{self.positives.shape} and similarities {self.psi.shape}"
            )

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def redrawn(self) -> int:
        """0: queries without a positive start no tuple, so none has to be replaced."""
        return 0

    @property
    def total_weight(self) -> float:
        """What the sum of the batch's losses is divided by."""
        return float(len(self))

    def images(self) -> tuple[Ids, Ids]:
        """(B,) queries and (B, 1 + n + k) map images, the positive first, further ones last."""
        return self.queries, np.column_stack([self.positives, self.negatives, self.further])

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of a tuple loss; za (B, …, dim), zb (B, 1 + n + k, …, dim)."""
        behind = 1 + self.negatives.shape[1]
        further = (zb[:, behind:],) if self.further.shape[1] else ()
        losses: Tensor = loss(za, zb[:, 0], zb[:, 1:behind], za.new_tensor(self.psi), *further)
        return losses.sum()

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> TupleBatch:
        """The same batch: a tuple depends only on which image is its positive."""
        return self


@dataclass(frozen=True, eq=False)
class TupleSampler(QuerySampler):
    """Batches of tuples with random negatives; one epoch passes once over the queries that have a positive.

    Stateless as `PairSampler` is. Negatives that are hard for the current model come from `TupleMiner`.
    """

    graph: SimilarityGraph
    negatives: int = 10
    batch_size: int = 4
    """Tuples a batch."""
    seed: int = 0
    queries: ImageSet | None = None
    """The graph's two image sets: needed where it was labelled within groups, for near negatives and for second
    negatives between two sets."""
    database: ImageSet | None = None
    zeros: Zeros = "uniform"
    """Which ψ = 0 images are negatives: any, or those among the closest."""
    soft_share: float = 0.0
    """Share of the negatives with ψ in (0, 0.5), for losses that use graded negatives."""
    second_negative: bool = False
    """Whether the last negative must overlap with none of the others (quadruplets)."""
    further: int = 0
    """Further positives a tuple."""
    candidates: Candidates = field(init=False, repr=False)
    near: NearZeros | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.negatives < 1 + self.second_negative or not 0 <= self.soft_share <= 1:
            raise InputError(
                f"tuples of {self.negatives} negatives ({self.soft_share:.0%} soft, second negative "
                f"{self.second_negative}) in batches of {self.batch_size} cannot be drawn; give at least one of each, two "
                "negatives for quadruplets and a share in [0, 1]"
            )
        if self.second_negative and not self._one_set and (self.database is None or self._reach is None):
            raise InputError("second negatives between two sets are told apart by position; give both image sets")
        tables = make_tables(self.graph, self.queries, self.database)
        object.__setattr__(self, "candidates", _with_both_sides(find_candidates(tables, _BANDS, required=(0, 2))))
        object.__setattr__(self, "near", near_zeros(self.graph, tables, self.zeros, self.queries, self.database))

    def batch(self, epoch: int, index: int) -> TupleBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        return self.draw(epoch, index * self.batch_size, self.batch_size)

    def draw(self, epoch: int, first: int, size: int) -> TupleBatch:
        """The tuples of positions first … first + size − 1 of `epoch`."""
        key = epoch_key(self.seed, epoch, _PURPOSE)
        database = np.empty((size, 1 + self.negatives), np.int64)
        psi = np.empty(database.shape, np.float32)
        soft = round(self.soft_share * (self.negatives - self.second_negative))
        queries = draw_tuples(self.candidates, key, first, soft, database, psi)
        if self.near is not None:
            self._bring_near(queries, database, psi, epoch, first)
        further = self.ordered_positives(queries, self.further, epoch)
        batch = TupleBatch(queries, database[:, 0], database[:, 1:], psi, further)
        return self.with_second_negatives(batch, epoch, first) if self.second_negative else batch

    def ordered_positives(self, queries: NDArray[np.int64], count: int, epoch: int) -> NDArray[np.int64]:
        """(K, count) positives of each query in an order given by (seed, epoch); they repeat where there are fewer."""
        if not count:
            return np.zeros((len(queries), 0), np.int64)
        key, positives = epoch_key(self.seed, epoch, _PURPOSE), np.empty((len(queries), count), np.int64)
        for row, query in zip(positives, queries.tolist(), strict=True):
            ids, psi = self.graph.row(query)
            ids = ids[psi >= POSITIVE]
            turn = many_below(key, query * (1 << 20) + np.arange(len(ids)), _FURTHER, np.full(len(ids), 1 << 62))
            row[:] = np.resize(ids[np.argsort(turn, kind="stable")], count)
        return positives

    def _bring_near(
        self,
        queries: NDArray[np.int64],
        database: NDArray[np.int64],
        psi: NDArray[np.float32],
        epoch: int,
        first: int,
    ) -> None:
        """Replaces ψ = 0 negatives by distinct near ones, as many as there are."""
        assert self.near is not None
        near = self.near.closest(queries)
        key = epoch_key(self.seed, epoch, _PURPOSE)
        for s, row in enumerate(near):
            there = row[row >= 0]
            turn = many_below(
                key, np.arange(len(there)) + (first + s) * len(row), _SHUFFLE, np.full(len(there), 1 << 62)
            )
            shuffled = there[np.argsort(turn, kind="stable")]
            slots = 1 + np.flatnonzero(psi[s, 1:] == 0)[: len(shuffled)]
            database[s, slots] = shuffled[: len(slots)]

    def with_second_negatives(self, batch: TupleBatch, epoch: int, first: int) -> TupleBatch:
        """The batch with its last negatives replaced by ψ = 0 images that overlap with no other negative.

        Of up to 64 candidates the first that overlaps with none is taken, else the one that overlaps with the fewest.
        """
        key, zeros = epoch_key(self.seed, epoch, _PURPOSE), self.candidates.zeros
        negatives = batch.negatives.copy()
        psi = batch.psi.copy()
        psi[:, -1] = 0
        position = first + np.arange(len(batch))
        fewest = np.full(len(batch), self.negatives)
        for attempt in range(_TRIES):
            rows = np.flatnonzero(fewest > 0)
            if not len(rows):
                break
            k = many_below(key, position[rows], _SECOND + attempt, zeros[batch.queries[rows]].astype(np.int64))
            tried = pick_zeros(self.candidates.tables, batch.queries[rows], k)
            overlaps = self._overlaps(tried, negatives[rows, :-1])
            better = overlaps < fewest[rows]
            negatives[rows[better], -1], fewest[rows[better]] = tried[better], overlaps[better]
        return TupleBatch(batch.queries, batch.positives, negatives, psi, batch.further)

    def _overlaps(self, other: NDArray[np.int64], negatives: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) how many of `negatives` (K, n − 1) each image of `other` (K,) may overlap; the image itself counts."""
        same = negatives == other[:, None]
        if self._one_set:
            return np.asarray((same | (self.graph.lookup(other[:, None], negatives) > 0)).sum(1))
        assert self.database is not None
        xy = self.database.poses.xy
        apart = np.linalg.norm(xy[negatives] - xy[other][:, None], axis=-1)
        return np.asarray((same | (apart < (self._reach or 0.0))).sum(1))

    @property
    def _one_set(self) -> bool:
        return bool(self.graph.facts.get("one_set", False))

    @property
    def _reach(self) -> float | None:
        """Metres between two map images from which they cannot overlap: two depths of view."""
        radius = self.graph.facts.get("radius_m")
        return None if radius is None else 2 * float(np.max(radius))


def _with_both_sides(candidates: Candidates) -> Candidates:
    """The same with only those queries eligible that have a positive and a ψ = 0 partner."""
    both = (candidates.counts[:, 0] > 0) & (candidates.zeros > 0)
    if not both.any():
        raise InputError("no query has both a positive and an image without overlap; tuples cannot be drawn")
    return candidates._replace(eligible=np.flatnonzero(both).astype(np.int32))


# Hard negatives, mined offline: images that the current model finds similar to the query although they do not overlap.
#
# Mining goes in rounds. A round serves the next `refresh` batches: `plan` says which images to describe, the caller
# describes them with its model, and `mine` puts the hardest into the round's tuples. Memory is bounded by the plan, not
# by the map.


_ROUND = 2
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class MiningPlan:
    """One round: its tuples with random negatives, and the map images that compete to be better ones."""

    epoch: int
    first: int
    """Batch of the epoch that the round starts with."""
    batch_size: int
    tuples: TupleBatch
    """The round's tuples, one batch after another."""
    queries: NDArray[np.int64]
    """(Q,) distinct queries to describe, ascending."""
    pool: NDArray[np.int64]
    """(P,) distinct map images to describe, ascending."""
    rivals: NDArray[np.int64]
    """(Q, r) positives of each query, all of them in the pool, to be ordered by the model."""

    def bytes_needed(self, dim: int) -> int:
        """Memory that mining this round takes with float32 descriptors of `dim`."""
        return 4 * dim * (len(self.queries) + len(self.pool)) + 8 * _BLOCK_BYTES


@dataclass(frozen=True, eq=False)
class MinedRound:
    """The tuples of a round with hard negatives; plain arrays, so that a checkpoint can hold them."""

    epoch: int
    first: int
    batch_size: int
    tuples: TupleBatch
    mined: int
    """How many negatives are mined; for the others the pool had no candidate left, so they stayed random."""

    def __contains__(self, at: tuple[int, int]) -> bool:
        """Whether (epoch, index) is a batch of this round."""
        epoch, index = at
        return epoch == self.epoch and 0 <= (index - self.first) * self.batch_size < len(self.tuples)

    def batch(self, epoch: int, index: int) -> TupleBatch:
        """Batch `index` of `epoch`."""
        if (epoch, index) not in self:
            raise InputError(
                f"batch {index} of epoch {epoch} is not in the mined round from {self.first}; mine it first"
            )
        t, start = self.tuples, (index - self.first) * self.batch_size
        part = slice(start, start + self.batch_size)
        return TupleBatch(t.queries[part], t.positives[part], t.negatives[part], t.psi[part], t.further[part])


@dataclass(frozen=True, eq=False)
class TupleMiner:
    """Mines negatives for the tuples of a sampler, every `refresh` batches among `pool` newly drawn map images."""

    sampler: TupleSampler
    refresh: int = 250
    pool: int = 1000

    def __post_init__(self) -> None:
        if self.refresh < 1 or self.pool < self.sampler.negatives:
            raise InputError(
                f"mining every {self.refresh} batches among {self.pool} images cannot give {self.sampler.negatives} "
                "negatives; give at least one batch and a pool of at least the negatives"
            )

    def plan(self, epoch: int, index: int) -> MiningPlan:
        """The round that batch `index` of `epoch` belongs to; the same on every call."""
        first = index - index % self.refresh
        batches = min(self.refresh, len(self.sampler) - first)
        size = self.sampler.batch_size
        tuples = self.sampler.draw(epoch, first * size, batches * size)
        queries = np.unique(tuples.queries)
        rivals = self._rivals(queries, epoch)
        return MiningPlan(epoch, first, size, tuples, queries, np.union1d(self._pool(epoch, first), rivals), rivals)

    def _rivals(self, queries: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """(Q, 2·(1 + k)) positives that compete to be the nearest ones, where a tuple has further positives."""
        count = 2 * (1 + self.sampler.further) if self.sampler.further else 0
        return self.sampler.ordered_positives(queries, count, epoch)

    def _pool(self, epoch: int, first: int) -> NDArray[np.int64]:
        ids = self.sampler.candidates.tables.pool_ids
        # Each round has its own key, so that rounds of one epoch look at different images.
        key = epoch_key(int(epoch_key(self.sampler.seed, epoch, _ROUND) >> np.uint64(1)), first, _ROUND)
        return np.sort(ids[permute_many(key, min(self.pool, len(ids)), len(ids))]).astype(np.int64)

    def mine(self, plan: MiningPlan, queries: NDArray[np.float32], pool: NDArray[np.float32]) -> MinedRound:
        """The plan's tuples with the hardest negatives of the pool, hardest first.

        `queries` (Q, dim) and `pool` (P, dim): unit descriptors of the plan's queries and pool, in its order.
        """
        if len(queries) != len(plan.queries) or len(pool) != len(plan.pool):
            raise InputError(
                f"the plan has {len(plan.queries)} queries and {len(plan.pool)} map images; "
                f"{len(queries)} and {len(pool)} were described"
            )
        hardest = self._hardest(plan, queries, pool)[np.searchsorted(plan.queries, plan.tuples.queries)]
        negatives, psi = plan.tuples.negatives.copy(), plan.tuples.psi.copy()
        mined = hardest >= 0
        negatives[:, : hardest.shape[1]][mined] = hardest[mined]
        psi[:, 1 : 1 + hardest.shape[1]][mined] = 0
        tuples = TupleBatch(plan.tuples.queries, plan.tuples.positives, negatives, psi, plan.tuples.further)
        if self.sampler.further:
            tuples = self._nearest_positives(plan, tuples, queries, pool)
        if self.sampler.second_negative:
            tuples = self.sampler.with_second_negatives(tuples, plan.epoch, plan.first * plan.batch_size)
        return MinedRound(plan.epoch, plan.first, plan.batch_size, tuples, int(mined.sum()))

    def _nearest_positives(
        self, plan: MiningPlan, tuples: TupleBatch, queries: NDArray[np.float32], pool: NDArray[np.float32]
    ) -> TupleBatch:
        """The tuples with the most similar of the rivals as positive, and the next ones as further positives."""
        at = np.searchsorted(plan.pool, plan.rivals)
        similar = np.stack([pool[near] @ query for near, query in zip(at, queries, strict=True)])
        order = np.argsort(-similar, axis=1, kind="stable")
        nearest = np.empty((len(plan.queries), 1 + self.sampler.further), np.int64)
        for row, ids in zip(nearest, np.take_along_axis(plan.rivals, order, 1), strict=True):
            _, first = np.unique(ids, return_index=True)
            row[:] = np.resize(ids[np.sort(first)], len(row))
        nearest = nearest[np.searchsorted(plan.queries, tuples.queries)]
        psi = tuples.psi.copy()
        psi[:, 0] = self.sampler.graph.lookup(tuples.queries, nearest[:, 0])
        return TupleBatch(tuples.queries, nearest[:, 0], tuples.negatives, psi, nearest[:, 1:])

    def _hardest(self, plan: MiningPlan, queries: NDArray[np.float32], pool: NDArray[np.float32]) -> NDArray[np.int64]:
        """(Q, n) the most similar images of the pool without overlap, −1 where there are fewer; ties by id."""
        n = min(self.sampler.negatives - self.sampler.second_negative, len(plan.pool))
        out = np.empty((len(plan.queries), n), np.int64)
        indptr = self.sampler.candidates.tables.indptr
        longest = int((indptr[plan.queries + 1] - indptr[plan.queries]).max(initial=0))
        block = max(1, _BLOCK_BYTES // (4 * max(len(plan.pool), 2 * longest)))
        for start in range(0, len(plan.queries), block):
            part = slice(start, start + block)
            farness = np.asarray(queries[part] @ pool.T, np.float32)
            np.negative(farness, out=farness)
            farness[self._forbidden(plan.queries[part], plan.pool)] = np.inf
            order = np.argsort(farness, axis=1, kind="stable")[:, :n]
            allowed = np.take_along_axis(farness, order, 1) < np.inf
            out[part] = np.where(allowed, plan.pool[order], -1)
        return out

    def _forbidden(self, queries: NDArray[np.int64], pool: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(K, P) pairs that are no negatives: overlapping, of another pool, or an image with itself."""
        t = self.sampler.candidates.tables
        wrong = np.asarray(t.row_pool[queries][:, None] != t.pool_of[pool][None, :])
        if t.one_set:
            wrong |= queries[:, None] == pool[None, :]
        lengths = t.indptr[queries + 1] - t.indptr[queries]
        row = np.repeat(np.arange(len(queries)), lengths)
        step = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        column = t.indices[t.indptr[queries][row] + step]
        at = np.minimum(np.searchsorted(pool, column), len(pool) - 1)
        stored = pool[at] == column
        wrong[row[stored], at[stored]] = True
        return wrong


@BATCHES.register("tuples")
@dataclass(frozen=True)
class Tuples(Batches):
    """A query, one positive, several negatives; random ones, or the hardest of a cache of descriptors."""

    losses: ClassVar[tuple[str, ...]] = ("tuples", "regions")
    size: int = 4
    """Tuples a batch."""
    negatives: int = 10
    """Negatives a tuple."""
    zeros: Zeros = "uniform"
    """How images without overlap are drawn: any, or `near` ones."""
    soft_share: float = 0.0
    """Share of the negatives with 0 < ψ < 0.5, for losses that use graded negatives."""
    mined: bool = False
    """Whether negatives are the hardest of a cache of descriptors, renewed every `refresh` batches."""
    refresh: int = 250
    pool: int = 1000
    """How many candidates the cache holds."""
    further: int = 0
    """Further positives a tuple, for losses over regions; with mined negatives, the nearest ones after the positive."""

    def __post_init__(self) -> None:
        at_least(0, further=self.further)
        at_least(1, size=self.size, negatives=self.negatives, refresh=self.refresh, pool=self.pool)
        if not 0 <= self.soft_share <= 1:
            raise InputError(f"soft_share is {self.soft_share}; expected a share from 0 to 1")

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> TupleSampler:
        """Draws such tuples, with a second negative where the loss compares negatives with each other."""
        return TupleSampler(
            labels, self.negatives, self.size, seed=seed, queries=split.queries, database=split.database,
            zeros=self.zeros, soft_share=self.soft_share, second_negative=loss.second_negative,
            further=self.further if loss.regions else 0,
        )  # fmt: skip

    def miner(self, sampler: TupleSampler) -> TupleMiner | None:
        """The miner that finds the hardest negatives, if they are `mined`."""
        return TupleMiner(sampler, self.refresh, self.pool) if self.mined else None
