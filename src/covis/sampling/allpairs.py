"""Batches of neighbouring images in which every pair enters the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.settings import at_least
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.sampling.batches import BATCHES, check_index
from covis.sampling.candidates import (
    Candidates,
    Tables,
    find_candidates,
    make_tables,
    pick,
    pick_zeros,
    pools,
    possible,
    tables_of,
)
from covis.sampling.composition import STRATEGIES
from covis.sampling.draws import RandomKey, below, epoch_key, permute, shares
from covis.sampling.pairs import ComposedBatches, IndexBatch, PairBatch

if TYPE_CHECKING:
    from torch import Tensor


_START, _SEED, _GROW = 300, 400, 500
_STUCK = 8
"""Steps in a row without a new image, after which another place is started."""
_STEPS = 64
"""Steps per image after which a batch stays smaller, as the graph has no more images to offer."""
_DRAWN = 128
"""Steps whose random numbers are drawn at a time."""


class Neighbourhoods:
    """The images of one batch as they are collected around an anchor and around places apart from it."""

    def __init__(self, c: Candidates, key: RandomKey, position: int, anchor: int, size: int) -> None:
        self.candidates, self.key, self.position, self.anchor, self.size = c, key, position, anchor, size
        self.members, self.places = [anchor], [0]
        self.redrawn = 0
        """Bands that had no pair at the anchor."""

    def add(self, image: int, place: int) -> bool:
        """Adds an image unless it is there already or the batch is full; whether it did."""
        new = image not in self.members and len(self.members) < self.size
        if new:
            self.members.append(image)
            self.places.append(place)
        return new

    def start(self) -> None:
        """Adds a pair of every band: one of the anchor, or of another image where the anchor has none.

        The partner without overlap is the first image of place 1.
        """
        c = self.candidates
        for b, rows in enumerate(c.band_rows):
            i = self.anchor
            if c.counts[i, b] == 0:
                i = int(rows[self._below(_START + 2 * b, len(rows))])
                self.add(i, 0)
                self.redrawn += 1
            k = self._below(_START + 2 * b + 1, int(c.counts[i, b]))
            (partner,), (psi,) = pick(c, *(np.array([x]) for x in (i, b, k)))
            self.add(int(partner), 0 if psi > 0 else 1)

    def grow(self, places: int) -> None:
        """Fills the batch: the places take turns to add an image that overlaps with one of their own.

        Where no new one is found for a while, a place goes on from an image that does not overlap with the anchor.
        """
        graph, free = self.candidates.tables.graph, int(self.candidates.tables.zeros[self.anchor])
        for place in range(2, places if free else 0):
            self._add_free(place, self._below(_SEED + place, free))
        stuck = 0
        for step in range(_STEPS * self.size):
            if len(self.members) == self.size:
                break
            if step % _DRAWN == 0:
                drawn = (
                    shares(self.key, self.position, _GROW + 3 * step + np.arange(3 * _DRAWN)).reshape(-1, 3).tolist()
                )
            choice, next_one, jump = drawn[step % _DRAWN]
            place, added = step % places, False
            if stuck < _STUCK:
                own = [m for m, p in zip(self.members, self.places, strict=True) if p == place] or self.members
                member = own[int(choice * (1 << 30)) % len(own)]
                first, behind = graph.indptr[member : member + 2].tolist()
                if first < behind:
                    added = self.add(int(graph.indices[first + int(next_one * (behind - first))]), place)
            elif free:
                added = self._add_free(place, int(jump * free))
            stuck = 0 if added else (stuck + 1) % (2 * _STUCK)

    def _add_free(self, place: int, k: int) -> bool:
        """Adds the k-th image without overlap with the anchor."""
        (image,) = pick_zeros(self.candidates.tables, np.array([self.anchor]), np.array([k]))
        return self.add(int(image), place)

    def _below(self, stream: int, n: int) -> int:
        return int(below(self.key, self.position, stream, n))


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
        [at] = permute(key, np.array([index % len(self.anchors)]), len(self.anchors))
        collected = Neighbourhoods(self.candidates, key, index, int(self.anchors[at]), self.batches.size)
        collected.start()
        collected.grow(self.batches.places)
        return (self._lists if self.lists else self._pairs)(np.array(collected.members), collected.redrawn)

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
