"""Overlap of aligned pairs of fields of view: the two-dimensional measure behind graded labels."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats, Ids
from covis.core.compiling import kernel
from covis.core.errors import InputError
from covis.core.settings import one_of
from covis.labels.sectors import INLINE, SIMD, convex_area, sine_cosine

RADIANS = math.pi / 180.0


class Views(NamedTuple):
    """Fields of view of N cameras, (N,) each."""

    x: Floats
    y: Floats
    heading: Floats
    """Degrees clockwise from north in [0, 360); −1 where unknown."""
    radius: Floats
    fov: Floats
    """Opening in degrees; 360 where the heading is unknown."""


class Pieces(NamedTuple):
    """Convex sectors, (M,) each: one per camera up to 180°, two halves beyond."""

    x: Floats
    y: Floats
    heading: Floats
    """Degrees clockwise from north, in [−90, 450)."""
    axis_x: Floats
    axis_y: Floats
    radius: Floats
    half: Floats
    """Half opening, radians in (0, π/2]."""
    cosine: Floats
    sine: Floats


class Cameras(NamedTuple):
    """Cameras as the user gave them, checked for shape and range but not changed."""

    xy: Floats
    """(N, 2) metres; NaN = unknown."""
    heading: Floats
    """(N,) any degrees clockwise from north; NaN = unknown."""
    radius: Floats
    fov: Floats
    """Both (1,) or both (N,)."""


def cameras(xy: ArrayLike, heading: ArrayLike, radius_m: ArrayLike, fov_deg: ArrayLike) -> Cameras:
    """Checks the fields of view of N cameras; radius and opening are one number or (N,)."""
    xy, heading = np.ascontiguousarray(xy, np.float64), np.ascontiguousarray(heading, np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2 or heading.shape != (len(xy),):
        raise InputError(f"positions {xy.shape} and headings {heading.shape}; expected (N, 2) and (N,)")
    if np.isinf(xy).any() or np.isinf(heading).any():
        raise InputError("a position or heading is infinite; expected metres and degrees, or NaN where unknown")
    radius = _per_camera(radius_m, len(xy), "radius_m", np.inf, "metres above 0")
    fov = _per_camera(fov_deg, len(xy), "fov_deg", 360.0, "degrees above 0, up to 360")
    if len(radius) != len(fov):
        radius, fov = np.broadcast_arrays(radius, fov)
    return Cameras(xy, heading, np.ascontiguousarray(radius), np.ascontiguousarray(fov))


def _per_camera(value: ArrayLike, n: int, name: str, most: float, expected: str) -> Floats:
    array = np.ascontiguousarray(value, np.float64)
    if array.shape not in ((), (1,), (n,)):
        raise InputError(f"{name} has shape {array.shape}; expected one number or ({n},)")
    wrong = ~((array > 0) & (array <= most) & (array < np.inf))
    if wrong.any():
        raise InputError(f"{name} is {array[wrong][0]}; expected {expected}")
    return np.atleast_1d(array)


def views(given: Cameras) -> Views:
    """Fields of view of all cameras."""
    out = empty_views(len(given.xy))
    load_view(given, 0, len(given.xy), out)
    return out


@kernel()
def load_view(given: Cameras, start: int, n: int, out: Views) -> None:
    """Writes the views of cameras start … start + n to the front of `out`."""
    for k in range(n):
        out.x[k] = given.xy[start + k, 0]
    for k in range(n):
        out.y[k] = given.xy[start + k, 1]
    step = 0 if len(given.radius) == 1 else 1
    for k in range(n):
        out.radius[k] = given.radius[step * (start + k)]
    for k in range(n):
        out.fov[k] = given.fov[step * (start + k)]
    for k in range(n):
        heading = given.heading[start + k]
        turned = heading - 360.0 * np.floor(heading / 360.0)
        out.heading[k] = turned if heading == heading else -1.0
    for k in range(n):
        out.fov[k] = 360.0 if out.heading[k] < 0.0 else out.fov[k]


def empty_views(n: int) -> Views:
    """Space for n views."""
    return Views(*np.empty((len(Views._fields), n)))


def empty_pieces(n: int) -> Pieces:
    """Space for n pieces."""
    return Pieces(*np.empty((len(Pieces._fields), n)))


@kernel(**INLINE)
def piece(heading: float, fov: float, second: bool) -> tuple[float, float]:
    """Axis and half opening, degrees, of a view's only, first or second convex piece."""
    wide = fov > 180.0
    quarter = 0.25 * fov
    offset = (quarter if second else -quarter) if wide else 0.0
    return max(heading, 0.0) + offset, quarter if wide else 0.5 * fov


