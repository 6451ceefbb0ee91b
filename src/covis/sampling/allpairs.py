"""Batches of neighbouring images in which every pair enters the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.compiling import kernel
from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling.batches import BATCHES, check_index
from covis.sampling.candidates import find_candidates, make_tables, pools, possible, tables_of
from covis.sampling.composition import STRATEGIES
from covis.sampling.kernels import Candidates, Int, RandomKey, Tables, below, epoch_key, permute, pick, pick_zero
from covis.sampling.pairs import ComposedBatches, IndexBatch, PairBatch

if TYPE_CHECKING:
    from torch import Tensor


_START, _SEED, _GROW = 300, 400, 500
_STUCK = 8
"""Steps in a row without a new image, after which another place is started."""
_STEPS = 64
"""Steps per image after which a batch stays smaller, as the graph has no more images to offer."""


@kernel()
def _add(members: NDArray[np.int64], place: NDArray[np.int64], count: Int, image: Int, where: Int) -> Int:
    """Adds an image to the members unless it is one already; returns their number."""
    for k in range(count):
        if members[k] == image:
            return count
    if count < len(members):
        members[count], place[count] = image, where
        return count + 1
    return count


@kernel()
def _start(
    c: Candidates, key: RandomKey, position: Int, members: NDArray[np.int64], place: NDArray[np.int64]
) -> tuple[Int, Int]:
    """Adds a pair of every band to the members: one of the anchor, or of another image where the anchor has none.

    The partner without overlap is the first image of place 1. Returns the number of members and how many bands were
    filled by an image other than the anchor.
    """
    count: Int = 1
    redrawn = 0
    for b in range(c.counts.shape[1]):
        i = members[0]
        if c.counts[i, b] == 0:
            suited = c.band_start[b + 1] - c.band_start[b]
            i = np.int64(c.band_rows[c.band_start[b] + below(key, position, _START + 2 * b, suited)])
            count = _add(members, place, count, i, 0)
            redrawn += 1
        partner, psi = pick(c, i, b, below(key, position, _START + 2 * b + 1, c.counts[i, b]))
        count = _add(members, place, count, partner, 0 if psi > 0 else 1)
    return count, redrawn


@kernel()
def _member_of(members: NDArray[np.int64], place: NDArray[np.int64], count: Int, where: Int, choice: Int) -> Int:
    """A member of a place; any member where it has none."""
    there = 0
    for k in range(count):
        there += place[k] == where
    if there == 0:
        return np.int64(members[choice % count])
    left = choice % there
    for k in range(count):
        if place[k] == where:
            if left == 0:
                return np.int64(members[k])
            left -= 1
    return np.int64(members[0])


@kernel()
def grow(c: Candidates, key: RandomKey, position: Int, places: Int, members: NDArray[np.int64]) -> tuple[Int, Int]:
    """Fills `members`, the first of which is the anchor, with images around it and around places apart from it.

    The places take turns to add an image that overlaps with one of their own. Where no new one is found for a while, a
    place goes on from an image that does not overlap with the anchor. Returns how many members there are and how many
    bands had no pair at the anchor.
    """
    size, anchor = len(members), members[0]
    place = np.zeros(size, np.int64)
    count, redrawn = _start(c, key, position, members, place)
    t, zeros = c.tables, c.zeros
    for where in range(2, places):
        if zeros[anchor] > 0:
            k = below(key, position, _SEED + where, zeros[anchor])
            count = _add(members, place, count, pick_zero(t, anchor, k), where)
    stuck = 0
    for step in range(_STEPS * size):
        if count == size:
            break
        turn, stream = step % places, _GROW + 3 * step
        before: Int = count
        if stuck < _STUCK:
            member = _member_of(members, place, count, turn, below(key, position, stream, 1 << 30))
            row = t.indptr[member + 1] - t.indptr[member]
            if row > 0:
                at = t.indptr[member] + below(key, position, stream + 1, row)
                count = _add(members, place, count, np.int64(t.indices[at]), turn)
        elif zeros[anchor] > 0:
            k = below(key, position, stream + 2, zeros[anchor])
            count = _add(members, place, count, pick_zero(t, anchor, k), turn)
        stuck = 0 if count > before else (stuck + 1) % (2 * _STUCK)
    return count, redrawn


_PURPOSE = 3


@BATCHES.register("all_pairs")
@dataclass(frozen=True)
class AllPairs(ComposedBatches):
    """Every pair of a batch's `size` images, which come from a few neighbourhoods; shares are weights of the bands."""

    losses: ClassVar[tuple[str, ...]] = ("pairs", "lists")
    places: int = 2
    """Neighbourhoods a batch: one around the anchor, the others apart from it, for many pairs without overlap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, places=self.places)
        least = 2 * len(STRATEGIES[self.strategy].bands) + self.places
        if self.size < least:
            raise InputError(
                f"{self.size} images cannot hold {self.places} neighbourhoods and a pair of every band; "
                f"set batches.size={least} or more"
            )

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> AllPairsSampler:
        """Draws such images."""
        drawn, graded = self.drawn_and_graded(labels, split, graphs)
        return AllPairsSampler(self, drawn, split, seed, graded, lists=loss.shape == "lists")


class AllPairsSampler:
    """Images of each batch, all their pairs with ψ looked up, and weights that restore the strategy's shares.

    A graph of one set gives B(B−1)/2 pairs for B forward passes, one of two sets up to B²/4 (only pairs of a query and
    a map image are labelled). Every band has at least one pair in every batch. An epoch takes as many forward passes as
    one of `PairSampler`, whose arguments these are: two per query. lists: whether a batch is a `ListBatch`.
    """

    def __init__(
        self,
        batches: AllPairs,
        graph: SimilarityGraph,
        split: Split | None = None,
        seed: int = 0,
        labels: SimilarityGraph | None = None,
        *,
        lists: bool = False,
    ) -> None:
        self.batches, self.graph, self.seed, self.lists = batches, graph, seed, lists
        self.labels = graph if labels is None else labels
        self.one_set = bool(graph.facts.get("one_set", False))
        self.first = 0 if self.one_set else graph.shape[0]  # map images are numbered after the queries
        tables = make_tables(graph, split) if self.one_set else _tables_of_both(graph, split)
        self.strategy = possible(STRATEGIES[batches.strategy], tables)
        self.candidates = find_candidates(tables, self.strategy)
        eligible = self.candidates.eligible
        self.anchors = eligible if self.one_set else eligible[: int(np.searchsorted(eligible, self.first))]

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-2 * len(self.anchors) // self.batches.size)

    def batch(self, epoch: int, index: int) -> PairBatch | ListBatch:
        """Batch `index` of `epoch`: its pairs band by band, or lists."""
        check_index(index, len(self))
        key = epoch_key(self.seed, epoch, _PURPOSE)
        members = np.empty(self.batches.size, np.int64)
        members[0] = self.anchors[permute(key, index % len(self.anchors), len(self.anchors))]
        count, redrawn = grow(self.candidates, key, index, self.batches.places, members)
        return (self._lists if self.lists else self._pairs)(members[:count], int(redrawn))

    def _pairs(self, members: Ids, redrawn: int) -> PairBatch:
        """The labelled pairs among the images, each once."""
        if self.one_set:
            rows, columns = np.triu_indices(len(members), 1)
            queries, images = members[rows], members[columns]
        else:
            sides = members[members < self.first], members[members >= self.first]
            queries, images = (x.ravel() for x in np.meshgrid(*sides, indexing="ij"))
        same = self._comparable(queries, images)
        queries, database = queries[same], images[same] - self.first
        psi = self.graph.lookup(queries, database)
        band = self.strategy.band_of(psi)
        order = np.argsort(band, kind="stable")
        order = order[band[order] >= 0]
        queries, database, psi, band = queries[order], database[order], psi[order], band[order]
        share = np.array([float(b.share) for b in self.strategy.bands])
        weight = (share * len(band) / np.maximum(1, np.bincount(band, minlength=len(share))))[band]
        if self.labels is not self.graph:
            psi = self.labels.lookup(queries, database)
        return PairBatch(queries, database, psi, weight.astype(np.float32), redrawn, self.batches.focus)

    def _lists(self, members: Ids, redrawn: int) -> ListBatch:
        """Every query of the batch with every map image of it."""
        queries = members if self.one_set else members[members < self.first]
        images = members if self.one_set else members[members >= self.first]
        known = self._comparable(queries[:, None], images[None, :])
        if self.one_set:
            known &= queries[:, None] != images[None, :]
        database = images - self.first
        drawn = self.graph.lookup(queries[:, None], database[None, :])
        psi = drawn if self.labels is self.graph else self.labels.lookup(queries[:, None], database[None, :])
        if self.batches.partners == "other_groups":  # pairs that overlap inside a group do not count
            known &= (drawn > 0) | (psi == 0)
        return ListBatch(queries, database, psi, known, redrawn)

    def _comparable(self, queries: Ids, images: Ids) -> NDArray[np.bool_]:
        """Whether each pair is labelled: both images in one pool."""
        tables = self.candidates.tables
        return np.asarray(tables.row_pool[queries] == tables.pool_of[images])


@dataclass(frozen=True, eq=False)
class ListBatch(IndexBatch):
    """Queries and map images of one training step, all pairs of them labelled."""

    known: NDArray[np.bool_]
    """(B, M) which pairs count: not an image with itself, nor images that are never compared."""
    redrawn: int = 0
    """As in `PairBatch`."""

    def __len__(self) -> int:
        """Pairs."""
        return int(self.known.sum())

    @property
    def total_weight(self) -> float:
        """How many queries have at least one pair that counts."""
        return float(max(1, self.known.any(axis=1).sum()))

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of a list loss; za (B, dim), zb (M, dim)."""
        losses: Tensor = loss(za, zb, za.new_tensor(self.psi), za.new_tensor(self.known).bool())
        return losses.sum()

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> ListBatch:
        """The same with other images: ψ is looked up again, and no image is paired with itself."""
        known = self.known
        if labels.facts.get("one_set", False):
            known = known & (queries[:, None] != database[None, :])
        psi = labels.lookup(queries[:, None], database[None, :])
        return replace(self, queries=queries, database=database, psi=psi, known=known)


