"""Metrics of rankings: recall, average precision, nDCG; one look-up of relevance for all of them.

A ranking is (Q, K) map ids, best first, −1 where a search gave fewer. A map image is relevant to a query where
ψ ≥ `covis.graph.POSITIVE`. Queries without a relevant image are left out, unless a function says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.graph import POSITIVE, SimilarityGraph
from covis.poses import Poses, angle_between


@njit(cache=True, nogil=True)
def find_ranked(ids: Ids, indptr: Ids, indices: NDArray[np.int32]) -> Ids:
    """(Q, K) where each ranked id is stored among the ascending `indices` of its query's row; −1 where it is not."""
    queries, depth = ids.shape
    at = np.empty((queries, depth), np.int64)
    for q in range(queries):
        for k in range(depth):
            at[q, k] = _search(indices, indptr[q], indptr[q + 1], ids[q, k])
    return at


@njit(cache=True, nogil=True)
def first(ids: Ids, indptr: Ids, indices: NDArray[np.int32]) -> NDArray[np.int32]:
    """(Q,) rank, from 1, of the first ranked id that is stored; 0 where none is."""
    queries, depth = ids.shape
    rank = np.zeros(queries, np.int32)
    for q in range(queries):
        for k in range(depth):
            if _search(indices, indptr[q], indptr[q + 1], ids[q, k]) >= 0:
                rank[q] = k + 1
                break
    return rank


@njit(cache=True, nogil=True)
def _search(indices: NDArray[np.int32], low: int, high: int, wanted: int) -> int:
    while low < high:
        middle = (low + high) >> 1
        if indices[middle] < wanted:
            low = middle + 1
        elif indices[middle] > wanted:
            high = middle
        else:
            return middle
    return -1


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
    at = find_ranked(ids, np.asarray(graph.indptr), np.asarray(graph.indices))
    psi = np.zeros(ids.shape, np.float32)
    psi[at >= 0] = graph.psi[at[at >= 0]]
    return psi


def first_hits(ranking: Ranked, graph: SimilarityGraph, depth: int | None = None) -> NDArray[np.int32]:
    """(Q,) rank, from 1, of the first ranked image (of `depth`) with a stored pair; 0 where none is."""
    ids = ranked_ids(ranking, graph.shape[0])[:, :depth]
    return first(ids, np.asarray(graph.indptr), np.asarray(graph.indices))


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


# How far the best match's pose is from the query's own: metres, degrees, and the share within given limits.


PoseLimits = Sequence[tuple[float, float]]
_BLOCK = 1 << 20
"""Neighbours looked up at a time."""
LONG_TERM_LIMITS = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
"""(metres, degrees): high, medium and coarse precision of the long-term visual localisation benchmark."""
POSE_LIMITS = ((0.05, 5.0), *LONG_TERM_LIMITS)
"""For estimated poses where a benchmark has no limits of its own; adds 5 cm and 5°, the usual limit indoors."""


def pose_errors(queries: Poses, database: Poses, match: Ids) -> tuple[Floats, Floats]:
    """(Q,) metres and degrees between each query's pose and that of map image `match`; NaN where unknown or −1.

    In space with full rotations where both sides have them, otherwise on the ground with headings.
    """
    matched = np.asarray(match) >= 0
    at = np.maximum(match, 0)
    spatial = queries.rotation is not None and database.rotation is not None
    if spatial and queries.z is not None and database.z is not None:
        metres = np.linalg.norm(queries.centre - database.centre[at], axis=1)
    else:
        metres = np.linalg.norm(queries.xy - database.xy[at], axis=1)
    if queries.rotation is not None and database.rotation is not None:
        degrees = rotation_angles(queries.rotation, database.rotation[at])
    else:
        degrees = angle_between(queries.heading, database.heading[at])
    return np.where(matched, metres, np.nan), np.where(matched, degrees, np.nan)


def rotation_angles(first: Floats, second: Floats) -> Floats:
    """(N,) angles in degrees between aligned rotations (N, 3, 3), exact also for small ones."""
    # ‖A − B‖² = 8·sin²(angle / 2): arccos of the trace would lose half the digits near 0.
    chord = np.sqrt(((first - second) ** 2).sum(axis=(1, 2)) / 8.0)
    return np.asarray(np.degrees(2.0 * np.arcsin(np.minimum(chord, 1.0))))


def localised(metres: Floats, degrees: Floats, limits: PoseLimits = LONG_TERM_LIMITS) -> NDArray[np.bool_]:
    """(Q, limits) whether each query is within both metres and degrees; a query without a match is not."""
    m, d = np.asarray(metres)[:, None], np.asarray(degrees)[:, None]
    bounds = np.asarray(limits, np.float64).reshape(-1, 2)
    with np.errstate(invalid="ignore"):
        return np.asarray((m <= bounds[:, 0]) & (d <= bounds[:, 1]))


def percent_localised(metres: Floats, degrees: Floats, limits: PoseLimits = LONG_TERM_LIMITS) -> dict[str, float]:
    """Percent of queries localised within each limit, by `limit_name`."""
    if not len(metres):
        raise InputError("no query has a known pose, so none can be called localised; use a submission file")
    share = 100.0 * localised(metres, degrees, limits).mean(axis=0)
    return {limit_name(limit): float(value) for limit, value in zip(limits, share, strict=True)}


def limit_name(limit: tuple[float, float]) -> str:
    """`(0.25, 2)` → `0.25m_2deg`, as the published tables spell it."""
    return f"{limit[0]:g}m_{limit[1]:g}deg"


