"""The inner loops of exact search, compiled.

A matrix product gives *approximate* scores s = ‖x‖²/2 − q·x (float32, order of summation unknown). Whatever lies
within the rounding error of the k-th best is kept as a candidate, and candidates get their distance again as
√Σ(q−x)² in float64, rounded to float32. Equal descriptors thus have equal distances wherever they stand, and the
order (distance, id) does not depend on block sizes, threads or the linear algebra library.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

ANY, SAME, OTHER = 0, 1, 2
_STRIDE = 32
_UNKNOWN = np.float32(-1)
# One signature each: arrays that may be read-only (memory-mapped) and ordinary ones share one compilation.
_MATRIX = types.Array(types.float32, 2, "C", readonly=True)
_CUBE = types.Array(types.float32, 3, "C", readonly=True)
_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_IDS = types.Array(types.int64, 1, "C", readonly=True)
_WHOLE = types.int64
_OUT32, _OUT64 = types.float32[::1], types.int64[::1]
_OUT2 = types.float32[:, ::1]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _distance(query, vector):  # type: ignore[no-untyped-def]
    total = 0.0
    for d in range(len(query)):
        difference = np.float64(query[d]) - np.float64(vector[d])
        total += difference * difference
    return np.float32(np.sqrt(total))


@njit([types.void(_MATRIX, _MATRIX, types.float32[:, :])], nogil=True, cache=True, fastmath={"reassoc", "contract"})
def difference_scores(queries, block, products):  # type: ignore[no-untyped-def]
    """products (Q, N) = −‖q−x‖²/2: one pass without norms; a matrix product pays off only from a few queries on.

    Four rows at a time: memory access dominates the time, and this reads from four places at once.
    """
    rows, half = block.shape[0], np.float32(-0.5)
    for i in range(queries.shape[0]):
        for j in range(0, rows - 3, 4):
            a = b = c = e = np.float32(0)
            for d in range(queries.shape[1]):
                q = queries[i, d]
                a += (q - block[j, d]) * (q - block[j, d])
                b += (q - block[j + 1, d]) * (q - block[j + 1, d])
                c += (q - block[j + 2, d]) * (q - block[j + 2, d])
                e += (q - block[j + 3, d]) * (q - block[j + 3, d])
            products[i, j], products[i, j + 1], products[i, j + 2], products[i, j + 3] = (
                a * half,
                b * half,
                c * half,
                e * half,
            )
        for j in range(rows - rows % 4, rows):
            a = np.float32(0)
            for d in range(queries.shape[1]):
                a += (queries[i, d] - block[j, d]) * (queries[i, d] - block[j, d])
            products[i, j] = a * half


@njit(nogil=True, cache=True, fastmath={"nnan", "ninf", "nsz"})
def _lowest(products, half_norm, start, stop):  # type: ignore[no-untyped-def]
    """Least score in a stretch: this loop sees every pair, so it must stay free of branches."""
    least = np.float32(np.finfo(np.float32).max)
    for j in range(start, stop):
        least = min(least, half_norm[j] - products[j])
    return least


@njit([types.void(_MATRIX, _CUBE, _OUT2)], nogil=True, cache=True)
def pairs(queries, vectors, distance):  # type: ignore[no-untyped-def]
    """distance (Q, C) of queries (Q, D) to each one's own candidates, vectors (Q, C, D)."""
    for i in range(vectors.shape[0]):
        for c in range(vectors.shape[1]):
            distance[i, c] = _distance(queries[i], vectors[i, c])


