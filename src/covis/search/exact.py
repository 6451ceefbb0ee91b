"""Exact nearest neighbours in bounded memory: every pair is compared, ties have a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.errors import InputError
from covis.core.machine import cpu_count
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


_BLOCK_ROWS = 8192
_QUERY_ROWS = 512
_FEW_QUERIES = 3
_FEW_BYTES = 64 << 20
_VIEW_ROWS = 1 << 18
_SMALL_ROWS = 1024
_STATE_BYTES = 256 << 20
PLAIN_QUERIES, _PLAIN_VALUES = 16, 1 << 24
"""Up to this many queries of a map of up to this many numbers are answered in numpy: the compiled kernel takes longer
to load."""
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
    ids: ArrayLike | None = None,
) -> Ranking:
    """The k nearest of `database` (N, D) for each of `queries` (Q, D); the answer is (Q, min(k, N)).

    groups: "any", or only the query's own group ("same"), or all but it ("other"), by integer codes (Q,) and (N,).
    allowed: (N,) mask, or the rows of the map, that may be found at all.
    exclude: (Q,) one map id that each query must not find, such as itself; −1 for none.
    ids: (N,) what the rows of the map are called, if not 0 … N − 1.
    Besides its answer it needs about 300 MB for any Q and N; either side may be a memory-mapped `DescriptorStore`.
    """
    queries = as_queries(queries, database, k)
    width = min(k, len(database))
    answer = Ranking(np.full((len(queries), width), -1), np.full((len(queries), width), np.inf))
    codes = group_codes(query_group, database_group, queries, database, groups)
    rows = allowed_rows(allowed, len(database))
    if not width:
        return answer
    barred = np.full(len(queries), -1, np.int64) if exclude is None else np.asarray(exclude, np.int64)
    names = None if ids is None else np.asarray(ids, np.int64)
    job = _Job(queries, database, width, *codes, groups == "other", barred, names)
    if groups != "same" and len(queries) <= PLAIN_QUERIES and database.shape[0] * database.shape[1] <= _PLAIN_VALUES:
        return job.plain(rows)
    for part, among in _jobs(job, rows, groups):
        step = max(1, _STATE_BYTES // (job.capacity * _CANDIDATE_BYTES))
        for start in range(0, len(part), step):
            chunk = part[start : start + step]
            best = job.run(chunk, among)
            answer.ids[chunk], answer.distances[chunk] = best.ids, best.distances
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
    """One search: the queries, the map and the rules."""

    queries: NDArray[np.float32]
    database: Matrix
    k: int
    query_group: NDArray[np.int64]
    database_group: NDArray[np.int64]
    other: bool
    exclude: NDArray[np.int64]
    ids: NDArray[np.int64] | None

    def plain(self, rows: NDArray[np.int64] | None) -> Ranking:
        """The whole search in numpy: candidates by a matrix product, their order by float64 distances."""
        among = np.arange(len(self.database)) if rows is None else rows
        ranking = Ranking(np.full((len(self.queries), self.k), -1), np.full((len(self.queries), self.k), np.inf))
        if not len(among):
            return ranking
        block = self._block(among, self.database[among] if rows is not None else self.database[0 : len(self.database)])
        squares = np.einsum("nd,nd->n", block.vectors, block.vectors)
        if not np.isfinite(squares).all():
            raise InputError(
                f"descriptor {int(among[~np.isfinite(squares)][0])} of the map is not finite; make it again"
            )
        barred = block.ids[None] == self.exclude[:, None]
        if self.other:
            barred |= self.query_group[:, None] == block.group[None]
        score = np.where(barred, np.inf, squares / 2 - self.queries @ block.vectors.T)
        norm = np.sqrt(np.einsum("qd,qd->q", self.queries, self.queries, dtype=np.float64))
        reach = float(np.sqrt(squares.max(initial=0.0)))
        slack = 2 * (rounding(self.queries.shape[1]) * norm * reach + rounding(4) * reach**2)
        for i, query in enumerate(self.queries.astype(np.float64)):
            bound = np.partition(score[i], self.k - 1)[self.k - 1] if self.k <= len(among) else np.inf
            near = np.flatnonzero((score[i] <= bound + slack[i]) & np.isfinite(score[i]))
            distance = np.sqrt(np.square(block.vectors[near] - query).sum(axis=1)).astype(np.float32)
            best = ordered(block.ids[near][None], distance[None], self.k)
            ranking.ids[i, : best.k], ranking.distances[i, : best.k] = best.ids[0], best.distances[0]
        return ranking

    @property
    def capacity(self) -> int:
        """Candidates kept for a query; more room means fewer clean-ups."""
        return min(max(2 * self.k, self.k + 128), len(self.database))

    def run(self, part: NDArray[np.int64], among: NDArray[np.int64] | None) -> Ranking:
        """Searches for the queries `part` in one pass over the map rows `among` (None: all)."""
        state = _State.empty(len(part), self.capacity)
        queries = np.ascontiguousarray(self.queries[part], np.float32)
        rows = self._block_rows(len(part))
        products = np.empty(min(_QUERY_ROWS, len(part)) * rows, np.float32)
        with ThreadPoolExecutor(threads()) as pool:
            scorer = _Scorer.of(queries, pool)
            for block in self._blocks(rows) if among is None else self._blocks_among(among):
                half_norm = scorer.prepare(block)
                for start in range(0, len(part), _QUERY_ROWS):
                    at = slice(start, min(start + _QUERY_ROWS, len(part)))
                    shape = (at.stop - at.start, len(block.ids))
                    score = products[: shape[0] * shape[1]].reshape(shape)
                    slack = scorer.score(at, block, score)
                    _spread(pool, self._scan(part, at, queries, block, score, half_norm, slack, state), len(score))
        return ordered(np.where(_filled(state), state.ids, -1), state.distance, self.k)

    def _scan(self, part: Any, at: slice, queries: Any, block: _Block, products: Any, half_norm: Any, slack: Any,
              state: _State) -> Callable[[int, int], None]:  # fmt: skip
        """The work on the rows low … high of `products`, for one thread."""
        from covis.search import kernel

        mode = kernel.OTHER if self.other else kernel.ANY

        def work(low: int, high: int) -> None:
            rows = slice(at.start + low, at.start + high)
            kernel.scan(queries[rows], block.vectors, products[low:high], half_norm, block.ids, slack[low:high], self.k,
                        mode, self.query_group[part[rows]], block.group, self.exclude[part[rows]], *state.of(rows))  # fmt: skip

        return work

    def _block_rows(self, queries: int) -> int:
        """Rows of the map per block; larger for few queries, where the work on a row costs less than the calls."""
        if queries > _FEW_QUERIES:
            return _BLOCK_ROWS
        in_place = isinstance(self.database, np.ndarray) and self.database.dtype == np.float32
        return _VIEW_ROWS if in_place else max(_BLOCK_ROWS, _FEW_BYTES // (4 * max(1, self.queries.shape[1])))

    def _blocks(self, most: int) -> Iterator[_Block]:
        """The whole map, at most `most` rows at a time, cut where its parts meet: a view of one part needs no copy."""
        for start, stop in _spans(getattr(self.database, "borders", (0, len(self.database))), most):
            yield self._block(np.arange(start, stop), self.database[start:stop])

    def _blocks_among(self, among: NDArray[np.int64]) -> Iterator[_Block]:
        """Some rows of the map, a bounded number at a time, as views where possible."""
        step = max(1, _BLOCK_ROWS // 2)
        for start in range(0, len(among), step):
            rows = wanted = among[start : start + step]
            # Dense enough: also look at the rows between, instead of copying.
            if rows[-1] - rows[0] < min(_BLOCK_ROWS, 4 * len(rows)):
                rows = np.arange(rows[0], rows[-1] + 1)
                block = self._block(rows, self.database[int(rows[0]) : int(rows[-1]) + 1])
                yield block._replace(ids=np.where(np.isin(rows, wanted, assume_unique=True), block.ids, -1))
            else:
                yield self._block(rows, self.database[rows])

    def _block(self, rows: NDArray[np.int64], vectors: Any) -> _Block:
        ids = rows if self.ids is None else self.ids[rows]
        group = self.database_group[rows] if self.other else ids
        return _Block(ids, group, np.ascontiguousarray(vectors, np.float32), int(rows[0]))


def _spans(borders: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Rows between borders, at most `most` at a time; small parts are taken together."""
    start, end = 0, int(borders[-1])
    for border in map(int, borders):
        if border < end and border - start < _SMALL_ROWS:
            continue
        for low in range(start, border, most):
            yield low, min(low + most, border)
        start = border


