"""The inner loops of sampling, compiled.

Every random number is a hash of (seed, epoch, position, stream): no generator has to be carried along, so that any
batch can be drawn by itself, by any worker, at any time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int = int | np.integer[Any]
Float = float | np.floating[Any]
Key = np.uint64

_U = np.uint64
_GAMMA = _U(0x9E3779B97F4A7C15)
_ROUNDS = 6


class Tables(NamedTuple):
    """A graph and the pools of its ψ = 0 pairs, as the kernels read them (rows = queries, columns = map images)."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[Any]
    scale: np.float32
    """What a stored value is divided by to give ψ."""
    row_pool: NDArray[np.int32]
    """(rows,) the pool that ψ = 0 partners of a query come from, −1 for none."""
    pool_of: NDArray[np.int32]
    """(columns,) the pool of each map image, −1 for none."""
    pool_rank: NDArray[np.int32]
    """(columns,) its place in that pool."""
    pool_start: NDArray[np.int64]
    pool_ids: NDArray[np.int32]
    """Map images by pool, ascending within each; pool g is pool_start[g] … pool_start[g + 1]."""
    one_set: bool


class Bands(NamedTuple):
    """(bands,) limits of each band, and whether ψ = 0 belongs to it."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    zero: NDArray[np.bool_]


@njit(cache=True, inline="always")
def mix(x: Key) -> Key:
    """A 64-bit finaliser: each input bit flips each output bit with probability one half."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@njit(cache=True)
def draw(key: Key, position: Int, stream: Int) -> Key:
    """64 random bits for one position and stream under a key."""
    return mix(mix(key + _GAMMA * _U(position + 1)) + _GAMMA * _U(stream + 1))


@njit(cache=True)
def below(key: Key, position: Int, stream: Int, n: Int) -> Int:
    """A random integer in [0, n); the bias of the remainder is under n / 2⁶⁴."""
    return np.int64(draw(key, position, stream) % _U(n))


@njit(cache=True)
def many_below(key: Key, positions: NDArray[np.int64], stream: Int, n: NDArray[np.int64]) -> NDArray[np.int64]:
    """(K,) random integers in [0, n[k]), one a position."""
    out = np.empty(len(positions), np.int64)
    for k in range(len(positions)):
        out[k] = below(key, positions[k], stream, n[k])
    return out


@njit(cache=True)
def _epoch_key(seed: Int, epoch: Int, purpose: Int) -> Key:
    return draw(draw(mix(_U(seed) + _GAMMA), epoch, 0), purpose, 1)


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> Key:
    """The key of one epoch of one seed; `purpose` separates samplers that share a seed."""
    return _U(_epoch_key(seed, epoch, purpose))


@njit(cache=True)
def permute(key: Key, position: Int, n: Int) -> Int:
    """Where a random permutation of [0, n) sends `position`, in constant time and memory.

    A Feistel network permutes the next even power of two; positions that fall outside [0, n) walk on.
    """
    half = 1
    while (1 << (2 * half)) < n:
        half += 1
    mask = _U((1 << half) - 1)
    x = _U(position)
    while True:
        left, right = x >> _U(half), x & mask
        for k in range(_ROUNDS):
            left, right = right, left ^ (draw(key, np.int64(right), 100 + k) & mask)
        x = (left << _U(half)) | right
        if x < _U(n):
            return np.int64(x)


@njit(cache=True)
def permute_many(key: Key, count: Int, n: Int) -> NDArray[np.int64]:
    """(count,) where the permutation of [0, n) sends 0, 1, …: as many distinct numbers below n."""
    out = np.empty(count, np.int64)
    for k in range(count):
        out[k] = permute(key, k, n)
    return out


@njit(cache=True)
def _in_band(psi: Float, low: Float, high: Float) -> Any:
    return psi >= low and (psi < high or (high >= 1.0 and psi <= 1.0))


