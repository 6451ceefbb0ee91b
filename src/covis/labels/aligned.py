"""The compiled loop over aligned pairs of fields of view."""

from __future__ import annotations

import numpy as np

from covis.compiling import kernel
from covis.labels.sectors import PI, SIMD, convex_area
from covis.labels.views import (
    RADIANS,
    Cameras,
    Floats,
    Pieces,
    Views,
    empty_pieces,
    empty_views,
    fill_pieces,
    gather,
    load,
    view_area,
)

FourPieces = tuple[Pieces, Pieces, Pieces, Pieces]
BLOCK = 512


def similarities(a: Cameras, b: Cameras, measure: int) -> Floats:
    """ψ (N,) of aligned cameras by `fov.MEASURES[measure]`; NaN where a position is unknown."""
    psi = np.empty(len(a.xy))
    pieces = empty_pieces(BLOCK), empty_pieces(BLOCK), empty_pieces(BLOCK), empty_pieces(BLOCK)
    _similarities(a, b, measure, (empty_views(BLOCK), empty_views(BLOCK)), pieces, psi)
    return psi


@kernel(forceinline=True)
def similarity(shared: float, area_a: float, area_b: float, measure: int) -> float:
    """A shared area as ψ by `fov.MEASURES[measure]`."""
    whole = min(area_a, area_b) if measure == 0 else area_a if measure == 1 else area_a + area_b - shared
    return min(1.0, shared / whole)


@kernel()
def _similarities(
    given_a: Cameras, given_b: Cameras, measure: int, rooms: tuple[Views, Views], pieces: FourPieces, psi: Floats
) -> None:
    """ψ of aligned cameras, block by block; views wider than 180° are two pieces, whose shares are added."""
    a, b = rooms
    shared = np.empty(BLOCK)
    for start in range(0, len(psi), BLOCK):
        n = min(BLOCK, len(psi) - start)
        load(given_a, start, n, a)
        load(given_b, start, n, b)
        wide_a, wide_b = False, False
        for k in range(n):
            shared[k] = 0.0
            wide_a |= a.fov[k] > 180.0
            wide_b |= b.fov[k] > 180.0
        for second_a in range(1 + wide_a):
            for second_b in range(1 + wide_b):
                _add_shares(a, b, n, second_a == 1, second_b == 1, pieces, shared)
        _ratios(shared, a, b, n, measure, psi[start : start + n])


@kernel()
def _ratios(shared: Floats, a: Views, b: Views, n: int, measure: int, psi: Floats) -> None:
    """Shared areas as ψ; NaN where a position is unknown."""
    for k in range(n):
        psi[k] = similarity(shared[k], view_area(a, k), view_area(b, k), measure)
    for k in range(n):
        known = (a.x[k] == a.x[k]) & (a.y[k] == a.y[k]) & (b.x[k] == b.x[k]) & (b.y[k] == b.y[k])
        psi[k] = psi[k] if known else np.nan


@kernel()
def _add_shares(a: Views, b: Views, n: int, second_a: bool, second_b: bool, pieces: FourPieces, shared: Floats) -> None:
    """Adds the areas that the first (or second) pieces of aligned views share."""
    first_a, first_b, some_a, some_b = pieces
    fill_pieces(a, n, second_a, first_a)
    fill_pieces(b, n, second_b, first_b)
    gap, at, area = np.empty(BLOCK), np.empty(BLOCK, np.int64), np.empty(BLOCK)
    _gaps(first_a, first_b, n, gap)
    least_a, least_b = (180.0 if second_a else 0.0), (180.0 if second_b else 0.0)
    m = 0
    for k in range(n):
        at[m] = k
        m += (gap[k] < 0.0) & (a.fov[k] > least_a) & (b.fov[k] > least_b)
    if m == n:
        aligned_areas(first_a, first_b, n, area)
    else:
        gather(first_a, at, m, some_a)
        gather(first_b, at, m, some_b)
        aligned_areas(some_a, some_b, m, area)
    for k in range(m):
        shared[at[k]] += area[k]


@kernel(**SIMD)
def _gaps(a: Pieces, b: Pieces, n: int, out: Floats) -> None:
    """Below 0 where circles around both pieces meet: radius r/√2 up to 90°, r beyond."""
    for k in range(n):
        reach_a = a.radius[k] * (0.7071067811865477 if a.half[k] <= 0.25 * PI else 1.0)
        reach_b = b.radius[k] * (0.7071067811865477 if b.half[k] <= 0.25 * PI else 1.0)
        ahead_a = reach_a if a.half[k] <= 0.25 * PI else 0.0
        ahead_b = reach_b if b.half[k] <= 0.25 * PI else 0.0
        dx = b.x[k] - a.x[k] + ahead_b * b.axis_x[k] - ahead_a * a.axis_x[k]
        dy = b.y[k] - a.y[k] + ahead_b * b.axis_y[k] - ahead_a * a.axis_y[k]
        out[k] = dx * dx + dy * dy - (reach_a + reach_b) * (reach_a + reach_b)


@kernel(**SIMD)
def aligned_areas(a: Pieces, b: Pieces, n: int, out: Floats) -> None:
    """Areas that n aligned convex sectors share."""
    for k in range(n):
        out[k] = convex_area(
            b.x[k] - a.x[k], b.y[k] - a.y[k], (a.heading[k] - b.heading[k]) * RADIANS,
            a.axis_x[k], a.axis_y[k], a.radius[k], a.half[k], a.cosine[k], a.sine[k],
            b.axis_x[k], b.axis_y[k], b.radius[k], b.half[k], b.cosine[k], b.sine[k],
        )  # fmt: skip
