"""The inner loops of sampling, compiled: hashes as random numbers, the partners of a query, and drawing among them.

Every draw is a hash of (seed, epoch, position, stream). There is no generator state to carry along, so any worker can
draw any batch by itself, at any time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.compiling import kernel

Int = int | np.integer[Any]
Float = float | np.floating[Any]
RandomKey = np.uint64

_U = np.uint64
_GAMMA = _U(0x9E3779B97F4A7C15)
_ROUNDS = 6


@kernel(inline="always")
def mix(x: RandomKey) -> RandomKey:
    """A 64-bit finaliser: each input bit flips each output bit with probability one half."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@kernel()
def draw(key: RandomKey, position: Int, stream: Int) -> RandomKey:
    """64 random bits for one position and stream under a key."""
    return mix(mix(key + _GAMMA * _U(position + 1)) + _GAMMA * _U(stream + 1))


@kernel()
def below(key: RandomKey, position: Int, stream: Int, n: Int) -> Int:
    """A random integer in [0, n), uniform to within n / 2⁵³."""
    return np.int64((draw(key, position, stream) >> _U(11)) * 2.0**-53 * n)


@kernel()
def many_below(key: RandomKey, positions: NDArray[np.int64], stream: Int, n: NDArray[np.int64]) -> NDArray[np.int64]:
    """(K,) random integers in [0, n[k]), one per position."""
    out = np.empty(len(positions), np.int64)
    for k in range(len(positions)):
        out[k] = below(key, positions[k], stream, n[k])
    return out


@kernel()
def _epoch_key(seed: Int, epoch: Int, purpose: Int) -> RandomKey:
    return draw(draw(mix(_U(seed) + _GAMMA), epoch, 0), purpose, 1)


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> RandomKey:
    """The key of one epoch of one seed; `purpose` separates samplers that share a seed."""
    return _U(_epoch_key(seed, epoch, purpose))


@kernel()
def permute(key: RandomKey, position: Int, n: Int) -> Int:
    """Where a random permutation of [0, n) sends `position`, in constant time and memory.

    A Feistel network permutes the next even power of two; positions that fall outside [0, n) are permuted again.
    """
    half = 1
    while (1 << (2 * half)) < n:
        half += 1
    shift, mask = _U(half), _U((1 << half) - 1)
    x = _U(position)
    while True:
        left, right = x >> shift, x & mask
        for k in range(_ROUNDS):
            left, right = right, left ^ (mix(key + _GAMMA * (right + _U((k + 1) << 40))) & mask)
        x = (left << shift) | right
        if x < _U(n):
            return np.int64(x)


@kernel()
def permute_many(key: RandomKey, count: Int, n: Int) -> NDArray[np.int64]:
    """(count,) where the permutation of [0, n) sends 0, 1, …: as many distinct numbers below n."""
    out = np.empty(count, np.int64)
    for k in range(count):
        out[k] = permute(key, k, n)
    return out


_REDRAW, _PARTNER, _POSITIVE, _NEGATIVE = 1, 2, 4, 5
_TRIES = 64
"""Draws after which a negative may repeat an earlier one of its tuple."""


class Tables(NamedTuple):
    """A graph and the pools of its ψ = 0 pairs (rows = queries, columns = map images)."""

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


class Candidates(NamedTuple):
    """The partners of every query in every band of a strategy."""

    tables: Tables
    order: NDArray[Any]
    """(pairs,) the places of a row's stored pairs, band by band."""
    edges: NDArray[np.int32]
    """(rows, bands + 1) where each band begins in its row's order."""
    zeros: NDArray[np.int32]
    """(rows,) ψ = 0 partners."""
    counts: NDArray[np.int32]
    """(rows, bands) number of candidates, with ψ = 0 partners where the band holds those; stored ones come first."""
    eligible: NDArray[np.int32]
    """Queries with a candidate in some band: one epoch passes over these."""
    band_start: NDArray[np.int64]
    band_rows: NDArray[np.int32]
    """Queries by band that have a candidate there; band b is band_start[b] … band_start[b + 1]."""


