"""Field-of-view overlap of every pair of a city, sparse, without visiting pairs that cannot overlap.

A uniform grid proposes the pairs that can share anything.

Circles that meet are the candidates. Cells are as wide as the largest pair of circles reaches, so a query looks into
3×3 cells. The grid wraps around: its memory is bounded however far apart places lie, and the distance test rejects
what only meets through the wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.compiling import kernel
from covis.graph import SimilarityGraph
from covis.images import ImageSet
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

# Rules over whole sets, group by group where asked: labelled rows in any order become one compressed sparse graph


class LabelRows(NamedTuple):
    """Some rows: their ids, how many pairs each has, and the pairs of all of them, ascending within a row."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    columns: NDArray[np.int32]
    psi: NDArray[np.float32]


class SparseRows(NamedTuple):
    """Compressed sparse rows."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]


def assemble(rows: Iterable[LabelRows], n_rows: int, *, mirror: bool) -> SparseRows:
    """All rows in order; `mirror` adds (j, i) for each (i, j). Each part is freed as soon as it is copied."""
    parts = list(rows)
    indptr = np.zeros(n_rows + 1, np.int64)
    for part in parts:
        indptr[part.ids + 1] = part.counts
    np.cumsum(indptr, out=indptr)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    while parts:
        part = parts.pop()
        _place(part, indptr, indices, values)
    matrix = SparseRows(indptr, indices, values)
    return _mirrored(matrix) if mirror else matrix


@kernel()
def _place(part: LabelRows, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    at = 0
    for k in range(len(part.ids)):
        to, n = indptr[part.ids[k]], part.counts[k]
        for s in range(n):
            indices[to + s], values[to + s] = part.columns[at + s], part.psi[at + s]
        at += n


@kernel()
def _mirrored(upper: SparseRows) -> SparseRows:
    """The full symmetric matrix of an upper triangle; rows stay ascending because i ascends."""
    n = len(upper.indptr) - 1
    indptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        indptr[i + 1] += upper.indptr[i + 1] - upper.indptr[i]
    for j in upper.indices:
        indptr[j + 1] += 1
    for i in range(n):
        indptr[i + 1] += indptr[i]
    free = indptr[:-1].copy()
    indices, values = np.empty(indptr[n], np.int32), np.empty(indptr[n], np.float32)
    for i in range(n):
        for k in range(upper.indptr[i], upper.indptr[i + 1]):
            j = upper.indices[k]
            indices[free[j]], values[free[j]] = i, upper.values[k]
            free[j] += 1
    for i in range(n):
        for k in range(upper.indptr[i], upper.indptr[i + 1]):
            indices[free[i]], values[free[i]] = upper.indices[k], upper.values[k]
            free[i] += 1
    return SparseRows(indptr, indices, values)


Advance = Callable[[int], None] | None
"""Called with the number of queries labelled since the previous call."""
Members = NDArray[np.int32] | None
"""Ids of one group's images; None for all images."""


def build_graph(
    queries: ImageSet,
    database: ImageSet,
    label: Callable[[Members, Members], Iterator[LabelRows]],
    *,
    facts: Mapping[str, Any],
    mirror: bool,
    advance: Advance,
) -> SimilarityGraph:
    """The graph of all rows that `label` yields for each pair of groups; `mirror` if it yields only i < j."""

    def rows() -> Iterable[LabelRows]:
        for i, j in group_pairs(queries, database, bool(facts["within_group"])):
            for part in label(i, j):
                yield _renumbered(part, i, j)
                if advance is not None:
                    advance(len(part.ids))

    matrix = assemble(rows(), len(queries), mirror=mirror)
    graph = SimilarityGraph(*matrix, (len(queries), len(database)), facts)
    return graph.keep(graph.rows != graph.indices) if queries is database and not mirror else graph


def group_pairs(queries: ImageSet, database: ImageSet, within_group: bool) -> Iterator[tuple[Members, Members]]:
    """Ids on both sides that are to be compared: every pair, or group by group (by name)."""
    if not within_group:
        yield None, None
        return
    query_members, database_members = _members(queries), _members(database)
    for name in sorted(query_members.keys() & database_members.keys()):
        yield query_members[name], database_members[name]


def _members(images: ImageSet) -> dict[str, NDArray[np.int32]]:
    order = np.argsort(images.group, kind="stable").astype(np.int32)
    edges = np.searchsorted(images.group[order], np.arange(len(images.group_names) + 1))
    return {
        name: order[edges[code] : edges[code + 1]]
        for code, name in enumerate(images.group_names)
        if edges[code + 1] > edges[code]
    }


def _renumbered(part: LabelRows, i: Members, j: Members) -> LabelRows:
    if i is None or j is None:
        return part
    return LabelRows(i[part.ids].astype(np.int64), part.counts, j[part.columns], part.psi)


# Field-of-view overlap of every pair of a city


_CANDIDATES_A_CHUNK = 1 << 22


