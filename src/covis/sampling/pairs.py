"""Batches of graded pairs whose composition holds in every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError, unknown_name
from covis.core.progress import warn
from covis.core.settings import at_least, one_of
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels.rules import LabelRule
from covis.sampling.batches import (
    BATCHES,
    COMPOSED_BY,
    STRATEGIES,
    Batches,
    Partners,
    Strategy,
    check_index,
    drawn_and_graded,
    strategy,
)
from covis.sampling.kernels import (
    Candidates,
    RandomKey,
    Tables,
    count_zeros,
    draw_batches,
    epoch_key,
    find_stray,
    many_below,
    order_by_band,
)

if TYPE_CHECKING:
    from scipy.spatial import cKDTree
    from torch import Tensor


# Which map images may be drawn as a partner of which query


Zeros = Literal["uniform", "near"]
NEAR_IMAGES = 16
"""A near pair is one of this many closest images without overlap."""
_STREAM = 3


@dataclass(frozen=True, eq=False)
class NearZeros:
    """Draws one of the closest ψ = 0 partners of a query."""

    graph: SimilarityGraph
    tables: Tables
    xy: NDArray[np.float64]
    """(queries, 2) positions in metres."""
    trees: Mapping[int, cKDTree]
    """Positions of each pool's images."""

    def draw(self, queries: NDArray[np.int64], key: RandomKey, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) a partner of each query, uniform among its closest; every query must have a ψ = 0 partner."""
        near = self.closest(queries)
        choice = many_below(key, positions, _STREAM, (near >= 0).sum(1))
        picked: NDArray[np.int64] = near[np.arange(len(near)), choice]
        return picked

    def closest(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K, NEAR_IMAGES) closest images without overlap in order of distance, −1 where there are fewer."""
        out = np.full((len(queries), NEAR_IMAGES), -1, np.int64)
        pool = self.tables.row_pool[queries]
        for p in np.unique(pool):
            rows = np.flatnonzero(pool == p)
            ids = self.tables.pool_ids[self.tables.pool_start[p] : self.tables.pool_start[p + 1]].astype(np.int64)
            reach = min(2 * NEAR_IMAGES, len(ids))
            while len(rows):
                nearest = self._without_overlap(queries[rows], self.trees[int(p)], ids, reach)
                full = (nearest[:, -1] >= 0) if nearest.shape[1] == NEAR_IMAGES else np.zeros(len(rows), np.bool_)
                done = np.ones(len(rows), np.bool_) if reach == len(ids) else full
                out[rows[done], : nearest.shape[1]] = nearest[done]
                rows, reach = rows[~done], min(2 * reach, len(ids))
        return out

    def _without_overlap(
        self, queries: NDArray[np.int64], tree: cKDTree, ids: NDArray[np.int64], reach: int
    ) -> NDArray[np.int64]:
        """(K, ≤ NEAR_IMAGES) those of the `reach` closest that do not overlap, packed to the left, −1 behind them."""
        _, at = tree.query(self.xy[queries], k=np.arange(1, reach + 1))
        near = ids[at]
        free = self.graph.lookup(queries[:, None], near) == 0
        if self.tables.one_set:
            free &= near != queries[:, None]
        order = np.argsort(~free, axis=1, kind="stable")[:, :NEAR_IMAGES]
        packed = np.where(np.take_along_axis(free, order, 1), np.take_along_axis(near, order, 1), -1)
        return packed.astype(np.int64)


def near_zeros(
    graph: SimilarityGraph, tables: Tables, zeros: Zeros, queries: ImageSet | None, database: ImageSet | None
) -> NearZeros | None:
    """What draws near pairs, or None where any pair will do."""
    if zeros == "uniform":
        return None
    if zeros != "near":
        raise unknown_name("choice of ψ = 0 pairs", zeros, ("uniform", "near"))
    if queries is None or database is None:
        raise InputError("near pairs are found by position; give the sampler both image sets as well")
    from scipy.spatial import cKDTree

    starts = tables.pool_start
    trees = {
        p: cKDTree(database.poses.xy[tables.pool_ids[starts[p] : starts[p + 1]]])
        for p in range(len(starts) - 1)
        if starts[p + 1] > starts[p]
    }
    return NearZeros(graph, tables, queries.poses.xy, trees)


# Which map images may be drawn as a partner of which query.


