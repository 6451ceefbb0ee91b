"""Exact nearest neighbours in bounded memory: every pair is looked at, ties have one order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.descriptors import DescriptorStore, Matrix
from covis.errors import InputError
from covis.search.ranking import Ranking, ordered

Groups = Literal["any", "same", "other"]

_BLOCK_ROWS = 8192
_QUERY_ROWS = 512
_FEW_QUERIES = 3
_STATE_BYTES = 256 << 20
_CANDIDATE_BYTES = 4 + 8 + 4 + 4


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
) -> Ranking:
    """The k nearest of `database` (N, D) for each of `queries` (Q, D); the answer is (Q, min(k, N)).

    groups: "any", or only the query's own group ("same"), or all but it ("other"), by integer codes (Q,) and (N,).
    allowed: (N,) mask or ids of the map images that may be found at all.
    exclude: (Q,) one map id that each query must not find, such as itself; −1 for none.
    Beside its answer it needs about 300 MB, whatever Q and N are; either side may be a memory-mapped `DescriptorStore`.
    """
    queries = as_queries(queries, database, k)
    width = min(k, len(database))
    answer = Ranking(np.full((len(queries), width), -1), np.full((len(queries), width), np.inf))
    codes = _codes(query_group, database_group, queries, database, groups)
    rows = _rows(allowed, len(database))
    if not width:
        return answer
    barred = np.full(len(queries), -1, np.int64) if exclude is None else np.asarray(exclude, np.int64)
    job = _Job(queries, database, width, *codes, groups == "other", barred)
    for part, among in _jobs(job, rows, groups):
        step = max(_QUERY_ROWS, _STATE_BYTES // (job.capacity * _CANDIDATE_BYTES))
        for start in range(0, len(part), step):
            chunk = part[start : start + step]
            found = job.run(chunk, among)
            answer.ids[chunk], answer.distances[chunk] = found.ids, found.distances
    return answer


def _jobs(job: _Job, rows: NDArray[np.int64] | None, groups: Groups) -> Iterator[tuple[Any, NDArray[np.int64] | None]]:
    """Query ids with the map rows that they are searched among: all at once, or group by group."""
    if groups != "same":
        yield np.arange(len(job.queries)), rows
        return
    for code in np.unique(job.query_group):
        among = np.flatnonzero(job.database_group == code)
        yield np.flatnonzero(job.query_group == code), among if rows is None else np.intersect1d(among, rows)


@dataclass(frozen=True, eq=False)
class _Job:
    """One search: what is asked, among what, under which rule."""

    queries: NDArray[np.float32]
    database: Matrix
    k: int
    query_group: NDArray[np.int64]
    database_group: NDArray[np.int64]
    other: bool
    exclude: NDArray[np.int64]

    @property
    def capacity(self) -> int:
        """Candidates kept for a query; more room means fewer clean-ups."""
        return max(2 * self.k, self.k + 128)

    def run(self, part: NDArray[np.int64], among: NDArray[np.int64] | None) -> Ranking:
        """Searches for the queries `part` in one pass over the map rows `among` (None: all)."""
        state = _State.empty(len(part), self.capacity)
        queries = np.ascontiguousarray(self.queries[part], np.float32)
        products = np.empty((min(_QUERY_ROWS, len(part)), _BLOCK_ROWS), np.float32)
        with ThreadPoolExecutor(threads()) as pool:
            scorer = _Scorer.of(queries, pool)
            for ids, block in blocks(self.database, among):
                half_norm = scorer.prepare(block, ids)
                for start in range(0, len(part), _QUERY_ROWS):
                    at = slice(start, min(start + _QUERY_ROWS, len(part)))
                    score = products[: at.stop - at.start, : len(ids)]
                    slack = scorer.score(at, block, ids, score)
                    self._scan(pool, at, part[at], queries, ids, block, score, half_norm, slack, state)
        return ordered(np.where(_filled(state), state.ids, -1), state.distance, self.k)

    def _scan(self, pool: ThreadPoolExecutor, at: slice, part: NDArray[np.int64], queries: Any, ids: Any, block: Any,
              products: Any, half_norm: Any, slack: Any, state: _State) -> None:  # fmt: skip
        from covis.search import kernel

        mode = kernel.OTHER if self.other else kernel.ANY
        groups = self.database_group[ids] if self.other else ids

        def work(lo: int, hi: int) -> None:
            inner = slice(at.start + lo, at.start + hi)
            kernel.scan(queries[inner], block, products[lo:hi], half_norm, ids, slack[lo:hi], self.k,
                        mode, self.query_group[part[lo:hi]], groups, self.exclude[part[lo:hi]], *state.of(inner))  # fmt: skip

        _spread(pool, work, at.stop - at.start)


@dataclass(frozen=True, eq=False)
class _State:
    """Candidates of each query while the map goes by."""

    score: NDArray[np.float32]
    ids: NDArray[np.int64]
    columns: NDArray[np.int32]
    distance: NDArray[np.float32]
    count: NDArray[np.int64]
    bound: NDArray[np.float32]

    @classmethod
    def empty(cls, rows: int, capacity: int) -> _State:
        shape = (rows, capacity)
        return cls(np.empty(shape, np.float32), np.full(shape, -1), np.empty(shape, np.int32), np.empty(shape, np.float32),
                   np.zeros(rows, np.int64), np.full(rows, np.inf, np.float32))  # fmt: skip

    def of(self, rows: slice) -> tuple[NDArray[Any], ...]:
        return tuple(a[rows] for a in (self.score, self.ids, self.columns, self.distance, self.count, self.bound))


def _spread(pool: ThreadPoolExecutor, work: Callable[[int, int], None], total: int) -> None:
    """Runs work(low, high) over a range, one part a thread."""
    edges = np.linspace(0, total, threads() + 1).astype(int)
    if len(edges) > 2:
        list(pool.map(work, edges[:-1], edges[1:]))
    else:
        work(0, total)


def _filled(state: _State) -> NDArray[np.bool_]:
    return np.asarray(np.arange(state.ids.shape[1]) < state.count[:, None])


def blocks(database: Any, among: NDArray[np.int64] | None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Ids and float32 rows of the map (or of the rows `among`), a bounded number at a time, views where possible."""
    total = len(database) if among is None else len(among)
    for start in range(0, total, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, total)
        ids = np.arange(start, stop) if among is None else among[start:stop]
        whole = among is None or ids[-1] - ids[0] + 1 == len(ids)
        block = database[int(ids[0]) : int(ids[-1]) + 1] if whole else database[ids]
        yield ids, np.ascontiguousarray(block, np.float32)