@kernel(**SIMD)
def fill_pieces(view: Views, n: int, second: bool, out: Pieces) -> None:
    """Writes the first (or, of wide views, the second) convex pieces of n views.

    Several loops with few outputs each: the compiler gives up on SIMD where too many arrays might overlap. No slices:
    assigning to one makes numba compile its error message, which takes longer than all the rest.
    """
    for k in range(n):
        out.heading[k], out.half[k] = piece(view.heading[k], view.fov[k], second)
    for k in range(n):
        out.axis_x[k], out.axis_y[k] = sine_cosine(out.heading[k])
    for k in range(n):
        out.sine[k], out.cosine[k] = sine_cosine(out.half[k])
    for k in range(n):
        out.half[k] *= RADIANS
    for k in range(n):
        out.x[k], out.y[k] = view.x[k], view.y[k]
    for k in range(n):
        out.radius[k] = view.radius[k]


@kernel()
def gather_pieces(pieces: Pieces, at: Ids, n: int, out: Pieces) -> None:
    """Copies the pieces at the first n indices together: SIMD loops need neighbours in memory."""
    for k in range(n):
        i = at[k]
        out.x[k], out.y[k], out.heading[k] = pieces.x[i], pieces.y[i], pieces.heading[i]
        out.axis_x[k], out.axis_y[k], out.radius[k] = pieces.axis_x[i], pieces.axis_y[i], pieces.radius[i]
        out.half[k], out.cosine[k], out.sine[k] = pieces.half[i], pieces.cosine[i], pieces.sine[i]


@kernel(**SIMD)
def repeat_piece(pieces: Pieces, i: int, n: int, out: Pieces) -> None:
    """Writes piece i n times; several loops for the reason given at `fill_pieces`."""
    x, y, heading, axis_x, axis_y = pieces.x[i], pieces.y[i], pieces.heading[i], pieces.axis_x[i], pieces.axis_y[i]
    radius, half, cosine, sine = pieces.radius[i], pieces.half[i], pieces.cosine[i], pieces.sine[i]
    for k in range(n):
        out.x[k], out.y[k], out.heading[k] = x, y, heading
    for k in range(n):
        out.axis_x[k], out.axis_y[k], out.radius[k] = axis_x, axis_y, radius
    for k in range(n):
        out.half[k], out.cosine[k], out.sine[k] = half, cosine, sine


class Circles(NamedTuple):
    """Circles that enclose fields of view, (N,) each, metres."""

    x: Floats
    y: Floats
    reach: Floats


def enclosing_circles(view: Views) -> Circles:
    """The smallest circle around each field of view: half the area of the camera's own circle, at 90°."""
    half = np.radians(0.5 * view.fov)
    cosine, sine = np.cos(half), np.sin(half)
    reach = np.where(view.fov <= 90.0, 0.5 / np.maximum(cosine, 0.5), np.where(view.fov <= 180.0, sine, 1.0))
    ahead = np.where(view.fov <= 90.0, reach, np.where(view.fov <= 180.0, cosine, 0.0)) * view.radius
    heading = np.radians(view.heading)
    return Circles(view.x + ahead * np.sin(heading), view.y + ahead * np.cos(heading), reach * view.radius)


@kernel(forceinline=True)
def view_area(view: Views, i: int) -> float:
    """Area of camera i's field of view, m²."""
    area: float = 0.5 * view.radius[i] * view.radius[i] * view.fov[i] * RADIANS
    return area


class PairBlock(NamedTuple):
    """Working memory for a block of aligned pairs."""

    a: Views
    b: Views
    piece_a: Pieces
    piece_b: Pieces
    area: Floats
    shared: Floats


_BLOCK = 2056
"""Pairs per block: enough to hide a call's cost; no power of two, or rows would all fall on the same cache lines."""


def similarities(a: Cameras, b: Cameras, measure: int) -> Floats:
    """ψ (N,) of aligned cameras by `fov.MEASURES[measure]`; NaN where a position is unknown."""
    psi = np.empty(len(a.xy))
    n = min(len(psi), _BLOCK)
    work = PairBlock(empty_views(n), empty_views(n), empty_pieces(n), empty_pieces(n), *np.empty((2, n)))
    _similarities(a, b, measure, work, psi)
    return psi


