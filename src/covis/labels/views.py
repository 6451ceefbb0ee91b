"""Fields of view as arrays: each camera's sector, cut into convex pieces that the kernel can take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.errors import InputError

Floats = NDArray[np.float64]


class Pieces(NamedTuple):
    """Convex sectors, one or two a camera, (M,) each; the pieces of one camera follow each other."""

    x: Floats
    y: Floats
    axis_x: Floats
    axis_y: Floats
    angle: Floats
    """Axis in radians, counter-clockwise from east."""
    radius: Floats
    half: Floats
    """Half opening, radians in (0, π/2]."""
    cosine: Floats
    sine: Floats
    middle_x: Floats
    middle_y: Floats
    """Centre of the smallest enclosing circle."""
    reach: Floats
    """Its radius."""
    camera: NDArray[np.int32]


class Views(NamedTuple):
    """Fields of view of N cameras."""

    x: Floats
    y: Floats
    heading: Floats
    """Degrees clockwise from north; −1 where unknown."""
    radius: Floats
    fov: Floats
    """Opening in degrees, 360 where the heading is unknown."""
    area: Floats

    @property
    def pieces(self) -> Pieces:
        """The convex pieces of all cameras."""
        return _pieces(self, np.arange(len(self.x), dtype=np.int32))


def views(xy: ArrayLike, heading: ArrayLike, radius_m: ArrayLike, fov_deg: ArrayLike) -> Views:
    """Fields of view from positions (N, 2) in metres and headings (N,) in degrees; NaN heading = full circle."""
    xy, heading = np.asarray(xy, np.float64), np.asarray(heading, np.float64)
    if xy.ndim != 2 or xy.shape[1] != 2 or heading.shape != (len(xy),):
        raise InputError(f"positions {xy.shape} and headings {heading.shape}; expected (N, 2) and (N,)")
    if np.isinf(heading).any():
        raise InputError(f"heading {int(np.flatnonzero(np.isinf(heading))[0])} is infinite; expected degrees or NaN")
    radius = _per_camera(radius_m, len(xy), "radius_m")
    fov = _per_camera(fov_deg, len(xy), "fov_deg")
    if not ((radius > 0) & np.isfinite(radius)).all():
        raise InputError(f"radius_m is {radius[~((radius > 0) & np.isfinite(radius))][0]}; expected metres above 0")
    if not ((fov > 0) & (fov <= 360)).all():
        raise InputError(f"fov_deg is {fov[~((fov > 0) & (fov <= 360))][0]}; expected degrees in (0, 360]")
    unknown = np.isnan(heading)
    fov = np.where(unknown, 360.0, fov)
    x, y = np.ascontiguousarray(xy.T)
    return Views(x, y, np.where(unknown, -1.0, heading % 360.0), radius, fov, 0.5 * radius * radius * np.radians(fov))


def _per_camera(value: ArrayLike, n: int, name: str) -> Floats:
    array = np.asarray(value, np.float64)
    if array.shape not in ((), (n,)):
        raise InputError(f"{name} has shape {array.shape}; expected one number or ({n},)")
    return np.ascontiguousarray(np.broadcast_to(array, (n,)))


def _pieces(view: Views, camera: NDArray[np.int32]) -> Pieces:
    """One piece up to 180°, two halves beyond."""
    double = view.fov > 180.0
    at = np.repeat(camera, np.where(double, 2, 1))
    first = np.concatenate([[True], at[1:] != at[:-1]]) if len(at) else np.zeros(0, bool)
    half = np.radians(np.where(double, 0.25, 0.5) * view.fov)[at]
    offset = np.where(double[at], np.where(first, -0.25, 0.25) * view.fov[at], 0.0)
    heading = np.radians(np.maximum(view.heading[at], 0.0) + offset)
    axis_x, axis_y, cosine, sine = np.sin(heading), np.cos(heading), np.cos(half), np.sin(half)
    radius, x, y = view.radius[at], view.x[at], view.y[at]
    narrow = half <= 0.25 * np.pi
    reach = radius * np.where(narrow, 0.5 / cosine, sine)
    ahead = radius * np.where(narrow, 0.5 / cosine, cosine)
    return Pieces(
        x, y, axis_x, axis_y, 0.5 * np.pi - heading, radius, half, cosine, sine,
        x + ahead * axis_x, y + ahead * axis_y, reach, at.astype(np.int32),
    )  # fmt: skip