def find_candidates(tables: Tables, strategy: Strategy, required: Sequence[int] | None = None) -> Candidates:
    """The candidates of every band; an error where no query has one in some band (of `required`; None = all)."""
    low = np.array([_limit(b.low, tables) for b in strategy.bands], np.float32)
    high = np.array([_limit(b.high, tables) if b.high < 1 else np.inf for b in strategy.bands], np.float32)
    longest = int(np.diff(tables.indptr).max(initial=0))
    order = np.empty(len(tables.indices), np.uint16 if longest <= 1 << 16 else np.int32)
    edges, zeros = order_by_band(tables, low, high, order), count_zeros(tables)
    with_zero = np.array([b.zero for b in strategy.bands], np.int32)
    counts = (np.diff(edges, axis=1) + zeros[:, None] * with_zero).astype(np.int32)
    rows = [np.flatnonzero(counts[:, b] > 0).astype(np.int32) for b in range(len(strategy.bands))]
    for b, band in enumerate(strategy.bands):
        if not len(rows[b]) and (required is None or b in required):
            raise InputError(
                f"no query has a pair with ψ in {band}, which strategy {strategy.name!r} needs; choose another strategy, "
                "or labels with such pairs"
            )
    start = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    eligible = np.flatnonzero((counts > 0).any(axis=1)).astype(np.int32)
    return Candidates(tables, order, edges, zeros, counts, eligible, start, np.concatenate(rows))


def possible(strategy: Strategy, tables: Tables) -> Strategy:
    """The strategy, without ψ = 0 where every image overlaps every other, as in a small room; this gives a warning."""
    if not any(b.high == 0 for b in strategy.bands) or count_zeros(tables).any():
        return strategy
    reduced = strategy.without_zeros()
    least = min(reduced.bands, key=attrgetter("low"))
    warn(f"every pair of images overlaps: strategy {strategy.name!r} draws ψ in {least} instead of ψ = 0")
    return reduced


def make_tables(graph: SimilarityGraph, queries: ImageSet | None, database: ImageSet | None) -> Tables:
    """The graph as kernels read it, with a pool of ψ = 0 partners per group (or one, where groups do not matter).

    Images whose place is unknown have no label. They are in no pool, as for them a missing pair does not mean ψ = 0.
    """
    for side, images, n in (("queries", queries, graph.shape[0]), ("database", database, graph.shape[1])):
        if images is not None and len(images) != n:
            raise InputError(f"the graph has {n} {side}, the image set {len(images)}; give the set it was made from")
    return tables_of(graph, *pools(graph, queries, database))


def tables_of(graph: SimilarityGraph, row_pool: NDArray[np.int32], pool_of: NDArray[np.int32]) -> Tables:
    """The graph as kernels read it; `row_pool` (rows,) and `pool_of` (columns,) name pools, −1 for none."""
    order = np.argsort(pool_of, kind="stable")
    order = order[pool_of[order] >= 0]
    number = max(row_pool.max(initial=-1), pool_of.max(initial=-1)) + 1
    start = np.searchsorted(pool_of[order], np.arange(number + 1)).astype(np.int64)
    rank = np.full(len(pool_of), -1, np.int32)
    rank[order] = np.arange(len(order)) - start[pool_of[order]]
    tables = Tables(
        _plain(graph.indptr),
        _plain(graph.indices),
        _plain(graph.values),
        np.float32(255 if graph.values.dtype == np.uint8 else 1),
        row_pool,
        pool_of,
        rank,
        start,
        order.astype(np.int32),
        bool(graph.facts.get("one_set", False)),
    )
    stray = int(find_stray(tables))
    if stray >= 0:
        row = int(np.searchsorted(graph.indptr, stray, side="right")) - 1
        raise InputError(
            f"the graph holds the pair ({row}, {graph.indices[stray]}) of an image with itself, of another group or without "
            "a place; label the image sets again"
        )
    return tables


