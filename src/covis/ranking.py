"""The result of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError

Groups = Literal["any", "same", "other"]
"""Which images may be a query's results: any, those of its own group, those of other groups."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """The nearest map images of each query, best first; ties stand in the order of their ids.

    >>> ranking = ordered(np.array([[3, 1, 2]]), np.array([[0.5, 0.2, 0.5]]), k=3)
    >>> ranking.ids.tolist(), ranking.top(1).ids.tolist()
    ([[1, 2, 3]], [[1]])
    """

    ids: NDArray[np.int64]
    """(Q, K) map ids; −1 where a query has fewer results, always at the end of its row."""
    distances: NDArray[np.float32]
    """(Q, K) L2 distances of the descriptors; +inf where the id is −1."""

    def __post_init__(self) -> None:
        ids, distances = np.asarray(self.ids, np.int64), np.asarray(self.distances, np.float32)
        if ids.ndim != 2 or ids.shape != distances.shape:
            raise InputError(
                f"a ranking needs ids and distances of one (Q, K) shape, not {ids.shape}, {distances.shape}"
            )
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "distances", distances)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Results per query at most."""
        return int(self.ids.shape[1])

    def row(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and distances of query i, without padding."""
        present = self.ids[i] >= 0
        return self.ids[i][present], self.distances[i][present]

    def top(self, k: int) -> Ranking:
        """The first k results of each query."""
        return Ranking(self.ids[:, :k], self.distances[:, :k])

    def reordered(self, order: NDArray[np.int64]) -> Ranking:
        """Each query's results in another order (Q, K)."""
        return Ranking(np.take_along_axis(self.ids, order, 1), np.take_along_axis(self.distances, order, 1))

    def subset(self, queries: NDArray[Any]) -> Ranking:
        """The results of some queries (indices or mask)."""
        return Ranking(self.ids[queries], self.distances[queries])


def ordered(ids: NDArray[Any], distances: NDArray[Any], k: int) -> Ranking:
    """Candidates (Q, C) in any order → the best k by (distance, id); an id below 0 is no candidate."""
    distances = np.where(ids >= 0, distances, np.inf).astype(np.float32)
    ids = np.where(np.isfinite(distances), ids, -1).astype(np.int64)
    order = np.lexsort((ids, distances), axis=-1)[:, :k]
    return Ranking(np.take_along_axis(ids, order, 1), np.take_along_axis(distances, order, 1))