@kernel()
def find_stray(t: Tables) -> Int:
    """The first stored pair (by its index) of an image with itself or with one of another pool, −1 for none."""
    for i in range(len(t.indptr) - 1):
        for at in range(t.indptr[i], t.indptr[i + 1]):
            if t.pool_of[t.indices[at]] != t.row_pool[i] or (t.one_set and t.indices[at] == i):
                return np.int64(at)
    return np.int64(-1)


@kernel()
def count_zeros(t: Tables) -> NDArray[np.int32]:
    """(rows,) how many images of its pool a query does not overlap with, itself not counted."""
    zeros = np.zeros(len(t.indptr) - 1, np.int32)
    for i in range(len(zeros)):
        own = t.row_pool[i]
        if own >= 0:
            stored = t.indptr[i + 1] - t.indptr[i]
            itself = t.one_set and t.pool_of[i] == own
            zeros[i] = t.pool_start[own + 1] - t.pool_start[own] - stored - itself
    return zeros


@kernel()
def order_by_band(
    t: Tables, low: NDArray[np.float32], high: NDArray[np.float32], order: NDArray[Any]
) -> NDArray[np.int32]:
    """Fills `order` (pairs,) and returns the edges (rows, bands + 1) of bands low ≤ value < high."""
    edges = np.zeros((len(t.indptr) - 1, len(low) + 1), np.int32)
    for i in range(len(edges)):
        first = t.indptr[i]
        put = first
        for b in range(len(low)):
            for at in range(first, t.indptr[i + 1]):
                value = np.float32(t.values[at])
                if value >= low[b] and value < high[b]:
                    order[put] = at - first
                    put += 1
            edges[i, b + 1] = put - first
    return edges


@kernel()
def _absent(t: Tables, i: Int, k: Int) -> Int:
    """Place in its pool of the k-th image that row i does not store.

    The m-th stored image, at place p, has p − m absent ones before it. This never falls with m, so bisection finds it.
    """
    first = t.indptr[i]
    low, high = 0, t.indptr[i + 1] - first
    while low < high:
        middle = (low + high) // 2
        if t.pool_rank[t.indices[first + middle]] - middle <= k:
            low = middle + 1
        else:
            high = middle
    return k + low


@kernel()
def pick_zero(t: Tables, i: Int, k: Int) -> Int:
    """The k-th image of the pool of row i that is neither stored in the row nor the row's own image."""
    own = t.row_pool[i]
    place = _absent(t, i, k)
    if t.one_set and t.pool_of[i] == own and place >= t.pool_rank[i]:
        place = _absent(t, i, k + 1)
    return np.int64(t.pool_ids[t.pool_start[own] + place])


@kernel()
def pick_zeros(t: Tables, queries: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.int64]:
    """(K,) the k-th ψ = 0 partner of each query."""
    out = np.empty(len(queries), np.int64)
    for s in range(len(queries)):
        out[s] = pick_zero(t, queries[s], k[s])
    return out


@kernel()
def pick(c: Candidates, i: Int, b: Int, k: Int) -> tuple[Int, Float]:
    """The k-th candidate of query i in band b, stored or not: its column and ψ."""
    stored = np.int64(c.edges[i, b + 1] - c.edges[i, b])
    if k < stored:
        first = c.tables.indptr[i]
        at = first + np.int64(c.order[first + c.edges[i, b] + k])
        return np.int64(c.tables.indices[at]), np.float32(c.tables.values[at]) / c.tables.scale
    return pick_zero(c.tables, i, k - stored), np.float32(0)