@njit(nogil=True, cache=True)
def _nth(values, n):  # type: ignore[no-untyped-def]
    """The n-th smallest (from 0) by Hoare's selection; np.partition would take seconds to compile."""
    work = values.copy()
    low, high = 0, len(work) - 1
    while low < high:
        pivot = work[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while work[i] < pivot:
                i += 1
            while work[j] > pivot:
                j -= 1
            if i <= j:
                work[i], work[j] = work[j], work[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return work[n]


@njit(nogil=True, cache=True)
def _settle(query, block, first, columns, distance, count):  # type: ignore[no-untyped-def]
    """Exact distances of the candidates of this block that have none yet."""
    for c in range(first, count):
        if distance[c] == _UNKNOWN:
            distance[c] = _distance(query, block[columns[c]])


@njit(nogil=True, cache=True)
def _drop_far(score, ids, columns, distance, count, k, slack):  # type: ignore[no-untyped-def]
    """Keeps what lies within `slack` of the k-th best score; returns count and bound."""
    bound = _nth(score[:count], k - 1) + slack
    kept = 0
    for c in range(count):
        if score[c] <= bound:
            score[kept], ids[kept], columns[kept], distance[kept] = score[c], ids[c], columns[c], distance[c]
            kept += 1
    return kept, bound


@njit(nogil=True, cache=True)
def _keep_best(score, ids, columns, distance, count, k):  # type: ignore[no-untyped-def]
    """Keeps exactly the k best by (distance, id); every candidate must have its distance."""
    worst = _nth(distance[:count], k - 1)
    tied = np.empty(count, np.int64)
    closer = ties = 0
    for c in range(count):
        closer += distance[c] < worst
        if distance[c] == worst:
            tied[ties] = ids[c]
            ties += 1
    last = _nth(tied[:ties], k - closer - 1)
    kept = 0
    for c in range(count):
        if distance[c] < worst or (distance[c] == worst and ids[c] <= last):
            score[kept], ids[kept], columns[kept], distance[kept] = score[c], ids[c], columns[c], distance[c]
            kept += 1
    return kept


_SCAN = types.void(
    _MATRIX, _MATRIX, _OUT2, _FLOATS, _IDS, _FLOATS, _WHOLE, _WHOLE, _IDS, _IDS, _IDS,
    _OUT2, types.int64[:, ::1], types.int32[:, ::1], _OUT2, _OUT64, _OUT32,
)  # fmt: skip


@njit([_SCAN], nogil=True, cache=True)
def scan(  # type: ignore[no-untyped-def]
    queries, block, products, half_norm, block_ids, slack, k,
    mode, query_group, block_group, exclude,
    score, ids, columns, distance, count, bound,
):  # fmt: skip
    """Merges one block of the map into the candidates of each query.

    queries (Q, D), block (N, D), products (Q, N) = queries · blockᵀ, half_norm (N,), block_ids (N,), slack (Q,).
    Candidates: score, ids, columns, distance (Q, C), count (Q,), bound (Q,): all changed in place.
    """
    width, capacity = block.shape[0], score.shape[1]
    for i in range(queries.shape[0]):
        n = count[i]
        for start in range(0, width, _STRIDE):
            stop = min(start + _STRIDE, width)
            if _lowest(products[i], half_norm, start, stop) > bound[i]:
                continue
            for j in range(start, stop):
                s = half_norm[j] - products[i, j]
                if s > bound[i] or block_ids[j] < 0 or block_ids[j] == exclude[i]:
                    continue
                if mode == OTHER and query_group[i] == block_group[j]:
                    continue
                score[i, n], ids[i, n], columns[i, n], distance[i, n] = s, block_ids[j], j, _UNKNOWN
                n += 1
                if n < capacity:
                    continue
                n, bound[i] = _drop_far(score[i], ids[i], columns[i], distance[i], n, k, slack[i])
                if n > capacity - capacity // 4:
                    _settle(queries[i], block, 0, columns[i], distance[i], n)
                    n = _keep_best(score[i], ids[i], columns[i], distance[i], n, k)
        if n >= k:
            n, bound[i] = _drop_far(score[i], ids[i], columns[i], distance[i], n, k, slack[i])
        _settle(queries[i], block, 0, columns[i], distance[i], n)
        count[i] = n