def pools(
    graph: SimilarityGraph, queries: ImageSet | None, database: ImageSet | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pool of each query and of each map image: its group where the graph was labelled within groups."""
    row_pool, pool_of = np.zeros(graph.shape[0], np.int32), np.zeros(graph.shape[1], np.int32)
    if queries is None or database is None:
        if graph.facts.get("within_group"):
            raise InputError("the graph was labelled within groups; give the sampler both image sets as well")
        return row_pool, pool_of
    if graph.facts.get("within_group"):
        names = sorted({*queries.group_names, *database.group_names})
        code = {name: k for k, name in enumerate(names)}
        row_pool = np.array([code[n] for n in queries.group_names], np.int32)[queries.group]
        pool_of = np.array([code[n] for n in database.group_names], np.int32)[database.group]
    row_pool = np.where(queries.poses.known, row_pool, -1).astype(np.int32)
    return row_pool, np.where(database.poses.known, pool_of, -1).astype(np.int32)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    # Memory-mapped and writable arrays are types of their own to the compiler; one read-only view serves for all.
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _limit(psi: float, tables: Tables) -> float:
    """The least stored value whose ψ is at least `psi`, so that bands can be compared without decoding."""
    if tables.values.dtype != np.uint8:
        return psi
    return float(np.searchsorted(np.arange(256, dtype=np.float32) / tables.scale, np.float32(psi)))


# Pairs


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Index pairs of one training step."""

    queries: NDArray[np.int64]
    """(B,) rows of the graph."""
    database: NDArray[np.int64]
    """(B,) columns of the graph."""
    psi: NDArray[np.float32]
    """(B,) similarity of each pair in [0, 1]."""
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

    def images(self) -> tuple[Ids, Ids]:
        """(B,) queries and (B,) map images."""
        return self.queries, self.database

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of the weighted losses of a pair loss; za, zb (B, dim)."""
        psi, weight = za.new_tensor(self.psi), za.new_tensor(self.weight)
        losses: Tensor = loss(za, zb, psi)
        return (losses * (_focused(losses.detach(), psi, weight) if self.focus else weight)).sum()

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> PairBatch:
        """The same pairs with other images: ψ is looked up again."""
        psi = labels.lookup(queries, database)
        if labels.facts.get("one_set", False):
            psi = np.where(queries == database, np.float32(1), psi)
        return replace(self, queries=queries, database=database, psi=psi)


def _focused(losses: Tensor, psi: Tensor, weight: Tensor) -> Tensor:
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

    @property
    def unused(self) -> int:
        """Queries that are in no batch: without a candidate for a pair, or for both sides of a tuple."""
        return self.graph.shape[0] - len(self.candidates.eligible)


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
    """The graph's two image sets: needed where it was labelled within groups, for near pairs, and to leave out images
    without a place."""
    database: ImageSet | None = None
    labels: SimilarityGraph | None = None
    """The graph in which ψ of the drawn pairs is looked up, if not `graph`: yes/no batches with graded losses."""
    zeros: Zeros = "uniform"
    """Which ψ = 0 pairs: any, or `near` ones, among the closest images that do not overlap."""
    focus: bool = False
    """As in `PairBatch`."""
    candidates: Candidates = field(init=False, repr=False)
    near: NearZeros | None = field(init=False, repr=False)

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
        object.__setattr__(self, "near", near_zeros(self.graph, tables, self.zeros, self.queries, self.database))

    def batch(self, epoch: int, index: int) -> PairBatch:
        """Batch `index` of `epoch`."""
        check_index(index, len(self))
        queries, database, psi, weight, redrawn = self._draw(epoch, index, 1)
        return PairBatch(queries[0], database[0], psi[0], weight[0], int(redrawn[0]), self.focus)

    def draw(self, epoch: int, first: int, batches: int) -> PairBatch:
        """The batches first … first + batches − 1 of `epoch` as one, for callers that want many pairs at once."""
        queries, database, psi, weight, redrawn = self._draw(epoch, first, batches)
        return PairBatch(queries.ravel(), database.ravel(), psi.ravel(), weight.ravel(), int(redrawn.sum()), self.focus)

    def epoch(self, epoch: int, block: int = 1024) -> Iterator[PairBatch]:
        """All batches of an epoch in order, drawn `block` at a time."""
        for first in range(0, len(self), block):
            drawn = self._draw(epoch, first, min(block, len(self) - first))
            for queries, database, psi, weight, redrawn in zip(*drawn, strict=True):
                yield PairBatch(queries, database, psi, weight, int(redrawn), self.focus)

    def _draw(
        self, epoch: int, first: int, batches: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        key = epoch_key(self.seed, epoch)
        slots = self._slot_bands(first, batches)
        queries, database, psi, redrawn = draw_batches(self.candidates, key, first, slots)
        if self.near is not None:
            where = psi == 0
            position = (first * self.batch_size + np.arange(psi.size)).reshape(psi.shape)[where]
            database[where] = self.near.draw(queries[where], key, position)
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
    zeros: Zeros = "uniform"
    """How pairs without overlap are drawn: any, or `near` ones."""
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
            zeros=self.zeros, focus=self.focus,
        )  # fmt: skip
