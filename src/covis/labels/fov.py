"""Overlap of aligned pairs of fields of view: the two-dimensional measure behind graded labels."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from covis.errors import InputError, unknown_name
from covis.labels.sectors import TAU, convex_area
from covis.labels.views import Floats, Pieces, Views, views

Measure = Literal["overlap", "query_overlap", "iou"]
MEASURES: tuple[str, ...] = get_args(Measure)
"""Shared area ÷ the smaller field of view, ÷ the query's own, ÷ the union."""
_CHUNK = 1 << 16


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
    """
    check_measure(measure)
    (ra, rb), (fa, fb) = sides(radius_m), sides(fov_deg)
    a, b = views(xy_a, heading_a, ra, fa), views(xy_b, heading_b, rb, fb)
    if len(a.x) != len(b.x):
        raise InputError(f"{len(a.x)} cameras on one side, {len(b.x)} on the other; the pairs must be aligned")
    shared = np.empty(len(a.x))
    for start in range(0, len(shared), _CHUNK):
        part = slice(start, start + _CHUNK)
        shared[part] = _shared_area(_part(a, part), _part(b, part))
    psi = ratio(shared, a.area, b.area, measure)
    psi[np.isnan(a.x + a.y + b.x + b.y)] = np.nan
    return psi


def check_measure(measure: str) -> None:
    """An error for a measure that there is not."""
    if measure not in MEASURES:
        raise unknown_name("measure", measure, MEASURES)


def sides(value: ArrayLike | tuple[ArrayLike, ArrayLike]) -> tuple[ArrayLike, ArrayLike]:
    """One value for both sides, or a tuple (a, b)."""
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, value)


def ratio(shared: Floats, area_a: Floats, area_b: Floats, measure: str) -> Floats:
    """Shared areas as ψ."""
    whole = {
        "overlap": lambda: np.minimum(area_a, area_b),
        "query_overlap": lambda: area_a,
        "iou": lambda: area_a + area_b - shared,
    }[measure]()
    result: Floats = np.minimum(shared / whole, 1.0)
    return result


def _part(view: Views, part: slice) -> Views:
    return Views(*(array[part] for array in view))


def _shared_area(a: Views, b: Views) -> Floats:
    """Shared areas of aligned views, summed over their convex pieces."""
    pa, pb = a.pieces, b.pieces
    first_a, first_b = (np.searchsorted(p.camera, np.arange(len(a.x))) for p in (pa, pb))
    double_a, double_b = a.fov > 180.0, b.fov > 180.0
    total = np.zeros(len(a.x))
    for i, mask_a in ((0, np.ones_like(double_a)), (1, double_a)):
        for j, mask_b in ((0, np.ones_like(double_b)), (1, double_b)):
            at = np.flatnonzero(mask_a & mask_b)
            total[at] += aligned_areas(_take(pa, first_a[at] + i), _take(pb, first_b[at] + j))
    return total


def _take(pieces: Pieces, at: NDArray[np.int64]) -> Pieces:
    if len(at) == len(pieces.x):
        return pieces
    return Pieces(*(array[at] for array in pieces))


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "nnan"})
def aligned_areas(a: Pieces, b: Pieces) -> Floats:
    """Shared areas (N,) of aligned convex sectors."""
    out = np.empty(len(a.x))
    for k in range(len(out)):
        out[k] = convex_area(
            b.x[k] - a.x[k], b.y[k] - a.y[k], b.angle[k] - a.angle[k],
            a.axis_x[k], a.axis_y[k], a.radius[k], a.half[k], a.cosine[k], a.sine[k],
            b.axis_x[k], b.axis_y[k], b.radius[k], b.half[k], b.cosine[k], b.sine[k],
        )  # fmt: skip
    return out
