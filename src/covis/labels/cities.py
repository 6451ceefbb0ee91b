"""Field-of-view overlap of every pair of a city, sparse, without visiting pairs that cannot overlap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from covis.labels.neighbours import build_grid, by_place, chunks, count_nearby, nearby
from covis.labels.rows import Rows
from covis.labels.sectors import convex_area
from covis.labels.views import Pieces, Views

_SIMD = {"contract", "nsz", "nnan"}


class Options(NamedTuple):
    """How shared areas become ψ; plain numbers for the compiled loop."""

    measure: int
    """Index into `fov.MEASURES`."""
    max_angle_deg: float
    """Pairs whose known headings differ by more are left out; 360 = no gate."""
    facing: bool
    """Weigh pairs that look at each other down."""
    zero_below: float
    """Smaller ψ counts as none."""
    one_set: bool
    """Only pairs (i, j) with j > i."""


def label_rows(queries: Views, database: Views, options: Options) -> Iterator[Rows]:
    """ψ of every overlapping pair, in chunks of queries that lie near each other."""
    a, b = queries.pieces, database.pieces
    if not len(a.x) or not len(b.x):
        return
    grid = build_grid(b.middle_x, b.middle_y, float(a.reach.max() + b.reach.max()) * (1 + 1e-12))
    b = Pieces(*(array[grid.order] for array in b))
    first = np.searchsorted(a.camera, np.arange(len(queries.x) + 1))
    bound = np.add.reduceat(count_nearby(grid, a.middle_x, a.middle_y), first[:-1])
    ids = by_place(grid, queries.x, queries.y)
    for part in chunks(bound[ids]):
        some = ids[part]
        columns = np.empty(int(bound[some].sum()), np.int32)
        psi = np.empty(len(columns), np.float32)
        counts = np.zeros(len(some), np.int64)
        widest = int(bound[some].max())
        n = _label(some, a, first, queries, b, database, grid, options, widest, columns, psi, counts)
        yield Rows(some, counts, columns[:n].copy(), psi[:n].copy())


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIMD)
def _label(ids, a, first, queries, b, database, grid, options, widest, columns, psi, counts):  # type: ignore[no-untyped-def]
    """Labels the queries `ids`; returns how many pairs it wrote."""
    ranges = np.empty(18, np.int64)
    candidate = np.empty(widest, np.int64)
    area = np.empty(widest)
    key = np.empty(widest, np.int64)
    written = 0
    for row in range(len(ids)):
        i = ids[row]
        n = 0
        for p in range(first[i], first[i + 1]):
            before = n
            n = _candidates(a, p, i, b, grid, options.one_set, ranges, candidate, n)
            _areas(a, p, b, candidate, before, n, area)
        m = 0
        for k in range(n):
            if area[k] > 0.0:
                key[m] = (np.int64(b.camera[candidate[k]]) << 32) | k
                m += 1
        key[:m].sort()
        start = written
        k = 0
        while k < m:
            j = key[k] >> 32
            shared = 0.0
            while k < m and key[k] >> 32 == j:
                shared += area[key[k] & 0xFFFFFFFF]
                k += 1
            value = _psi(shared, queries.area[i], database.area[j], queries.heading[i], database.heading[j], options)
            if value >= options.zero_below:
                columns[written], psi[written] = j, value
                written += 1
        counts[row] = written - start
    return written


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIMD)
def _candidates(a, p, i, b, grid, one_set, ranges, candidate, n):  # type: ignore[no-untyped-def]
    """Sorted positions whose enclosing circles meet that of piece p."""
    x, y, reach = a.middle_x[p], a.middle_y[p], a.reach[p]
    for r in range(0, nearby(grid, x, y, ranges), 2):
        for k in range(ranges[r], ranges[r + 1]):
            dx, dy, limit = b.middle_x[k] - x, b.middle_y[k] - y, b.reach[k] + reach
            candidate[n] = k
            n += (dx * dx + dy * dy < limit * limit) & ((not one_set) | (b.camera[k] > i))
    return n


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIMD)
def _areas(a, p, b, candidate, start, end, area):  # type: ignore[no-untyped-def]
    """Areas that piece p shares with its candidates."""
    x, y, angle = a.x[p], a.y[p], a.angle[p]
    axis_x, axis_y, radius, half, cosine, sine = (
        a.axis_x[p], a.axis_y[p], a.radius[p], a.half[p], a.cosine[p], a.sine[p],
    )  # fmt: skip
    for n in range(start, end):
        k = candidate[n]
        area[n] = convex_area(
            b.x[k] - x, b.y[k] - y, b.angle[k] - angle,
            axis_x, axis_y, radius, half, cosine, sine,
            b.axis_x[k], b.axis_y[k], b.radius[k], b.half[k], b.cosine[k], b.sine[k],
        )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _psi(shared, area_a, area_b, heading_a, heading_b, options):  # type: ignore[no-untyped-def]
    whole = min(area_a, area_b)
    if options.measure == 1:
        whole = area_a
    elif options.measure == 2:
        whole = area_a + area_b - shared
    value = min(1.0, shared / whole)
    if heading_a >= 0.0 and heading_b >= 0.0:
        turn = abs(heading_a - heading_b)
        turn = min(turn, 360.0 - turn)
        if turn > options.max_angle_deg:
            return 0.0
        if options.facing:
            value *= facing_weight(turn)
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def facing_weight(turn_deg: float) -> float:
    """1 up to a right angle between the headings, then 1 + cos down to 0 for cameras that look at each other."""
    return min(1.0, 1.0 + np.cos(np.radians(turn_deg)))
