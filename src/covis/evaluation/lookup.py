"""Compiled look-ups of ranked images among the relevant ones of their query; plain loops, no temporaries."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def find(ids: Ints, indptr: Ints, indices: NDArray[np.int32]) -> Ints:
    """(Q, K) where each ranked id is stored among the ascending `indices` of its query's row; −1 where it is not."""
    queries, depth = ids.shape
    at = np.empty((queries, depth), np.int64)
    for q in range(queries):
        for k in range(depth):
            at[q, k] = _search(indices, indptr[q], indptr[q + 1], ids[q, k])
    return at


@njit(cache=True, nogil=True)
def first(ids: Ints, indptr: Ints, indices: NDArray[np.int32]) -> NDArray[np.int32]:
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
