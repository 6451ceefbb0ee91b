"""Overlap of fields of view: the two-dimensional measure behind graded labels."""

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

Measure = Literal["overlap", "iou"]
MEASURES: tuple[str, ...] = get_args(Measure)
"""Shared area ÷ the smaller field of view, ÷ the union."""


RADIANS = math.pi / 180.0
_BLOCK = 8192
"""Pairs per block, whose arrays stay in a processor's cache."""


class Views(NamedTuple):
    """Fields of view of N cameras, (N,) each."""

    x: Floats
    y: Floats
    heading: Floats
    """Degrees clockwise from north in [0, 360); 0 where unknown."""
    radius: Floats
    fov: Floats
    """Opening in degrees; 360 where the heading is unknown."""

    def take(self, ids: Ids) -> Views:
        """Some of the views."""
        return Views(*(array.take(ids) for array in self))

    @property
    def area(self) -> Floats:
        """(N,) m²."""
        return np.asarray(0.5 * self.radius * self.radius * self.fov * RADIANS)


_Cameras = tuple[Floats, Floats, Floats, Floats]
"""Positions (N, 2), headings, radii and openings (N,) as they were given."""


def views(xy: ArrayLike, heading: ArrayLike, radius_m: ArrayLike, fov_deg: ArrayLike) -> Views:
    """Fields of view of cameras at (N, 2) metres with (N,) headings; radius and opening are one number or (N,)."""
    return _views(*_cameras(xy, heading, radius_m, fov_deg))


def _cameras(xy: ArrayLike, heading: ArrayLike, radius_m: ArrayLike, fov_deg: ArrayLike) -> _Cameras:
    xy, heading = np.asarray(xy, np.float64), np.asarray(heading, np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2 or heading.shape != (len(xy),):
        raise InputError(f"positions {xy.shape} and headings {heading.shape}; expected (N, 2) and (N,)")
    if np.isinf(xy).any() or np.isinf(heading).any():
        raise InputError("a position or heading is infinite; expected metres and degrees, or NaN where unknown")
    radius = _per_camera(radius_m, len(xy), "radius_m", np.inf, "metres above 0")
    return xy, heading, radius, _per_camera(fov_deg, len(xy), "fov_deg", 360.0, "degrees above 0, up to 360")


def _per_camera(value: ArrayLike, n: int, name: str, most: float, expected: str) -> Floats:
    array = np.asarray(value, np.float64)
    if array.shape not in ((), (1,), (n,)):
        raise InputError(f"{name} has shape {array.shape}; expected one number or ({n},)")
    wrong = ~((array > 0) & (array <= most) & (array < np.inf))
    if wrong.any():
        raise InputError(f"{name} is {array[wrong][0]}; expected {expected}")
    return np.broadcast_to(array, n)


def _views(xy: Floats, heading: Floats, radius: Floats, fov: Floats) -> Views:
    turned, unknown = heading - 360.0 * np.floor(heading / 360.0), np.isnan(heading)
    view = Views(xy[:, 0].copy(), xy[:, 1].copy(), turned, np.array(radius), np.array(fov))
    view.heading[unknown], view.fov[unknown] = 0.0, 360.0
    return view


def shared_areas(a: Views, b: Views) -> Floats:
    """m² (N,) that aligned fields of view share; views wider than 180° are two convex pieces."""
    area = _piece_areas(a, b, second_a=False, second_b=False)
    wide_a, wide_b = a.fov > 180.0, b.fov > 180.0
    for second_a, second_b, wide in ((True, False, wide_a), (False, True, wide_b), (True, True, wide_a & wide_b)):
        if wide.any():
            at = np.flatnonzero(wide)
            area[at] += _piece_areas(a.take(at), b.take(at), second_a=second_a, second_b=second_b)
    return area


def _piece_areas(a: Views, b: Views, *, second_a: bool, second_b: bool) -> Floats:
    """m² (N,) that the only, first or second convex pieces of aligned views share."""
    area = np.empty(len(a.x))
    _fill_areas(a, b, second_a, second_b, area)
    return area


@kernel(**SIMD)
def _fill_areas(a: Views, b: Views, second_a: bool, second_b: bool, area: Floats) -> None:
    for k in range(len(area)):
        heading_a, half_a = _piece(a.heading[k], a.fov[k], second_a)
        heading_b, half_b = _piece(b.heading[k], b.fov[k], second_b)
        ax, ay = sine_cosine(heading_a)
        bx, by = sine_cosine(heading_b)
        sa, ca = sine_cosine(half_a)
        sb, cb = sine_cosine(half_b)
        area[k] = convex_area(
            b.x[k] - a.x[k], b.y[k] - a.y[k], (heading_a - heading_b) * RADIANS,
            ax, ay, a.radius[k], half_a * RADIANS, ca, sa,
            bx, by, b.radius[k], half_b * RADIANS, cb, sb,
        )  # fmt: skip


@kernel(**INLINE)
def _piece(heading: float, fov: float, second: bool) -> tuple[float, float]:
    """Axis and half opening, degrees, of a view's only, first or second convex piece."""
    wide = fov > 180.0
    quarter = 0.25 * fov
    offset = (quarter if second else -quarter) if wide else 0.0
    return heading + offset, quarter if wide else 0.5 * fov


def similarity(a: Views, b: Views, measure: Measure) -> Floats:
    """ψ (N,) of aligned fields of view."""
    shared, area_a, area_b = shared_areas(a, b), a.area, b.area
    whole = np.minimum(area_a, area_b) if measure == "overlap" else area_a + area_b - shared
    return np.asarray(np.minimum(1.0, shared / whole))


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
    (ra, rb), (fa, fb) = per_side(radius_m), per_side(fov_deg)
    a, b = _cameras(xy_a, heading_a, ra, fa), _cameras(xy_b, heading_b, rb, fb)
    if len(a[0]) != len(b[0]):
        raise InputError(f"{len(a[0])} cameras on one side, {len(b[0])} on the other; the pairs must be aligned")
    psi = np.empty(len(a[0]))
    for start in range(0, len(psi), _BLOCK):
        block = slice(start, start + _BLOCK)
        some_a, some_b = (_views(*(array[block] for array in side)) for side in (a, b))
        psi[block] = similarity(some_a, some_b, measure)
        psi[block][np.isnan(some_a.x + some_a.y + some_b.x + some_b.y)] = np.nan
    return psi


def per_side(value: ArrayLike | tuple[ArrayLike, ArrayLike]) -> tuple[ArrayLike, ArrayLike]:
    """One value for both sides, or a tuple (a, b)."""
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, value)