class Grid(NamedTuple):
    """Points sorted by cell: those of cell (i, j) are `order[start[c]:start[c + 1]]` with c = j·columns + i."""

    left: float
    bottom: float
    cell: float
    columns: int
    rows: int
    start: Ids
    order: Ids


def build_grid(x: Floats, y: Floats, cell: float) -> Grid:
    """A grid over the points (x, y) with cells of `cell` metres a side; at most about four cells per point."""
    left, bottom = float(x.min(initial=np.inf)), float(y.min(initial=np.inf))
    if not len(x):
        left = bottom = 0.0
    most = int(max(16, 2 * np.sqrt(len(x))))
    columns, rows = (
        int(np.clip((v.max(initial=low) - low) // cell + 3, 4, None)) for v, low in ((x, left), (y, bottom))
    )
    while columns * rows > most * most:
        columns, rows = (max(4, columns // 2), rows) if columns >= rows else (columns, max(4, rows // 2))
    code = cells(x, y, left, bottom, cell, columns, rows)
    order = np.argsort(code, kind="stable")
    start = np.zeros(columns * rows + 1, np.int64)
    np.cumsum(np.bincount(code, minlength=columns * rows), out=start[1:])
    return Grid(left, bottom, cell, columns, rows, start, order)


@kernel()
def cells(x: Floats, y: Floats, left: float, bottom: float, cell: float, columns: int, rows: int) -> Ids:
    """(N,) code of the cell of each point."""
    code = np.empty(len(x), np.int64)
    for k in range(len(x)):
        i = int(np.floor((x[k] - left) / cell)) % columns
        j = int(np.floor((y[k] - bottom) / cell)) % rows
        code[k] = j * columns + i
    return code


class Visits(NamedTuple):
    """Queries in the order in which they are labelled: those of one cell together, neighbouring cells near."""

    order: Ids
    cell: Ids
    """(N,) in that order."""
    bound: Ids
    """(N,) in that order: how many points the 3×3 cells around hold."""


def visit(grid: Grid, x: Floats, y: Floats) -> Visits:
    """The order for queries at (x, y)."""
    code = cells(x, y, grid.left, grid.bottom, grid.cell, grid.columns, grid.rows)
    order = np.argsort(code, kind="stable")
    return Visits(order, code[order], _bounds(grid, code[order]))


@kernel()
def _bounds(grid: Grid, codes: Ids) -> Ids:
    ranges = np.empty(18, np.int64)
    bound = np.zeros(len(codes), np.int64)
    for k in range(len(codes)):
        if k and codes[k] == codes[k - 1]:
            bound[k] = bound[k - 1]
            continue
        for r in range(0, nearby(grid, codes[k], ranges), 2):
            bound[k] += ranges[r + 1] - ranges[r]
    return bound


@kernel()
def nearby(grid: Grid, code: int, ranges: Ids) -> int:
    """Writes the ranges (start, end) of grid positions in the 3×3 cells around a cell; returns their number × 2."""
    j, i = divmod(code, grid.columns)
    n = 0
    for dj in range(-1, 2):
        row = ((j + dj) % grid.rows) * grid.columns
        if 0 < i < grid.columns - 1:
            ranges[n], ranges[n + 1] = grid.start[row + i - 1], grid.start[row + i + 2]
            n += 2
        else:
            for di in range(-1, 2):
                cell = row + (i + di) % grid.columns
                ranges[n], ranges[n + 1] = grid.start[cell], grid.start[cell + 1]
                n += 2
    return n


@kernel()
def list_nearby(grid: Grid, code: int, ranges: Ids, key: Ids) -> int:
    """Writes (id << 32 | grid position) of all points in the 3×3 cells, by ascending id; returns how many."""
    n = 0
    for r in range(0, nearby(grid, code, ranges), 2):
        for k in range(ranges[r], ranges[r + 1]):
            key[n] = (grid.order[k] << 32) | k
            n += 1
    key[:n].sort()
    return n


def chunks(bound: Ids) -> Iterator[slice]:
    """Runs of rows that have about `_CANDIDATES_A_CHUNK` candidates together."""
    number = np.cumsum(bound) // _CANDIDATES_A_CHUNK
    edges = (np.flatnonzero(np.diff(number)) + 1).tolist()
    for start, end in zip([0, *edges], [*edges, len(bound)], strict=True):
        if end > start:
            yield slice(start, end)


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
        n = _within(ids, codes, queries, database, grid, radius_m, max_angle_deg, one_set, key, columns, counts)
        yield LabelRows(ids, counts, columns[:n].copy(), np.ones(n, np.float32))


@kernel()
def _within(
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


class Room(NamedTuple):
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
    a, b = _side(queries, query_circles), _side(_take(database, grid.order), _take(database_circles, grid.order))
    visits = visit(grid, query_circles.x, query_circles.y)
    for part in chunks(visits.bound):
        ids, codes, bound = (array[part] for array in visits)
        columns, psi = np.empty(int(bound.sum()), np.int32), np.empty(int(bound.sum()), np.float32)
        counts = np.zeros(len(ids), np.int64)
        n = _label(ids, codes, a, b, grid, options, _room(int(bound.max())), columns, psi, counts)
        yield LabelRows(ids, counts, columns[:n].copy(), psi[:n].copy())


def _take(arrays: _T, order: Ids) -> _T:
    return type(arrays)(*(array[order] for array in arrays))


def _side(view: Views, circle: Circles) -> Side:
    n = len(view.x)
    wide = n if (view.fov > 180.0).any() else 0
    first, second = empty_pieces(n), empty_pieces(wide)
    fill_pieces(view, n, False, first)
    fill_pieces(view, wide, True, second)
    return Side(view, circle, first, second)


def _room(most: int) -> Room:
    n = most + _LANES
    key, at, camera, wide, at_wide = np.empty((5, n), np.int64)
    area, more = np.empty((2, n))
    return Room(np.empty(18, np.int64), key, at, camera, wide, at_wide, area, more, empty_pieces(n), empty_pieces(n))


@kernel()
def _label(
    ids: Ids,
    codes: Ids,
    a: Side,
    b: Side,
    grid: Grid,
    options: LabelOptions,
    room: Room,
    columns: NDArray[np.int32],
    psi: NDArray[np.float32],
    counts: Ids,
) -> int:
    """Labels the queries `ids`, which lie in the cells `codes`; returns how many pairs it wrote."""
    written, near = 0, 0
    for row in range(len(ids)):
        if row == 0 or codes[row] != codes[row - 1]:
            near = list_nearby(grid, codes[row], room.ranges, room.key)
        i, start = ids[row], written
        n = _candidates(a.circle, i, b.circle, near, options.one_set, room)
        if n == 0:
            continue
        _shared(a, i, b, n, room)
        written = _write(a.views, i, b.views, n, room, options, columns, psi, written)
        counts[row] = written - start
    return written


@kernel()
def _candidates(a: Circles, i: int, b: Circles, near: int, one_set: bool, room: Room) -> int:
    """Lists the cameras of the neighbourhood whose enclosing circles meet that of query i."""
    x, y, reach, least = a.x[i], a.y[i], a.reach[i], (i if one_set else -1)
    n = 0
    for t in range(near):
        k, camera = room.key[t] & 0xFFFFFFFF, room.key[t] >> 32
        dx, dy, limit = b.x[k] - x, b.y[k] - y, b.reach[k] + reach
        room.at[n], room.camera[n] = k, camera
        n += (dx * dx + dy * dy < limit * limit) & (camera > least)
    return n


@kernel(inline="always")
def _shared(a: Side, i: int, b: Side, n: int, room: Room) -> None:
    """Areas that query i shares with its n candidates, summed over the pieces of wide views, into room.area."""
    _areas(a.first, i, b.first, room.at, n, room, room.area)
    twice = a.views.fov[i] > 180.0
    if twice:
        _areas(a.second, i, b.first, room.at, n, room, room.more)
        for k in range(n):
            room.area[k] += room.more[k]
    if len(b.second.x):
        m = 0
        for k in range(n):
            room.wide[m] = k
            m += b.views.fov[room.at[k]] > 180.0
        for k in range(m):
            room.at_wide[k] = room.at[room.wide[k]]
        for piece in range(1 + twice):
            _areas(a.second if piece else a.first, i, b.second, room.at_wide, m, room, room.more)
            for k in range(m):
                room.area[room.wide[k]] += room.more[k]


@kernel(inline="always")
def _areas(a: Pieces, p: int, b: Pieces, at: Ids, n: int, room: Room, out: Floats) -> None:
    """Areas that query piece p shares with the database pieces at the first n positions."""
    padded = n + (-n % _LANES)
    for k in range(n, padded):
        at[k] = at[n - 1]
    repeat_piece(a, p, padded, room.query)
    gather_pieces(b, at, padded, room.pieces)
    aligned_areas(room.query, room.pieces, padded, out)


@kernel()
def _write(
    a: Views,
    i: int,
    b: Views,
    n: int,
    room: Room,
    options: LabelOptions,
    columns: NDArray[np.int32],
    psi: NDArray[np.float32],
    written: int,
) -> int:
    """Writes the pairs of query i, ascending."""
    area, heading = view_area(a, i), a.heading[i]
    for k in range(n):
        if room.area[k] > 0.0:
            j = room.at[k]
            value = similarity(room.area[k], area, view_area(b, j), options.measure)
            turn = heading_difference(heading, b.heading[j])
            value *= facing_weight(turn) if options.facing else 1.0
            if value >= options.zero_below and turn <= options.max_angle_deg:
                columns[written], psi[written] = room.camera[k], value
                written += 1
    return written


@kernel()
def facing_weight(turn_deg: float) -> float:
    """1 up to a right angle between the headings, then 1 + cos down to 0 for cameras that look at each other."""
    return min(1.0, 1.0 + math.cos(turn_deg * RADIANS))