def recall_by_radius(
    ranking: Ranked, queries: Poses, database: Poses, possible_m: Floats, radii_m: ArrayLike, k: int = 1
) -> dict[str, list[float]]:
    """Percent of queries with one of their first k within each radius, and the most that any ranking could reach.

    `possible_m` (Q,) is the distance of the nearest map image that each query may match. Over the queries whose own
    position is known; the map's images at unknown positions match nothing.
    """
    radii = np.asarray(radii_m, np.float64)
    ids = ranked_ids(ranking, len(queries))[:, :k]
    gap = np.linalg.norm(queries.xy[:, None] - database.xy[np.maximum(ids, 0)], axis=2)
    nearest = np.where(np.isnan(gap) | (ids < 0), np.inf, gap).min(axis=1, initial=np.inf)
    return {
        "radius_m": radii.tolist(),
        "recall": [float(100.0 * (nearest[queries.known] <= r).mean()) for r in radii],
        "possible": [float(100.0 * (possible_m[queries.known] <= r).mean()) for r in radii],
    }


def nearest_admissible(
    queries: Poses, database: Poses, admissible: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]]
) -> Floats:
    """(Q,) metres to the nearest map image that each query may match; infinite where there is none."""
    from scipy.spatial import cKDTree

    known = np.flatnonzero(database.known)
    out = np.full(len(queries), np.inf)
    left = np.flatnonzero(queries.known)
    tree = cKDTree(database.xy[known])
    k = 1
    # Most queries find theirs at once; the few whose neighbourhood is forbidden look further each time.
    while len(left) and k // 4 < len(known):
        width = min(k, len(known))
        for part in np.array_split(left, -(-len(left) * width // _BLOCK)):
            near, at = tree.query(queries.xy[part], k=np.arange(1, width + 1))
            out[part] = np.where(admissible(part[:, None], known[at]), near, np.inf).min(axis=1)
        left = left[np.isinf(out[left])]
        k *= 4
    return out


# How certain a figure is: intervals over queries, paired tests of two models, and what a mixture of pairs consists of


RESAMPLES = 2000
LEVEL = 0.95
_DRAWN = 1 << 22
"""Weights drawn at a time."""


def bootstrap_interval(
    outcomes: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Floats:
    """(M, 2) percentile interval of the mean of each column of `outcomes` (Q, M), queries drawn with replacement.

    With `clusters` (Q,) whole clusters are drawn, because frames of one drive are not independent.
    """
    sums, sizes = _by_cluster(_columns(outcomes), clusters)
    n = len(sizes)
    rng = np.random.default_rng(seed)
    step = max(1, _DRAWN // n)
    means = []
    for start in range(0, resamples, step):
        weight = rng.multinomial(n, np.full(n, 1.0 / n), size=min(step, resamples - start)).astype(np.float64)
        means.append(weight @ sums / (weight @ sizes)[:, None])
    tail = 50.0 * (1.0 - level)
    return np.asarray(np.percentile(np.concatenate(means), [tail, 100.0 - tail], axis=0).T)


@dataclass(frozen=True)
class PairedTest:
    """The difference b − a of two models on one outcome, its interval, and how likely chance alone causes it."""

    difference: float
    low: float
    high: float
    p_value: float
    method: str
    only_first: int
    """Queries where the first model did better."""
    only_second: int
    queries: int

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at the level of the interval."""
        return self.p_value < 1.0 - LEVEL


def paired_test(
    first: ArrayLike,
    second: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedTest:
    """Compares two models query by query: `first`, `second` (Q,) outcomes of the same queries.

    Outcomes of 0 and 1: McNemar's exact test. Others, or with `clusters`: signs of the (cluster) differences are
    flipped at random.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InputError(f"paired outcomes have shapes {a.shape} and {b.shape}; expected two (queries,)")
    gap = b - a
    low, high = bootstrap_interval(gap, clusters, resamples=resamples, seed=seed)[0]
    worse, better = int((gap < 0).sum()), int((gap > 0).sum())
    if clusters is None and np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        p, method = mcnemar(worse, better), "McNemar, exact"
    else:
        p, method = sign_flip(_by_cluster(gap[:, None], clusters)[0][:, 0], resamples, seed), "sign-flip permutation"
    return PairedTest(float(gap.mean()), float(low), float(high), p, method, worse, better, len(gap))


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of the hypothesis that the queries solved by one model only split evenly between both."""
    from scipy.stats import binomtest

    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def sign_flip(gaps: Floats, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """p-value (two-sided) of a mean as far from 0 as that of `gaps` (n,) under random signs; ≥ 1 / (resamples + 1)."""
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    rng = np.random.default_rng(seed)
    seen, extreme = abs(gaps.sum()) * (1 - 1e-12), 0
    step = max(1, _DRAWN // len(gaps))
    for start in range(0, resamples, step):
        signs = rng.integers(0, 2, size=(min(step, resamples - start), len(gaps)), dtype=np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ gaps) >= seen).sum())
    return (extreme + 1) / (resamples + 1)


def holm(p_values: ArrayLike) -> Floats:
    """p-values of several comparisons, raised so that together they keep the level (Holm)."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    raised = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(raised, 1.0)
    return out


def _columns(outcomes: ArrayLike) -> Floats:
    values: NDArray[Any] = np.asarray(outcomes, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not len(values) or not np.isfinite(values).all():
        raise InputError(f"outcomes have shape {values.shape}; expected (queries, figures), at least one query, no NaN")
    return values


def _by_cluster(values: Floats, clusters: ArrayLike | None) -> tuple[Floats, Floats]:
    if clusters is None:
        return values, np.ones(len(values))
    _, code = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.zeros((int(code.max()) + 1, values.shape[1]))
    np.add.at(sums, code, values)
    return sums, np.bincount(code).astype(np.float64)