@kernel(forceinline=True)
def similarity(shared: float, area_a: float, area_b: float, measure: int) -> float:
    """A shared area as ψ by `fov.MEASURES[measure]`."""
    whole = min(area_a, area_b) if measure == 0 else area_a + area_b - shared
    return min(1.0, shared / whole)


@kernel()
def _similarities(given_a: Cameras, given_b: Cameras, measure: int, work: PairBlock, psi: Floats) -> None:
    """ψ of aligned cameras, block by block; views wider than 180° are two pieces, whose shares are added."""
    a, b, shared = work.a, work.b, work.shared
    for start in range(0, len(psi), _BLOCK):
        n = min(_BLOCK, len(psi) - start)
        load_view(given_a, start, n, a)
        load_view(given_b, start, n, b)
        for k in range(n):
            shared[k] = 0.0
        for i in range(_most_pieces(a, n)):
            fill_pieces(a, n, i == 1, work.piece_a)
            for j in range(_most_pieces(b, n)):
                fill_pieces(b, n, j == 1, work.piece_b)
                aligned_areas(work.piece_a, work.piece_b, n, work.area)
                for k in range(n):
                    both = (a.fov[k] > 180.0 * i) & (b.fov[k] > 180.0 * j)
                    shared[k] += work.area[k] if both else 0.0
        for k in range(n):
            known = (a.x[k] == a.x[k]) & (a.y[k] == a.y[k]) & (b.x[k] == b.x[k]) & (b.y[k] == b.y[k])
            psi[start + k] = similarity(shared[k], view_area(a, k), view_area(b, k), measure) if known else np.nan


@kernel()
def _most_pieces(view: Views, n: int) -> int:
    """How many convex pieces the widest of the first n views has."""
    wide = 0
    for k in range(n):
        wide += view.fov[k] > 180.0
    return 2 if wide else 1


@kernel(**SIMD)
def aligned_areas(a: Pieces, b: Pieces, n: int, out: Floats) -> None:
    """Areas that n aligned convex sectors share."""
    for k in range(n):
        out[k] = convex_area(
            b.x[k] - a.x[k], b.y[k] - a.y[k], (a.heading[k] - b.heading[k]) * RADIANS,
            a.axis_x[k], a.axis_y[k], a.radius[k], a.half[k], a.cosine[k], a.sine[k],
            b.axis_x[k], b.axis_y[k], b.radius[k], b.half[k], b.cosine[k], b.sine[k],
        )  # fmt: skip


Measure = Literal["overlap", "iou"]
MEASURES: tuple[str, ...] = get_args(Measure)
"""Shared area ÷ the smaller field of view, ÷ the union."""


def fov_similarity(
    xy_a: ArrayLike,
    heading_a: ArrayLike,
    xy_b: ArrayLike,
    heading_b: ArrayLike,
    *,
    radius_m: ArrayLike | tuple[ArrayLike, ArrayLike] = 50.0,
    fov_deg: ArrayLike | tuple[ArrayLike, ArrayLike] = 90.0,
    measure: Measure = "overlap",
) -> NDArray[np.float64]:
    """ψ of aligned camera pairs: (N, 2) metres and (N,) degrees clockwise from north, twice → (N,) in [0, 1].

    `radius_m` and `fov_deg` may be pairs (a, b), each one number or (N,). An unknown heading (NaN) sees the full
    circle; an unknown position (NaN) gives NaN.

    >>> fov_similarity([[0, 0], [0, 0], [0, 0]], [0, 0, 0], [[0, 0], [0, 0], [0, 200]], [0, 45, 0]).round(3).tolist()
    [1.0, 0.5, 0.0]
    """
    one_of(MEASURES, measure=measure)
    (ra, rb), (fa, fb) = sides(radius_m), sides(fov_deg)
    a, b = cameras(xy_a, heading_a, ra, fa), cameras(xy_b, heading_b, rb, fb)
    if len(a.xy) != len(b.xy):
        raise InputError(f"{len(a.xy)} cameras on one side, {len(b.xy)} on the other; the pairs must be aligned")
    return similarities(a, b, MEASURES.index(measure))


def sides(value: ArrayLike | tuple[ArrayLike, ArrayLike]) -> tuple[ArrayLike, ArrayLike]:
    """One value for both sides, or a tuple (a, b)."""
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, value)