@kernel()
def assign_queries(
    c: Candidates, key: RandomKey, first: Int, slot_band: NDArray[np.int64], out: NDArray[np.int64]
) -> Int:
    """Fills `out` (size,) with the queries of positions first … and returns how many had to be redrawn.

    A query without a candidate in its slot's band swaps places with a suitable one of the same batch; if there is none,
    another query that has a candidate takes the slot.
    """
    size, n = len(out), len(c.eligible)
    for s in range(size):
        out[s] = c.eligible[permute(key, (first + s) % n, n)]
    redrawn = 0
    for s in range(size):
        band = slot_band[s]
        if c.counts[out[s], band] > 0:
            continue
        swapped = False
        for shift in range(1, size):
            u = (s + shift) % size
            if slot_band[u] != band and c.counts[out[s], slot_band[u]] > 0 and c.counts[out[u], band] > 0:
                out[s], out[u] = out[u], out[s]
                swapped = True
                break
        if not swapped:
            suited = c.band_start[band + 1] - c.band_start[band]
            out[s] = c.band_rows[c.band_start[band] + below(key, first + s, _REDRAW, suited)]
            redrawn += 1
    return redrawn


@kernel()
def draw_partners(
    c: Candidates,
    key: RandomKey,
    first: Int,
    queries: NDArray[np.int64],
    slot_band: NDArray[np.int64],
    database: NDArray[np.int64],
    psi: NDArray[np.float32],
) -> None:
    """Fills `database` and `psi` (size,) with a partner of each query, uniform among candidates in the slot's band."""
    # Arrays are taken out of their tuples first: reaching into those for each pair costs five times the draw itself.
    counts, edges, order = c.counts, c.edges, c.order
    indptr, indices, values, scale = c.tables.indptr, c.tables.indices, c.tables.values, c.tables.scale
    for s in range(len(queries)):
        i, b = queries[s], slot_band[s]
        k = below(key, first + s, _PARTNER, counts[i, b])
        stored = np.int64(edges[i, b + 1] - edges[i, b])
        if k < stored:
            at = indptr[i] + np.int64(order[indptr[i] + edges[i, b] + k])
            database[s], psi[s] = indices[at], np.float32(values[at]) / scale
        else:
            database[s], psi[s] = pick_zero(c.tables, i, k - stored), np.float32(0)


@kernel()
def draw_batches(
    c: Candidates, key: RandomKey, first: Int, slot_band: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Queries, map images and ψ (batches, size), and redrawn (batches,), of the batches first, first + 1, …

    `slot_band` (batches, size) is the band of each slot.
    """
    batches, size = slot_band.shape
    queries = np.empty((batches, size), np.int64)
    database = np.empty((batches, size), np.int64)
    psi = np.empty((batches, size), np.float32)
    redrawn = np.empty(batches, np.int64)
    for n in range(batches):
        start = (first + n) * size
        redrawn[n] = assign_queries(c, key, start, slot_band[n], queries[n])
        draw_partners(c, key, start, queries[n], slot_band[n], database[n], psi[n])
    return queries, database, psi, redrawn


@kernel()
def draw_tuples(
    c: Candidates, key: RandomKey, first: Int, soft: Int, database: NDArray[np.int64], psi: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Fills `database` and `psi` (size, 1 + n): a positive (band 0), then negatives; returns the queries (size,).

    Up to `soft` negatives come from band 1, the others from band 2; none is drawn twice unless a query has fewer.
    """
    size, width = database.shape
    queries = np.empty(size, np.int64)
    for s in range(size):
        i = np.int64(c.eligible[permute(key, (first + s) % len(c.eligible), len(c.eligible))])
        queries[s] = i
        at = (first + s) * np.int64(width)
        database[s, 0], psi[s, 0] = pick(c, i, 0, below(key, at, _POSITIVE, c.counts[i, 0]))
        graded = min(np.int64(soft), np.int64(c.counts[i, 1]))
        for column in range(1, width):
            band = 1 if column <= graded else 2
            for attempt in range(_TRIES):
                k = below(key, at + column, _NEGATIVE + attempt, c.counts[i, band])
                database[s, column], psi[s, column] = pick(c, i, band, k)
                fresh = True
                for before in range(1, column):
                    fresh = fresh and database[s, before] != database[s, column]
                if fresh:
                    break
    return queries