def _tables_of_both(graph: SimilarityGraph, split: Split | None) -> Tables:
    """Tables over the images of two sets, queries first; an image's partners are of the other set."""
    row_pool, pool_of = pools(graph, split)
    above = np.int32(1 + max(row_pool.max(initial=-1), pool_of.max(initial=-1)))
    partners = np.concatenate([row_pool, np.where(pool_of >= 0, pool_of + above, -1)])
    own = np.concatenate([np.where(row_pool >= 0, row_pool + above, -1), pool_of])
    return tables_of(_both_ways(graph), partners.astype(np.int32), own.astype(np.int32))


def _both_ways(graph: SimilarityGraph) -> SimilarityGraph:
    """The graph of two sets as one over all images, queries first: pairs are stored in both directions."""
    n, m = graph.shape
    rows, columns = graph.rows, graph.indices.astype(np.int64)
    # Rows of the map images: their pairs in order of the column, queries ascending within each.
    turned = np.argsort(columns, kind="stable")
    per_column = np.cumsum(np.bincount(columns, minlength=m))
    return SimilarityGraph(
        np.concatenate([graph.indptr, graph.pairs + per_column]).astype(np.int64),
        np.concatenate([columns + n, rows[turned]]).astype(np.int32),
        np.concatenate([graph.values, graph.values[turned]]),
        (n + m, n + m),
    )
