"""Overlap of aligned pairs of fields of view: the two-dimensional measure behind graded labels."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.errors import InputError, unknown_name

Measure = Literal["overlap", "query_overlap", "iou"]
MEASURES: tuple[str, ...] = get_args(Measure)
"""Shared area ÷ the smaller field of view, ÷ the query's own, ÷ the union."""


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
    from covis.labels.aligned import similarities
    from covis.labels.views import cameras

    check_measure(measure)
    (ra, rb), (fa, fb) = sides(radius_m), sides(fov_deg)
    a, b = cameras(xy_a, heading_a, ra, fa), cameras(xy_b, heading_b, rb, fb)
    if len(a.xy) != len(b.xy):
        raise InputError(f"{len(a.xy)} cameras on one side, {len(b.xy)} on the other; the pairs must be aligned")
    return similarities(a, b, MEASURES.index(measure))


def check_measure(measure: str) -> None:
    """An error for a measure that there is not."""
    if measure not in MEASURES:
        raise unknown_name("measure", measure, MEASURES)


def sides(value: ArrayLike | tuple[ArrayLike, ArrayLike]) -> tuple[ArrayLike, ArrayLike]:
    """One value for both sides, or a tuple (a, b)."""
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, value)
