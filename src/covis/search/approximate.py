"""Approximate indexes: a structure proposes candidates, their exact distances decide.

Distances and ties are therefore those of exact search; what can be lost is a neighbour that was never proposed, and
`build_index` measures how often that happens. Rows wait outside the structure until there are enough to train it, and
are searched exactly meanwhile, so that an index works from its first descriptor on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.search.exact import rank
from covis.search.index import Ids, LocalIndex
from covis.search.kinds import KINDS, clusters
from covis.search.ranking import Ranking, ordered

TRAIN_FROM = 1000
"""Rows from which on a structure is worth training."""
_TRAIN_PER_CLUSTER = 64
_TRAIN_BYTES = 256 << 20
_ADD_ROWS = 16384
_SCORE_BYTES = 64 << 20
_EXACT_SHARE = 0.03
_EXACT_ROWS = 4096
_SPARE = 16
"""Candidates beyond those wanted, so that ties at the border are settled by id."""


class Approximate(LocalIndex):
    """One of `KINDS`, over vectors that may stay on disk."""

    def __init__(self, dim: int, kind: str, model: str | None = None, *, seed: int = 0) -> None:
        super().__init__(dim, model)
        self.kind = kind
        self.spec = KINDS[kind]
        self.effort = self.spec.efforts[2]
        """How hard a search looks; `build_index` sets it by measurement."""
        self.seed = seed
        self.structure: Any = None
        self.order = np.zeros(0, np.int64)
        """Row of each entry of the structure; rows from len(order) on are outside it."""

    def _appended(self, count: int) -> None:
        if self.structure is None and len(self.row_ids) < TRAIN_FROM:
            return
        if self.structure is None:
            self.structure = self._trained()
        rows = np.arange(len(self.order), len(self.row_ids))
        if self.spec.graph:  # a graph filled in the order of a drive loses every fifth neighbour
            rows = np.random.default_rng((self.seed, len(rows))).permutation(rows)
        for start in range(0, len(rows), _ADD_ROWS):
            self.structure.add(self._float32(rows[start : start + _ADD_ROWS]))
        self.order = np.concatenate([self.order, rows])

    def _trained(self) -> Any:
        import faiss

        count = len(self.row_ids)
        structure = faiss.index_factory(self.dim, self.spec.factory(count, self.dim))
        if not structure.is_trained:
            wanted = min(count, _TRAIN_BYTES // (4 * self.dim), max(TRAIN_FROM, _TRAIN_PER_CLUSTER * clusters(count)))
            sample = np.random.default_rng(self.seed).choice(count, wanted, replace=False)
            structure.train(self._float32(np.sort(sample)))
        return structure

    def _float32(self, rows: Ids) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.vectors[rows], np.float32)

    def _search(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ranking:
        if len(rows) <= max(_EXACT_ROWS, _EXACT_SHARE * len(self.order)) or self.structure is None:
            return rank(queries, self.vectors, max(k, 1), allowed=rows, ids=self.row_ids).top(k)
        inside, outside = rows[rows < len(self.order)], rows[rows >= len(self.order)]
        ranking = self._rescored(queries, self._candidates(queries, k, inside), k)
        if len(outside):
            late = rank(queries, self.vectors, k, allowed=outside, ids=self.row_ids)
            ranking = ordered(np.hstack([ranking.ids, late.ids]), np.hstack([ranking.distances, late.distances]), k)
        short = np.flatnonzero((ranking.ids < 0).any(1))
        if len(short):  # few of the visited clusters or nodes were allowed; there are k results, so find them
            full = rank(queries[short], self.vectors, k, allowed=rows, ids=self.row_ids)
            ranking.ids[short], ranking.distances[short] = full.ids[:, :k], full.distances[:, :k]
        return ranking

    def _candidates(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ids:
        """(Q, C) rows that the structure proposes; −1 for none."""
        selector, held = self._selector(rows)
        wanted = min(len(rows), k * self.spec.widen + _SPARE + self.effort * self.spec.deepen)
        effort = math.ceil(self.effort * len(self.order) / len(rows))  # what is not allowed is visited all the same
        effort = max(effort, wanted) if self.spec.graph else effort
        _, entries = self.structure.search(queries, wanted, params=self.spec.parameters(effort, selector))
        del held
        return np.where(entries >= 0, self.order[entries], -1)

    def _selector(self, rows: Ids) -> tuple[Any, Any]:
        """faiss' test of whether an entry may be found, and the memory that it reads."""
        import faiss

        if len(rows) == len(self.order):
            return None, None
        allowed = np.zeros(len(self.row_ids), bool)
        allowed[rows] = True
        bits = np.packbits(allowed[self.order], bitorder="little")
        return faiss.IDSelectorBitmap(len(self.order), faiss.swig_ptr(bits)), bits

    def _rescored(self, queries: NDArray[np.float32], rows: Ids, k: int) -> Ranking:
        """Candidates (Q, C) by their exact distance."""
        from covis.search import kernel

        distance = np.empty(rows.shape, np.float32)
        step = max(1, _SCORE_BYTES // max(1, rows.shape[1] * self.dim * 4))
        for start in range(0, len(queries), step):
            some = rows[start : start + step]
            vectors = self._float32(np.maximum(some, 0).ravel()).reshape(*some.shape, self.dim)
            kernel.pairs(queries[start : start + step], vectors, distance[start : start + step])
        return ordered(np.where(rows >= 0, self.row_ids[np.maximum(rows, 0)], -1), distance, k)
