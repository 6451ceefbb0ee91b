"""Field-of-view overlap of every pair of a city, sparse, without visiting pairs that cannot overlap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from covis.labels.fov import similarity
from covis.labels.neighbours import Grid, build_grid, by_place, chunks, count_nearby, heading_difference, nearby
from covis.labels.rows import Rows
from covis.labels.sectors import SIMD, convex_area
from covis.labels.views import RADIANS, Split, Views, empty_pieces, gather, split, view_area

_LANES = 8
"""Candidate lists are padded to whole SIMD registers."""


class Options(NamedTuple):
    """How shared areas become ψ; plain numbers for the compiled loop."""

    measure: int
    """Index into `fov.MEASURES`."""
    max_angle_deg: float
    """Pairs whose known headings differ by more are left out."""
    facing: bool
    """Weigh pairs that look at each other down."""
    zero_below: float
    """Smaller ψ counts as none."""
    one_set: bool
    """Only pairs (i, j) with j > i."""


class City(NamedTuple):
    """Both sides ready for the compiled loop; the database's pieces lie in the order of the grid."""

    queries: Views
    query_pieces: Split
    second: NDArray[np.int64]
    """(N,) position of a query's second piece, −1 where it has none."""
    database: Views
    database_pieces: Split
    grid: Grid


def label_rows(queries: Views, database: Views, options: Options) -> Iterator[Rows]:
    """ψ of every overlapping pair, in chunks of queries that lie near each other."""
    if not len(queries.x) or not len(database.x):
        return
    city = _prepare(queries, database)
    count = count_nearby(city.grid, city.query_pieces.middle_x, city.query_pieces.middle_y)
    bound = count[: len(queries.x)] + np.where(city.second >= 0, count[city.second], 0)
    ids = by_place(city.grid, queries.x, queries.y)
    for part in chunks(bound[ids]):
        some = ids[part]
        columns, psi = np.empty(int(bound[some].sum()), np.int32), np.empty(int(bound[some].sum()), np.float32)
        counts = np.zeros(len(some), np.int64)
        room = empty_pieces(int(bound[some].max()) + _LANES)
        n = _label(some, city, options, room, columns, psi, counts)
        yield Rows(some, counts, columns[:n].copy(), psi[:n].copy())


def _prepare(queries: Views, database: Views) -> City:
    a, b = split(queries), split(database)
    second = np.full(len(queries.x), -1)
    second[a.camera[len(queries.x) :]] = np.arange(len(queries.x), len(a.camera))
    grid = build_grid(b.middle_x, b.middle_y, float(a.reach.max() + b.reach.max()) * (1 + 1e-12))
    return City(queries, a, second, database, b.take(grid.order), grid)


@njit(cache=True, nogil=True, error_model="numpy")
def _label(ids, city, options, room, columns, psi, counts):  # type: ignore[no-untyped-def]
    """Labels the queries `ids`; returns how many pairs it wrote."""
    ranges = np.empty(18, np.int64)
    at, area = np.empty(len(room.x), np.int64), np.empty(len(room.x))
    key, share = np.empty(len(room.x), np.int64), np.empty(len(room.x))
    written = 0
    for row in range(len(ids)):
        i, start, m = ids[row], written, 0
        for p in (i, city.second[i]):
            if p >= 0:
                n = _candidates(city, p, options.one_set, ranges, at)
                _areas(city.query_pieces.pieces, p, city.database_pieces.pieces, at, n, room, area)
                for k in range(n):
                    key[m] = (np.int64(city.database_pieces.camera[at[k]]) << 32) | m
                    share[m] = area[k]
                    m += area[k] > 0.0
        key[:m].sort()
        written = _write(city, i, key, m, share, options, columns, psi, written)
        counts[row] = written - start
    return written


@njit(cache=True, nogil=True, error_model="numpy")
def _candidates(city, p, one_set, ranges, at):  # type: ignore[no-untyped-def]
    """Database pieces whose enclosing circles meet that of query piece p."""
    a, b = city.query_pieces, city.database_pieces
    x, y, reach, i = a.middle_x[p], a.middle_y[p], a.reach[p], (a.camera[p] if one_set else -1)
    n = 0
    for r in range(0, nearby(city.grid, x, y, ranges), 2):
        for k in range(ranges[r], ranges[r + 1]):
            dx, dy, limit = b.middle_x[k] - x, b.middle_y[k] - y, b.reach[k] + reach
            at[n] = k
            n += (dx * dx + dy * dy < limit * limit) & (b.camera[k] > i)
    return n


@njit(**SIMD)
def _areas(a, p, b, at, n, room, out):  # type: ignore[no-untyped-def]
    """Areas that query piece p shares with the database pieces at the first n indices."""
    padded = n + (-n % _LANES)
    for k in range(n, padded):
        at[k] = at[n - 1]
    gather(b, at, padded, room)
    x, y, heading = a.x[p], a.y[p], a.heading[p]
    ax, ay, radius, half, cosine, sine = a.axis_x[p], a.axis_y[p], a.radius[p], a.half[p], a.cosine[p], a.sine[p]
    for k in range(padded):
        out[k] = convex_area(
            room.x[k] - x, room.y[k] - y, (heading - room.heading[k]) * RADIANS,
            ax, ay, radius, half, cosine, sine,
            room.axis_x[k], room.axis_y[k], room.radius[k], room.half[k], room.cosine[k], room.sine[k],
        )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _write(city, i, key, m, share, options, columns, psi, written):  # type: ignore[no-untyped-def]
    """Adds the shares of one camera's pieces and writes the pairs of query i, ascending."""
    area, heading = view_area(city.queries, i), city.queries.heading[i]
    k = 0
    while k < m:
        j, shared = key[k] >> 32, 0.0
        while k < m and key[k] >> 32 == j:
            shared += share[key[k] & 0xFFFFFFFF]
            k += 1
        value = similarity(shared, area, view_area(city.database, j), options.measure)
        turn = heading_difference(heading, city.database.heading[j])
        value *= facing_weight(turn) if options.facing else 1.0
        if value >= options.zero_below and turn <= options.max_angle_deg:
            columns[written], psi[written] = j, value
            written += 1
    return written


@njit(cache=True, nogil=True, error_model="numpy")
def facing_weight(turn_deg: float) -> float:
    """1 up to a right angle between the headings, then 1 + cos down to 0 for cameras that look at each other."""
    return min(1.0, 1.0 + np.cos(np.radians(turn_deg)))
