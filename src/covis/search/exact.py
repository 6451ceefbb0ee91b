"""Exact nearest neighbours in bounded memory: every pair is compared, ties have a fixed order.

A float32 matrix product of some queries with a block of the map proposes candidates: everything that may be among the
k nearest, given its rounding error. Their distances are then computed in float64 from differences, so that the order
(distance, id) depends neither on block sizes nor on the linear algebra library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Bools, Floats, Ids
from covis.core.errors import InputError
from covis.descriptors import DescriptorStore, Matrix
from covis.ranking import Groups, Ranking, ordered


def as_queries(queries: Matrix, database: Matrix, k: int) -> NDArray[np.float32]:
    """Queries as float32 (Q, D), after checking that they fit the map."""
    if isinstance(queries, DescriptorStore) and isinstance(database, DescriptorStore):
        database.require(queries.model)
    matrix = np.ascontiguousarray(queries, np.float32)
    for what, shape in (("queries", matrix.shape), ("map", database.shape)):
        if len(shape) != 2:
            raise InputError(f"descriptors of the {what} must be (rows, dimensions), not {tuple(shape)}")
    if matrix.shape[1] != database.shape[1]:
        raise InputError(f"queries have {matrix.shape[1]} dimensions, the map has {database.shape[1]}; use one model")
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    if not np.isfinite(matrix).all():
        bad = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise InputError(f"descriptor {bad} of the queries is not finite; make it again")
    return matrix


def allowed_rows(allowed: ArrayLike | None, total: int) -> NDArray[np.int64] | None:
    """Rows of the map that may be found, ascending, from a mask or a list of them; None for all."""
    if allowed is None:
        return None
    chosen = np.asarray(allowed)
    if chosen.dtype == bool:
        if chosen.shape != (total,):
            raise InputError(f"the mask of allowed images has shape {chosen.shape}, the map has {total}")
        return np.flatnonzero(chosen)
    return np.unique(chosen.astype(np.int64))


def group_codes(
    query_group: ArrayLike | None, database_group: ArrayLike | None, queries: Any, database: Any, groups: Groups
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group codes (Q,) and (N,), after checking that the rule has what it needs."""
    if groups not in ("any", "same", "other"):
        raise InputError(f"groups is {groups!r}; use any, same or other")
    if groups == "any":
        return np.zeros(len(queries), np.int64), np.zeros(0, np.int64)
    if query_group is None or database_group is None:
        raise InputError(f"groups={groups!r} needs query_group and database_group")
    codes = np.asarray(query_group, np.int64), np.asarray(database_group, np.int64)
    if codes[0].shape != (len(queries),) or codes[1].shape != (len(database),):
        raise InputError(
            f"group codes have shapes {codes[0].shape}, {codes[1].shape}; expected one code per descriptor"
        )
    return codes


_BLOCK_ROWS, _BLOCK_BYTES = 8192, 64 << 20
_QUERY_ROWS = 512
_STATE_BYTES = 64 << 20
_PAIR_BYTES = 1 << 20
_SMALL_ROWS = 1024