class _Block(NamedTuple):
    """Some rows of the map."""

    ids: NDArray[np.int64]
    """−1 for rows that are not asked for."""
    group: NDArray[np.int64]
    vectors: NDArray[np.float32]
    start: int


@dataclass(frozen=True, eq=False)
class _State:
    """Candidates of each query during the pass over the map."""

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
    """Runs work(low, high) over a range, one part per thread."""
    edges = np.linspace(0, total, threads() + 1).astype(int)
    if len(edges) > 2:
        list(pool.map(work, edges[:-1], edges[1:]))
    else:
        work(0, total)


def _filled(state: _State) -> NDArray[np.bool_]:
    return np.asarray(np.arange(state.ids.shape[1]) < state.count[:, None])


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

    def prepare(self, block: _Block) -> NDArray[np.float32]:
        """‖x‖²/2 of each row; zeros where the scores come from differences and need no norms."""
        if self.few:
            return np.zeros(len(block.ids), np.float32)
        square = np.einsum("nd,nd->n", block.vectors, block.vectors)
        self._grow(square.max(), block, ~np.isfinite(square))
        return np.asarray(square / np.float32(2))

    def score(self, at: slice, block: _Block, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """Fills `out` (Q, N) with q·x, or with −‖q−x‖²/2; returns the slack (Q,) of each query's scores."""
        from covis.search import kernel

        unit = rounding(block.vectors.shape[1])
        if not self.few:
            np.matmul(self.queries[at], block.vectors.T, out=out)
            slack = unit * self.norm[at] * self.reach + rounding(4) * self.reach**2
            return np.asarray(slack, np.float32)

        def work(low: int, high: int) -> None:
            kernel.difference_scores(self.queries[at], block.vectors[low:high], out[:, low:high])

        _spread(self.pool, work, len(block.ids))
        self._grow(-2 * out.min(), block, np.asarray(~np.isfinite(out).all(0)))
        return np.full(len(out), unit * self.reach**2, np.float32)

    def _grow(self, square: float, block: _Block, bad: NDArray[np.bool_]) -> None:
        if bad.any():
            raise InputError(f"descriptor {block.start + int(bad.argmax())} of the map is not finite; make it again")
        self.reach = max(self.reach, float(np.sqrt(square)))


def rounding(dimensions: int) -> float:
    """How far two float32 scores of unit vectors may differ by rounding (over ten times what is observed)."""
    return float(2.0**-22 * (np.sqrt(dimensions) + 8))


def threads() -> int:
    """Cores that this process may use, as OMP_NUM_THREADS limits them for the matrix products."""
    cores = cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) else cores
