"""Field-of-view overlap of every pair of a city, sparse, without visiting pairs that cannot overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.compiling import kernel
from covis.labels.assembly import LabelRows
from covis.labels.fov import (
    RADIANS,
    Circles,
    Pieces,
    Views,
    aligned_areas,
    empty_pieces,
    enclosing_circles,
    fill_pieces,
    gather_pieces,
    repeat_piece,
    similarity,
    view_area,
)
from covis.labels.grid import Grid, build_grid, chunks, list_nearby, visit


class Places(NamedTuple):
    """Positions (N,) in metres and headings in degrees, −1 where unknown."""

    x: Floats
    y: Floats
    heading: Floats


def radius_rows(
    queries: Places, database: Places, radius_m: float, max_angle_deg: float, one_set: bool
) -> Iterator[LabelRows]:
    """Pairs within `radius_m` whose known headings differ by at most `max_angle_deg`; ψ = 1."""
    if not len(queries.x) or not len(database.x):
        return
    grid = build_grid(database.x, database.y, radius_m * (1 + 1e-12))
    visits = visit(grid, queries.x, queries.y)
    for part in chunks(visits.bound):
        ids, codes, bound = (array[part] for array in visits)
        columns, counts = np.empty(int(bound.sum()), np.int32), np.zeros(len(ids), np.int64)
        key = np.empty(int(bound.max()), np.int64)
        n = _pairs_within(ids, codes, queries, database, grid, radius_m, max_angle_deg, one_set, key, columns, counts)
        yield LabelRows(ids, counts, columns[:n].copy(), np.ones(n, np.float32))


@kernel()
def _pairs_within(
    ids: Ids,
    codes: Ids,
    a: Places,
    b: Places,
    grid: Grid,
    radius_m: float,
    max_angle_deg: float,
    one_set: bool,
    key: Ids,
    columns: NDArray[np.int32],
    counts: Ids,
) -> int:
    """Writes the columns of the pairs of each query; returns how many."""
    ranges = np.empty(18, np.int64)
    written, near = 0, 0
    for row in range(len(ids)):
        if row == 0 or codes[row] != codes[row - 1]:
            near = list_nearby(grid, codes[row], ranges, key)
        i, start = ids[row], written
        for k in range(near):
            j = key[k] >> 32
            if one_set and j <= i:
                continue
            if np.hypot(b.x[j] - a.x[i], b.y[j] - a.y[i]) > radius_m:
                continue
            if heading_difference(a.heading[i], b.heading[j]) <= max_angle_deg:
                columns[written] = j
                written += 1
        counts[row] = written - start
    return written


@kernel()
def heading_difference(a: float, b: float) -> float:
    """Degrees in [0, 180] between two headings; 0 where one is unknown (−1)."""
    if a < 0.0 or b < 0.0:
        return 0.0
    turn = abs(a - b)
    return min(turn, 360.0 - turn)


_T = TypeVar("_T", Views, Circles)
_LANES = 8
"""Candidate lists are padded to whole SIMD registers."""


class LabelOptions(NamedTuple):
    """How shared areas become ψ; plain numbers for the compiled loop."""

    measure: int
    """Index into `fov.MEASURES`."""
    max_angle_deg: float
    """Pairs whose known headings differ by more are left out."""
    facing: bool
    """Give less weight to pairs that look at each other."""
    zero_below: float
    """Smaller ψ counts as none."""
    one_set: bool
    """Only pairs (i, j) with j > i."""


class Side(NamedTuple):
    """Cameras of one side, ready for the compiled loop."""

    views: Views
    circle: Circles
    first: Pieces
    second: Pieces
    """Second pieces of views wider than 180°, aligned with the first; empty where there is none."""


class Workspace(NamedTuple):
    """Working memory for one query: as many places as a 3×3 neighbourhood may hold."""

    ranges: Ids
    key: Ids
    """Neighbourhood, ascending: camera << 32 | position."""
    at: Ids
    camera: Ids
    wide: Ids
    at_wide: Ids
    area: Floats
    more: Floats
    query: Pieces
    """One piece, repeated."""
    pieces: Pieces


def label_rows(queries: Views, database: Views, options: LabelOptions) -> Iterator[LabelRows]:
    """ψ of every overlapping pair, in chunks of queries that lie near each other."""
    if not len(queries.x) or not len(database.x):
        return
    query_circles, database_circles = enclosing_circles(queries), enclosing_circles(database)
    grid = build_grid(
        database_circles.x,
        database_circles.y,
        float(query_circles.reach.max() + database_circles.reach.max()) * (1 + 1e-12),
    )
    a, b = (
        _prepare_side(queries, query_circles),
        _prepare_side(_take(database, grid.order), _take(database_circles, grid.order)),
    )
    visits = visit(grid, query_circles.x, query_circles.y)
    for part in chunks(visits.bound):
        ids, codes, bound = (array[part] for array in visits)
        columns, psi = np.empty(int(bound.sum()), np.int32), np.empty(int(bound.sum()), np.float32)
        counts = np.zeros(len(ids), np.int64)
        n = _label_queries(ids, codes, a, b, grid, options, _workspace(int(bound.max())), columns, psi, counts)
        yield LabelRows(ids, counts, columns[:n].copy(), psi[:n].copy())


def _take(arrays: _T, order: Ids) -> _T:
    return type(arrays)(*(array[order] for array in arrays))


def _prepare_side(view: Views, circle: Circles) -> Side:
    n = len(view.x)
    wide = n if (view.fov > 180.0).any() else 0
    first, second = empty_pieces(n), empty_pieces(wide)
    fill_pieces(view, n, False, first)
    fill_pieces(view, wide, True, second)
    return Side(view, circle, first, second)


def _workspace(most: int) -> Workspace:
    n = most + _LANES
    key, at, camera, wide, at_wide = np.empty((5, n), np.int64)
    area, more = np.empty((2, n))
    return Workspace(
        np.empty(18, np.int64), key, at, camera, wide, at_wide, area, more, empty_pieces(n), empty_pieces(n)
    )


@kernel()
def _label_queries(
    ids: Ids,
    codes: Ids,
    a: Side,
    b: Side,
    grid: Grid,
    options: LabelOptions,
    work: Workspace,
    columns: NDArray[np.int32],
    psi: NDArray[np.float32],
    counts: Ids,
) -> int:
    """Labels the queries `ids`, which lie in the cells `codes`; returns how many pairs it wrote."""
    written, near = 0, 0
    for row in range(len(ids)):
        if row == 0 or codes[row] != codes[row - 1]:
            near = list_nearby(grid, codes[row], work.ranges, work.key)
        i, start = ids[row], written
        n = _candidates(a.circle, i, b.circle, near, options.one_set, work)
        if n == 0:
            continue
        _shared_areas(a, i, b, n, work)
        written = _write_pairs(a.views, i, b.views, n, work, options, columns, psi, written)
        counts[row] = written - start
    return written


@kernel()
def _candidates(a: Circles, i: int, b: Circles, near: int, one_set: bool, work: Workspace) -> int:
    """Lists the cameras of the neighbourhood whose enclosing circles meet that of query i."""
    x, y, reach, least = a.x[i], a.y[i], a.reach[i], (i if one_set else -1)
    n = 0
    for t in range(near):
        k, camera = work.key[t] & 0xFFFFFFFF, work.key[t] >> 32
        dx, dy, limit = b.x[k] - x, b.y[k] - y, b.reach[k] + reach
        work.at[n], work.camera[n] = k, camera
        n += (dx * dx + dy * dy < limit * limit) & (camera > least)
    return n


@kernel(inline="always")
def _shared_areas(a: Side, i: int, b: Side, n: int, work: Workspace) -> None:
    """Areas that query i shares with its n candidates, summed over the pieces of wide views, into work.area."""
    _areas(a.first, i, b.first, work.at, n, work, work.area)
    twice = a.views.fov[i] > 180.0
    if twice:
        _areas(a.second, i, b.first, work.at, n, work, work.more)
        for k in range(n):
            work.area[k] += work.more[k]
    if len(b.second.x):
        m = 0
        for k in range(n):
            work.wide[m] = k
            m += b.views.fov[work.at[k]] > 180.0
        for k in range(m):
            work.at_wide[k] = work.at[work.wide[k]]
        for piece in range(1 + twice):
            _areas(a.second if piece else a.first, i, b.second, work.at_wide, m, work, work.more)
            for k in range(m):
                work.area[work.wide[k]] += work.more[k]


@kernel(inline="always")
def _areas(a: Pieces, p: int, b: Pieces, at: Ids, n: int, work: Workspace, out: Floats) -> None:
    """Areas that query piece p shares with the database pieces at the first n positions."""
    padded = n + (-n % _LANES)
    for k in range(n, padded):
        at[k] = at[n - 1]
    repeat_piece(a, p, padded, work.query)
    gather_pieces(b, at, padded, work.pieces)
    aligned_areas(work.query, work.pieces, padded, out)


@kernel()
def _write_pairs(
    a: Views,
    i: int,
    b: Views,
    n: int,
    work: Workspace,
    options: LabelOptions,
    columns: NDArray[np.int32],
    psi: NDArray[np.float32],
    written: int,
) -> int:
    """Writes the pairs of query i, ascending."""
    area, heading = view_area(a, i), a.heading[i]
    for k in range(n):
        if work.area[k] > 0.0:
            j = work.at[k]
            value = similarity(work.area[k], area, view_area(b, j), options.measure)
            turn = heading_difference(heading, b.heading[j])
            value *= facing_weight(turn) if options.facing else 1.0
            if value >= options.zero_below and turn <= options.max_angle_deg:
                columns[written], psi[written] = work.camera[k], value
                written += 1
    return written


@kernel()
def facing_weight(turn_deg: float) -> float:
    """1 up to a right angle between the headings, then 1 + cos down to 0 for cameras that look at each other."""
    return min(1.0, 1.0 + math.cos(turn_deg * RADIANS))