def rank(
    queries: Matrix,
    database: Matrix,
    k: int,
    query_group: ArrayLike | None = None,
    database_group: ArrayLike | None = None,
    groups: Groups = "any",
    *,
    allowed: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    beyond: tuple[Floats, Floats, float] | None = None,
) -> Ranking:
    """The k nearest of `database` (N, D) for each of `queries` (Q, D); the answer is (Q, min(k, N)).

    groups: "any", or only the query's own group ("same"), or all but it ("other"), by integer codes (Q,) and (N,).
    allowed: (N,) mask, or the rows of the map, that may be found at all.
    exclude: (Q,) one row that each query must not find, such as itself; −1 for none.
    beyond: positions (Q, 2) and (N, 2) and metres: only what lies farther than that from the query may be found.
    Besides its answer it needs about 300 MB for any Q and N; either side may be a memory-mapped `DescriptorStore`.
    """
    queries = as_queries(queries, database, k)
    own, theirs = group_codes(query_group, database_group, queries, database, groups)
    rows, width = allowed_rows(allowed, len(database)), min(k, len(database))
    answer = Ranking(np.full((len(queries), width), -1), np.full((len(queries), width), np.inf))
    barred = None if exclude is None else np.asarray(exclude, np.int64)
    step = min(_QUERY_ROWS, max(1, _STATE_BYTES // (64 * max(1, width))))
    for part, among in _searches(own, theirs, rows, groups):
        for start in range(0, len(part), step):
            chunk = part[start : start + step]
            nearest = _Nearest(queries[chunk], width)
            for block, vectors in _blocks(database, among):
                forbidden = None if barred is None else block == barred[chunk][:, None]
                if groups == "other":
                    same = theirs[block] == own[chunk][:, None]
                    forbidden = same if forbidden is None else forbidden | same
                if beyond is not None:
                    offset = beyond[1][block] - beyond[0][chunk][:, None]
                    near = np.hypot(offset[..., 0], offset[..., 1]) <= beyond[2]
                    forbidden = near if forbidden is None else forbidden | near
                nearest.update(block, vectors, forbidden)
            answer.ids[chunk], answer.distances[chunk] = nearest.ids, nearest.distances
    return answer


def distances(queries: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Euclidean distances along the last axis, computed in float64; the other axes are broadcast."""
    difference = vectors - queries.astype(np.float64)
    return np.asarray(np.sqrt(np.square(difference, out=difference).sum(axis=-1)), np.float32)


def _searches(own: Ids, theirs: Ids, rows: Ids | None, groups: Groups) -> Iterator[tuple[Ids, Ids | None]]:
    """Queries with the map rows that they are searched among: all at once, or group by group."""
    if groups != "same":
        yield np.arange(len(own)), rows
        return
    for code in np.unique(own):
        among = np.flatnonzero(theirs == code)
        yield np.flatnonzero(own == code), among if rows is None else np.intersect1d(among, rows)


def _blocks(database: Matrix, among: Ids | None) -> Iterator[tuple[Ids, NDArray[np.float32]]]:
    """Row numbers and vectors of the map, or of the rows `among`, a bounded number at a time."""
    most = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * max(1, database.shape[1]))))
    if among is None:
        for low, high in _spans(getattr(database, "borders", (0, len(database))), most):
            yield np.arange(low, high), np.ascontiguousarray(database[low:high], np.float32)
    else:
        for start in range(0, len(among), most):
            rows = among[start : start + most]
            yield rows, np.ascontiguousarray(database[rows], np.float32)


def _spans(borders: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Rows between borders, at most `most` at a time, so that a slice is a view of one part; small parts are joined."""
    start, end = 0, int(borders[-1])
    for border in map(int, borders):
        if border < end and border - start < _SMALL_ROWS:
            continue
        for low in range(start, border, most):
            yield low, min(low + most, border)
        start = border


class _Nearest:
    """The k nearest so far of some queries (Q, D)."""

    def __init__(self, queries: NDArray[np.float32], k: int) -> None:
        self.queries, self.k = queries, k
        self.norm = np.sqrt(np.einsum("qd,qd->q", queries, queries, dtype=np.float64))
        self.ids = np.full((len(queries), k), -1)
        self.distances = np.full((len(queries), k), np.inf, np.float32)

    def update(self, rows: Ids, vectors: NDArray[np.float32], forbidden: Bools | None) -> None:
        """Takes in a block of the map: its rows (n,) and vectors (n, D), forbidden pairs (Q, n)."""
        square = np.einsum("nd,nd->n", vectors, vectors)
        if not np.isfinite(square).all():
            bad = int(rows[~np.isfinite(square)][0])
            raise InputError(f"descriptor {bad} of the map is not finite; make it again")
        # d² = ‖q‖² + 2 · score
        score = self.queries @ vectors.T
        np.subtract(square / 2, score, out=score)
        if forbidden is not None:
            score[forbidden] = np.inf
        query, column = np.nonzero(self._candidates(score, float(np.sqrt(square.max(initial=0.0)))))
        distance = np.empty(len(query), np.float32)
        step = max(1, _PAIR_BYTES // (8 * max(1, vectors.shape[1])))
        for start in range(0, len(query), step):
            part = slice(start, start + step)
            distance[part] = distances(self.queries[query[part]], vectors[column[part]])
        self._merge(query, rows[column], distance)

    def _candidates(self, score: NDArray[np.float32], reach: float) -> Bools:
        """(Q, n) pairs that may be among the k nearest; `reach` is the largest norm of the block."""
        slack = _rounding(self.queries.shape[1]) * (self.norm + reach) ** 2
        limit = (self.distances[:, -1].astype(np.float64) ** 2 - self.norm**2) / 2 + slack
        limit = np.minimum(limit, np.finfo(np.float32).max).astype(np.float32)
        close = score <= limit[:, None]
        crowded = np.flatnonzero(close.sum(axis=1) > 2 * self.k)
        if len(crowded):  # a block better than all before: only its own k nearest count
            some = score[crowded]
            kth = np.partition(some, self.k - 1, axis=1)[:, self.k - 1]
            close[crowded] &= some <= (kth + slack[crowded]).astype(np.float32)[:, None]
        return np.asarray(close)

    def _merge(self, query: Ids, ids: Ids, distance: NDArray[np.float32]) -> None:
        """Candidates in order of their query (M,), with their ids and distances."""
        some, first, count = np.unique(query, return_index=True, return_counts=True)
        if not len(some):
            return
        at = np.repeat(np.arange(len(some)), count), self.k + np.arange(len(query)) - np.repeat(first, count)
        shape = (len(some), self.k + int(count.max()))
        all_ids, all_distances = np.full(shape, -1), np.full(shape, np.inf, np.float32)
        all_ids[:, : self.k], all_distances[:, : self.k] = self.ids[some], self.distances[some]
        all_ids[at], all_distances[at] = ids, distance
        best = ordered(all_ids, all_distances, self.k)
        self.ids[some], self.distances[some] = best.ids, best.distances


def _rounding(dimensions: int) -> float:
    """How far float32 scores of unit vectors may be off (over ten times what is observed)."""
    return float(2.0**-22 * (np.sqrt(dimensions) + 8))
