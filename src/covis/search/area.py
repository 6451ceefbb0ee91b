"""Where a query may be: restricting a search to a circle or a polygon, in the map's own metres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.errors import InputError

Box = tuple[float, float, float, float]


class Area(Protocol):
    """A part of the plane."""

    @property
    def box(self) -> Box:
        """Lowest x and y, highest x and y, in metres."""

    def contains(self, xy: ArrayLike) -> NDArray[np.bool_]:
        """(N,) which of the positions (N, 2) lie inside; an unknown position (NaN) never does."""


@dataclass(frozen=True)
class Circle:
    """All positions at most `radius_m` from the centre: what a rough GPS says."""

    x: float
    y: float
    radius_m: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.x, self.y, self.radius_m]).all() and self.radius_m >= 0):
            raise InputError(
                f"an area of radius {self.radius_m} m around ({self.x}, {self.y}) is none; give finite numbers"
            )

    @property
    def box(self) -> Box:
        """Lowest x and y, highest x and y, in metres."""
        return self.x - self.radius_m, self.y - self.radius_m, self.x + self.radius_m, self.y + self.radius_m

    def contains(self, xy: ArrayLike) -> NDArray[np.bool_]:
        """(N,) which of the positions (N, 2) lie inside or on the circle."""
        offset = np.asarray(xy, np.float64).reshape(-1, 2) - (self.x, self.y)
        return np.asarray(np.hypot(offset[:, 0], offset[:, 1]) <= self.radius_m)


@dataclass(frozen=True)
class Polygon:
    """The inside of a closed line, which may be concave; crossing itself, it counts by the even–odd rule."""

    corners: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        corners = np.asarray(self.corners, np.float64)
        if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
            raise InputError(f"a polygon needs at least three finite corners (x, y), not {self.corners}")
        object.__setattr__(self, "corners", tuple(map(tuple, corners.tolist())))

    @property
    def box(self) -> Box:
        """Lowest x and y, highest x and y, in metres."""
        corners = np.asarray(self.corners)
        (left, low), (right, high) = corners.min(0), corners.max(0)
        return float(left), float(low), float(right), float(high)

    def contains(self, xy: ArrayLike) -> NDArray[np.bool_]:
        """(N,) which of the positions (N, 2) lie inside: an odd number of sides to the right of them."""
        x, y = np.asarray(xy, np.float64).reshape(-1, 2).T
        inside = np.zeros(len(x), bool)
        ends = np.asarray(self.corners)
        for (xa, ya), (xb, yb) in zip(ends, np.roll(ends, -1, 0), strict=True):
            if ya != yb:
                straddles = (ya > y) != (yb > y)
                inside ^= straddles & (x < xa + (y - ya) * ((xb - xa) / (yb - ya)))
        return inside & ~np.isnan(x)
