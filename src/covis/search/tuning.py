"""Building an index: its effort is tuned to a target recall, and what it misses is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.progress import say
from covis.core.tables import size_text
from covis.descriptors import DescriptorStore, Matrix
from covis.ranking import Ranking
from covis.search.exact import rank
from covis.search.index import Index
from covis.search.kinds import EFFORTS, EXACT, ROW_BYTES, choose

TARGET_RECALL = 0.99
MEASURED_K = 10
SAMPLE = 500


@dataclass(frozen=True)
class Measured:
    """How much of the exact nearest an index finds, and its memory."""

    kind: str
    count: int
    dim: int
    recall: float
    """Share of the exact `k` nearest that it finds."""
    recall_at_1: float
    k: int
    queries: int
    effort: int
    ram_bytes: int
    """Estimated memory beside the descriptors on disk."""

    @property
    def loss(self) -> float:
        """Share of the exact `k` nearest that it misses."""
        return 1 - self.recall

    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.kind} over {self.count} × {self.dim}: misses {100 * self.loss:.2f} % of the exact {self.k} nearest "
            f"and {100 * (1 - self.recall_at_1):.2f} % of the nearest ({self.queries} queries), {size_text(self.ram_bytes)} "
            "of memory"
        )


def build_index(
    descriptors: Matrix,
    kind: str = "auto",
    *,
    xy: ArrayLike | None = None,
    target_recall: float = TARGET_RECALL,
    queries: Matrix | None = None,
    seed: int = 0,
) -> tuple[Index, Measured]:
    """An index over `descriptors` (N, dim), and how much of exact search it finds, which is also said on stderr.

    kind: a name in `KINDS`, `exact`, or `auto`.
    xy: (N, 2) positions in metres, for searches in an area.
    queries: (Q, dim) to tune and measure with; by default a sample of the descriptors, each without itself.
    """
    count, dim = descriptors.shape
    chosen = choose(kind, count)
    index = Index(dim, chosen, seed=seed)
    index.add(descriptors, xy)
    measured = tune(index, target_recall, queries, seed)
    say(measured.line())
    if kind == "auto" and measured.recall < target_recall:
        say(f"{chosen} misses too many of these descriptors, so search stays exact")
        return build_index(descriptors, EXACT, xy=xy, queries=queries, seed=seed)
    return index, measured


def tune(index: Index, target_recall: float = TARGET_RECALL, queries: Matrix | None = None, seed: int = 0) -> Measured:
    """Sets the least effort that finds `target_recall` of the exact nearest (or else the largest), and measures it."""
    asked, itself = _questions(index, queries, seed)
    allowed = None if index.live.all() else index.live
    truth = rank(asked, index.vectors, MEASURED_K, allowed=allowed, exclude=itself)
    efforts = EFFORTS if index.structure is not None else (0,)
    for effort in efforts:
        index.effort = effort or index.effort
        ranking = _without(index.search(asked, MEASURED_K + (itself is not None)), itself)
        recall = found_share(ranking, truth)
        if recall >= target_recall:
            break
    ram = len(index) * ROW_BYTES if index.spec is None else index.spec.ram(len(index.live), index.dim)
    return Measured(
        index.kind, len(index), index.dim, recall, found_share(ranking.top(1), truth.top(1)), MEASURED_K, len(asked), effort,
        ram,
    )  # fmt: skip


def found_share(ranking: Ranking, truth: Ranking) -> float:
    """Share of the true neighbours found; another one at the same distance counts as well."""
    wanted = int((truth.ids >= 0).sum())
    if not wanted:
        return 1.0
    edge = np.where(truth.ids >= 0, truth.distances, -np.inf).max(1)
    return float(((ranking.ids >= 0) & (ranking.distances <= edge[:, None])).sum() / wanted)


def _questions(index: Index, queries: Matrix | None, seed: int) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """Queries to measure with, and the row that each of them must not find."""
    if queries is not None:
        pick = np.linspace(0, len(queries) - 1, min(SAMPLE, len(queries))).astype(int)
        if isinstance(queries, DescriptorStore):
            index.bind(queries, role="the queries")
        return np.asarray(queries[pick], np.float32), None
    live = np.flatnonzero(index.live)
    rows = np.sort(np.random.default_rng(seed).choice(live, min(SAMPLE, len(live)), replace=False))
    return np.asarray(index.vectors[rows], np.float32), rows


def _without(ranking: Ranking, ids: NDArray[np.int64] | None) -> Ranking:
    """The ranking with one id taken out of each row, and one column less."""
    if ids is None:
        return ranking
    keep = ranking.ids != ids[:, None]
    keep[keep.all(1), -1] = False
    shape = (len(ranking), max(0, ranking.k - 1))
    return Ranking(ranking.ids[keep].reshape(shape), ranking.distances[keep].reshape(shape))
