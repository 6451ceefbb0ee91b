"""Fields of view as arrays, and the convex pieces of them that the exact kernel takes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.compiling import kernel
from covis.errors import InputError
from covis.labels.sectors import INLINE, SIMD, sine_cosine

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
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
    """Convex sectors, (M,) each: one a camera up to 180°, two halves beyond."""

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
    """What a user gives, in shape and range but otherwise as it came."""

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
    if infinite(xy.ravel()) or infinite(heading):
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


@kernel()
def infinite(values: Floats) -> bool:
    """Whether any value is infinite; NaN is not."""
    found = False
    for value in values:
        found |= abs(value) == np.inf
    return found


def views(given: Cameras) -> Views:
    """Fields of view of all cameras."""
    out = empty_views(len(given.xy))
    load(given, 0, len(given.xy), out)
    return out


@kernel()
def load(given: Cameras, start: int, n: int, out: Views) -> None:
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
    """Room for n views."""
    return Views(*np.empty((len(Views._fields), n)))


def empty_pieces(n: int) -> Pieces:
    """Room for n pieces."""
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
    alike = True
    for k in range(n):
        alike &= out.half[k] == out.half[0]
    sine, cosine = sine_cosine(out.half[0]) if n else (0.0, 1.0)
    for k in range(n):
        out.sine[k], out.cosine[k] = (sine, cosine) if alike else sine_cosine(out.half[k])
    for k in range(n):
        out.half[k] *= RADIANS
    for k in range(n):
        out.x[k], out.y[k] = view.x[k], view.y[k]
    for k in range(n):
        out.radius[k] = view.radius[k]


@kernel()
def gather(pieces: Pieces, at: Ids, n: int, out: Pieces) -> None:
    """Copies the pieces at the first n indices together: SIMD loops need neighbours in memory."""
    for k in range(n):
        i = at[k]
        out.x[k], out.y[k], out.heading[k] = pieces.x[i], pieces.y[i], pieces.heading[i]
        out.axis_x[k], out.axis_y[k], out.radius[k] = pieces.axis_x[i], pieces.axis_y[i], pieces.radius[i]
        out.half[k], out.cosine[k], out.sine[k] = pieces.half[i], pieces.cosine[i], pieces.sine[i]


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