@njit(cache=True)
def count_candidates(t: Tables, bands: Bands) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(rows, bands) candidates of each query in each band, and (rows,) its ψ = 0 partners."""
    rows, width = len(t.indptr) - 1, len(bands.low)
    counts = np.zeros((rows, width), np.int32)
    zeros = np.zeros(rows, np.int32)
    for i in range(rows):
        own = t.row_pool[i]
        if own >= 0:
            zeros[i] = t.pool_start[own + 1] - t.pool_start[own]
            if t.one_set and t.pool_of[i] == own:
                zeros[i] -= 1
        for at in range(t.indptr[i], t.indptr[i + 1]):
            j = t.indices[at]
            if t.one_set and j == i:
                continue
            psi = np.float32(t.values[at]) / t.scale
            for b in range(width):
                if _in_band(psi, bands.low[b], bands.high[b]):
                    counts[i, b] += 1
            if own >= 0 and t.pool_of[j] == own:
                zeros[i] -= 1
        for b in range(width):
            if bands.zero[b]:
                counts[i, b] += zeros[i]
    return counts, zeros


@njit(cache=True)
def pick_stored(t: Tables, i: Int, k: Int, low: Float, high: Float) -> tuple[Int, Float]:
    """The k-th stored pair of row i in a band: its column and ψ."""
    for at in range(t.indptr[i], t.indptr[i + 1]):
        if t.one_set and t.indices[at] == i:
            continue
        psi = np.float32(t.values[at]) / t.scale
        if _in_band(psi, low, high):
            if k == 0:
                return np.int64(t.indices[at]), psi
            k -= 1
    return np.int64(-1), np.float32(0)


@njit(cache=True)
def pick_zero(t: Tables, i: Int, k: Int) -> Int:
    """The k-th image of the pool of row i that is not stored in the row and not the row's own image.

    Pools and rows both ascend, so each stored image met before the answer moves it on by one: uniform, no rejection.
    """
    own, rank = t.row_pool[i], k
    self_left = t.one_set and t.pool_of[i] == own
    for at in range(t.indptr[i], t.indptr[i + 1]):
        j = t.indices[at]
        if self_left and j >= i:
            if t.pool_rank[i] <= rank:
                rank += 1
            self_left = False
        if (t.one_set and j == i) or t.pool_of[j] != own:
            continue
        if t.pool_rank[j] > rank:
            break
        rank += 1
    if self_left and t.pool_rank[i] <= rank:
        rank += 1
    return np.int64(t.pool_ids[t.pool_start[own] + rank])


@njit(cache=True)
def assign_queries(
    key: Key,
    first: Int,
    slot_band: NDArray[np.int64],
    eligible: NDArray[np.int32],
    counts: NDArray[np.int32],
    band_start: NDArray[np.int64],
    band_rows: NDArray[np.int32],
    out: NDArray[np.int64],
) -> Int:
    """Fills `out` (size,) with the queries of positions first … and returns how many had to be redrawn.

    A query that has no candidate in its slot's band first changes places with one of the same batch that suits; only if
    none does, another query that has one takes the slot.
    """
    size, n = len(out), len(eligible)
    for s in range(size):
        out[s] = eligible[permute(key, (first + s) % n, n)]
    redrawn = 0
    for s in range(size):
        band = slot_band[s]
        if counts[out[s], band] > 0:
            continue
        swapped = False
        for shift in range(1, size):
            u = (s + shift) % size
            if slot_band[u] != band and counts[out[s], slot_band[u]] > 0 and counts[out[u], band] > 0:
                out[s], out[u] = out[u], out[s]
                swapped = True
                break
        if not swapped:
            n_band = band_start[band + 1] - band_start[band]
            out[s] = band_rows[band_start[band] + below(key, first + s, 1, n_band)]
            redrawn += 1
    return redrawn


@njit(cache=True)
def draw_partners(
    t: Tables,
    bands: Bands,
    zeros: NDArray[np.int32],
    counts: NDArray[np.int32],
    key: Key,
    first: Int,
    queries: NDArray[np.int64],
    slot_band: NDArray[np.int64],
    database: NDArray[np.int64],
    psi: NDArray[np.float32],
) -> None:
    """Fills `database` and `psi` (size,) with a uniform partner of each query in its slot's band."""
    for s in range(len(queries)):
        i, b = queries[s], slot_band[s]
        k = below(key, first + s, 2, counts[i, b])
        stored = counts[i, b] - (zeros[i] if bands.zero[b] else 0)
        if k < stored:
            database[s], psi[s] = pick_stored(t, i, k, bands.low[b], bands.high[b])
        else:
            database[s], psi[s] = pick_zero(t, i, k - stored), np.float32(0)


@njit(cache=True)
def draw_batches(
    t: Tables,
    bands: Bands,
    zeros: NDArray[np.int32],
    counts: NDArray[np.int32],
    eligible: NDArray[np.int32],
    band_start: NDArray[np.int64],
    band_rows: NDArray[np.int32],
    key: Key,
    first: Int,
    slot_band: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Queries, map images and ψ (batches, size), and redrawn (batches,), of the batches first, first + 1, …

    `slot_band` (batches, size) is the band of each slot.
    """
    batches, size = slot_band.shape
    queries = np.empty((batches, size), np.int64)
    database = np.empty((batches, size), np.int64)
    psi = np.empty((batches, size), np.float32)
    redrawn = np.empty(batches, np.int64)
    for b in range(batches):
        at = (first + b) * size
        redrawn[b] = assign_queries(key, at, slot_band[b], eligible, counts, band_start, band_rows, queries[b])
        draw_partners(t, bands, zeros, counts, key, at, queries[b], slot_band[b], database[b], psi[b])
    return queries, database, psi, redrawn


@njit(cache=True)
def draw_tuples(
    t: Tables,
    bands: Bands,
    zeros: NDArray[np.int32],
    counts: NDArray[np.int32],
    eligible: NDArray[np.int32],
    key: Key,
    first: Int,
    soft: Int,
    database: NDArray[np.int64],
    psi: NDArray[np.float32],
) -> NDArray[np.int64]:
    """Fills `database` and `psi` (size, 1 + n): a positive (band 0), then negatives; returns the queries (size,).

    Up to `soft` negatives come from band 1, the others are ψ = 0 (band 2); none is drawn twice unless a query has fewer.
    """
    size, width = database.shape
    queries = np.empty(size, np.int64)
    for s in range(size):
        i = np.int64(eligible[permute(key, (first + s) % len(eligible), len(eligible))])
        queries[s] = i
        at = (first + s) * np.int64(width)
        k = below(key, at, 4, counts[i, 0])
        database[s, 0], psi[s, 0] = pick_stored(t, i, k, bands.low[0], bands.high[0])
        graded = min(np.int64(soft), np.int64(counts[i, 1]))
        for c in range(1, width):
            for attempt in range(64):
                if c <= graded:
                    k = below(key, at + c, 5 + attempt, counts[i, 1])
                    database[s, c], psi[s, c] = pick_stored(t, i, k, bands.low[1], bands.high[1])
                else:
                    k = below(key, at + c, 5 + attempt, zeros[i])
                    database[s, c], psi[s, c] = pick_zero(t, i, k), np.float32(0)
                fresh = True
                for before in range(1, c):
                    fresh = fresh and database[s, before] != database[s, c]
                if fresh:
                    break
    return queries