@dataclass(eq=False)
class _Scorer:
    """Approximate scores of blocks, and how far they may be off."""

    queries: NDArray[np.float32]
    pool: ThreadPoolExecutor
    norm: NDArray[np.float64]
    few: bool
    reach: float = 0.0
    """Largest ‖x‖, or for few queries ‖q−x‖, so far."""

    @classmethod
    def of(cls, queries: NDArray[np.float32], pool: ThreadPoolExecutor) -> _Scorer:
        norm = np.sqrt(np.einsum("qd,qd->q", queries, queries, dtype=np.float64))
        return cls(queries, pool, norm, len(queries) <= _FEW_QUERIES)

    def prepare(self, block: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """‖x‖²/2 of each row; zeros where the scores come from differences and need no norms."""
        if self.few:
            return np.zeros(len(block), np.float32)
        square = np.einsum("nd,nd->n", block, block)
        self._grow(square.max(), ids[~np.isfinite(square)])
        return np.asarray(square / np.float32(2))

    def score(self, at: slice, block: NDArray[np.float32], ids: NDArray[np.int64], out: NDArray[np.float32]) -> Any:
        """Fills `out` (Q, N) with q·x, or with −‖q−x‖²/2; returns the slack (Q,) of each query's scores."""
        if not self.few:
            np.matmul(self.queries[at], block.T, out=out)
            slack = rounding(block.shape[1]) * self.norm[at] * self.reach + rounding(4) * self.reach**2
            return slack.astype(np.float32)
        from covis.search import kernel

        def work(low: int, high: int) -> None:
            kernel.differences(self.queries[at], block[low:high], out[:, low:high])

        _spread(self.pool, work, len(block))
        self._grow(-2 * out.min(), ids[~np.isfinite(out).all(0)])
        return np.full(len(out), rounding(block.shape[1]) * self.reach**2, np.float32)

    def _grow(self, square: float, bad: NDArray[np.int64]) -> None:
        if len(bad):
            raise InputError(f"descriptor {int(bad[0])} of the map is not finite; make it again")
        self.reach = max(self.reach, float(np.sqrt(square)))


def rounding(dimensions: int) -> float:
    """How far two scores of unit vectors may stray from each other in float32 products (over ten times what is seen)."""
    return float(2.0**-22 * (np.sqrt(dimensions) + 8))


def threads() -> int:
    """Cores that this process may use, as OMP_NUM_THREADS limits them for the matrix products."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) else cores


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


def _rows(allowed: ArrayLike | None, total: int) -> NDArray[np.int64] | None:
    if allowed is None:
        return None
    chosen = np.asarray(allowed)
    if chosen.dtype == bool:
        if chosen.shape != (total,):
            raise InputError(f"the mask of allowed images has shape {chosen.shape}, the map has {total}")
        return np.flatnonzero(chosen)
    return np.unique(chosen.astype(np.int64))


def _codes(
    query_group: ArrayLike | None, database_group: ArrayLike | None, queries: Any, database: Any, groups: Groups
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if groups not in ("any", "same", "other"):
        raise InputError(f"groups is {groups!r}; use any, same or other")
    if groups == "any":
        return np.zeros(len(queries), np.int64), np.zeros(0, np.int64)
    if query_group is None or database_group is None:
        raise InputError(f"groups={groups!r} needs query_group and database_group")
    codes = np.asarray(query_group, np.int64), np.asarray(database_group, np.int64)
    if codes[0].shape != (len(queries),) or codes[1].shape != (len(database),):
        raise InputError(f"group codes have shapes {codes[0].shape}, {codes[1].shape}; expected one code a descriptor")
    return codes
