"""Hard negatives, mined offline: images that the current model finds similar to the query although they do not overlap.

Mining goes in rounds. A round serves the next `refresh` batches: `plan` says which images to describe, the caller
describes them with its model, and `mine` puts the hardest into the round's tuples. Memory is bounded by the plan, not
by the map.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.sampling.kernels import epoch_key, permute_many
from covis.sampling.tuple_sampler import TupleBatch, TupleSampler

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
        return TupleBatch(t.queries[part], t.positives[part], t.negatives[part], t.psi[part])


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
        return MiningPlan(epoch, first, size, tuples, np.unique(tuples.queries), self._pool(epoch, first))

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
        tuples = TupleBatch(plan.tuples.queries, plan.tuples.positives, negatives, psi)
        if self.sampler.second_negative:
            tuples = self.sampler.with_second_negatives(tuples, plan.epoch, plan.first * plan.batch_size)
        return MinedRound(plan.epoch, plan.first, plan.batch_size, tuples, int(mined.sum()))

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
