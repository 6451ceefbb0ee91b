"""The interface of re-rankers: a re-ranking is a function `Ranking -> Ranking`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covis.core.progress import Meter
from covis.descriptors import Describer
from covis.images import ImageSet
from covis.ranking import Ranking

RERANK_DEPTH = 50


class Reranker(Protocol):
    """A way to re-rank, not yet bound to images.

    What `prepare` returns may have a method `fit(ranking, poses)`, which returns it fitted to queries with known answers:
    results (Q, K) of the map for queries at these poses. It then also has `facts()`.
    """

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def depth(self) -> int:
        """Results per query that it needs."""
        ...

    def facts(self) -> dict[str, Any]:
        """Its description as JSON values."""
        ...

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """The re-ranking of results that `describer` gave for these images."""
        ...


def reordered(
    ranking: Ranking,
    depth: int,
    scores: Callable[[int, NDArray[np.int64], NDArray[np.floating]], NDArray[np.float64]],
) -> Ranking:
    """The ranking with the first `depth` results of each query by descending score; ties keep their order.

    scores: (query, ids (n,), distances (n,)) → (n,).
    """
    order = np.tile(np.arange(ranking.k), (len(ranking), 1))
    with Meter("re-rank", len(ranking), "queries") as meter:
        for q in range(len(ranking)):
            ids, distances = ranking.row(q)
            head = min(depth, len(ids))
            if head:
                order[q, :head] = np.argsort(-scores(q, ids[:head], distances[:head]), kind="stable")
            meter.advance()
    return ranking.reordered(order)
