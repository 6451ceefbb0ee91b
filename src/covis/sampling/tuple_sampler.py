"""Tuples of a query, one positive and several random negatives."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.sampling.batches import check_index
from covis.sampling.candidates import find_candidates, make_tables
from covis.sampling.composition import Band, Strategy
from covis.sampling.kernels import Candidates, draw_tuples, epoch_key, many_below, pick_zeros
from covis.sampling.pairs import QuerySampler

if TYPE_CHECKING:
    from torch import Tensor


_THIRD = Fraction(1, 3)
_BANDS = Strategy("tuples", (Band(POSITIVE, 1, _THIRD), Band(0, POSITIVE, _THIRD), Band(0, 0, _THIRD, zero=True)))
_PURPOSE, _SECOND, _TRIES = 1, 200, 64


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

    def __post_init__(self) -> None:
        b, n = self.negatives.shape
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
        """(B,) queries and (B, 1 + n) map images, the positive first."""
        return self.queries, np.column_stack([self.positives, self.negatives])

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of a tuple loss; za (B, dim), zb (B, 1 + n, dim)."""
        losses: Tensor = loss(za, zb[:, 0], zb[:, 1:], za.new_tensor(self.psi))
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
    """The graph's two image sets: needed where it was labelled within groups, and for second negatives between
    two sets."""
    database: ImageSet | None = None
    soft_share: float = 0.0
    """Share of the negatives with ψ in (0, 0.5), for losses that use graded negatives."""
    second_negative: bool = False
    """Whether the last negative must overlap with none of the others (quadruplets)."""
    candidates: Candidates = field(init=False, repr=False)

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
        batch = TupleBatch(queries, database[:, 0], database[:, 1:], psi)
        return self.with_second_negatives(batch, epoch, first) if self.second_negative else batch

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
        return TupleBatch(batch.queries, batch.positives, negatives, psi)

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
