"""Metrics of rankings: recall, average precision, nDCG.

A ranking is (Q, K) map ids, best first, −1 where a search gave fewer. A map image is relevant to a query where
ψ ≥ `covis.graph.POSITIVE`. Queries without a relevant image are left out, unless a function says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.graph import POSITIVE, SimilarityGraph

KS = (1, 5, 10, 20)


class HasIds(Protocol):
    """Anything that carries ranked ids, such as `covis.search.Ranking`."""

    @property
    def ids(self) -> Ids: ...


Ranked = HasIds | ArrayLike
Relevant = SimilarityGraph | Sequence[ArrayLike]


def recall_at_k(ranking: Ranked, relevant: Relevant, ks: Sequence[int] = KS) -> dict[int, float]:
    """Percent of queries with a relevant image among their first k, for each k.

    `ranking` (Q, K) map ids; `relevant` a graph of Q rows, or Q arrays of map ids. Queries without a relevant image
    are left out; if all are, that is an error, never 0 %.

    >>> recall_at_k(np.array([[4, 7, 1], [2, 0, 3]]), relevant=[[7], [3, 5]], ks=(1, 2, 3))
    {1: 0.0, 2: 50.0, 3: 100.0}
    """
    graph = positives(relevant)
    counted = answerable(graph)
    first = first_hits(ranking, graph, max(_checked(ks)))[counted]
    return {int(k): float(100.0 * ((first > 0) & (first <= k)).mean()) for k in ks}


def positives(relevant: Relevant) -> SimilarityGraph:
    """The relevant pairs as a graph: those of a graph with ψ ≥ `POSITIVE`, or lists of ids with ψ = 1."""
    if isinstance(relevant, SimilarityGraph):
        return relevant if (relevant.psi >= POSITIVE).all() else relevant.band(POSITIVE, 1.0)
    lists = [np.unique(np.asarray(ids, np.int64)) for ids in relevant]
    columns = np.concatenate([np.zeros(0, np.int64), *lists])
    rows = np.repeat(np.arange(len(lists)), [len(ids) for ids in lists])
    width = int(columns.max(initial=-1)) + 1
    return SimilarityGraph.from_edges(rows, columns, np.ones(len(rows)), (len(lists), width))


def answerable(graph: SimilarityGraph) -> NDArray[np.bool_]:
    """(Q,) queries with at least one stored pair; an error if there is none."""
    some = np.diff(graph.indptr) > 0
    if not some.any():
        raise InputError(
            f"none of the {len(some)} queries has a relevant map image, so there is nothing to score; "
            "check that queries and map are of one place and one frame"
        )
    return some


def ranked_psi(ranking: Ranked, graph: SimilarityGraph, depth: int | None = None) -> NDArray[np.float32]:
    """(Q, depth) ψ of each ranked image, 0 where absent or padded."""
    ids = ranked_ids(ranking, graph.shape[0])[:, :depth]
    return graph.lookup(np.arange(len(ids))[:, None], ids)


def first_hits(ranking: Ranked, graph: SimilarityGraph, depth: int | None = None) -> NDArray[np.int32]:
    """(Q,) rank, from 1, of the first ranked image (of `depth`) with a stored pair; 0 where none is."""
    hit = ranked_psi(ranking, graph, depth) > 0
    rank: NDArray[np.int32] = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, 0).astype(np.int32)
    return rank


def average_precision_at_k(ranking: Ranked, graph: SimilarityGraph, k: int) -> NDArray[np.float64]:
    """(Q,) AP@k as the MSLS evaluator defines it: Σ precision at each hit ÷ min(relevant, k); NaN without relevant.

    An image that a ranking repeats counts once.
    """
    hit = (ranked_psi(ranking, graph, k) > 0) & ~repeated(ranked_ids(ranking, graph.shape[0])[:, :k])
    precision = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    relevant = np.diff(graph.indptr)
    possible = np.minimum(relevant, k).astype(np.float64)
    score: NDArray[np.float64] = (precision * hit).sum(1)
    return np.where(relevant > 0, score / np.maximum(possible, 1.0), np.nan)


def ndcg_at_k(ranking: Ranked, graph: SimilarityGraph, k: int) -> NDArray[np.float64]:
    """(Q,) normalised discounted gain with gain ψ and discount log₂(rank + 1); NaN without a similar image.

    `graph` is the graded one, all ψ > 0 included; the ideal ranks by descending ψ.
    """
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    gain = ranked_psi(ranking, graph, k).astype(np.float64)
    gain[repeated(ranked_ids(ranking, graph.shape[0])[:, :k])] = 0.0
    rows, psi = graph.rows, graph.psi.astype(np.float64)
    order = np.lexsort((-psi, rows))
    place = np.arange(len(rows)) - graph.indptr[rows]
    ideal_gain = np.where(place < k, psi[order] * discount[np.minimum(place, k - 1)], 0.0)
    ideal = np.bincount(rows, ideal_gain, minlength=graph.shape[0])
    dcg = gain @ discount[: gain.shape[1]]
    return np.where(ideal > 0, dcg / np.where(ideal > 0, ideal, 1.0), np.nan)


def repeated(ids: Ids) -> NDArray[np.bool_]:
    """(Q, K) mask of the ids that already occur further left in their row."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    again = np.zeros(ids.shape, bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    out = np.zeros(ids.shape, bool)
    np.put_along_axis(out, order, again, axis=1)
    return out


def ranked_ids(ranking: Ranked, queries: int | None = None) -> Ids:
    """(Q, K) ids of a ranking, checked against the number of queries."""
    ids: NDArray[Any] = np.asarray(getattr(ranking, "ids", ranking))
    if ids.ndim != 2 or (ids.size and ids.dtype.kind not in "iu"):
        raise InputError(f"a ranking has shape {ids.shape} and type {ids.dtype}; expected (queries, k) integer map ids")
    if queries is not None and len(ids) != queries:
        raise InputError(f"the ranking has {len(ids)} rows, but there are {queries} queries")
    return ids.astype(np.int64, copy=False)


def _checked(ks: Sequence[int]) -> Sequence[int]:
    if not len(ks) or min(ks) < 1:
        raise InputError(f"recall was requested at k = {list(ks)}; expected numbers from 1")
    return ks
