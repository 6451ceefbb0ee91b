"""Where a query may be: a circle or a polygon in the map's own metres, and how people and programs write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.errors import InputError
from covis.core.foreign import read_foreign_text
from covis.poses import Poses

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
                f"a radius of {self.radius_m:g} m is not an area; give finite numbers and a radius from 0 m"
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
    """The inside of a closed line, which may be concave; where it crosses itself, the even–odd rule applies."""

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


Corner = tuple[float, float]
"""(lat, lon) in degrees, or (x, y) in metres."""


def read_area(near: str, inside: str, option: str = "--near") -> Callable[[str], Area] | None:
    """Frame → the area in its metres; None where neither is given. `inside`: as for `polygon`, or a GeoJSON file."""
    if near and inside:
        raise InputError(f"{option} and --inside contradict each other; give one area")
    if near:
        return lambda frame: circle(near, frame, option)
    if not inside:
        return None
    text = read_foreign_text(inside) if Path(inside).suffix.lower() in (".geojson", ".json") else inside
    return lambda frame: polygon(text, frame)


def circle(text: str, frame: str, name: str = "--near") -> Circle:
    """`LAT,LON,RADIUS_M`, or `X,Y,RADIUS_M` where the map is not on Earth; `name` is what an error calls it."""
    try:
        first, second, radius_m = map(float, text.split(","))
    except ValueError:
        given = "LAT,LON,RADIUS (degrees, degrees, metres)" if frame else "X,Y,RADIUS in metres"
        raise InputError(f"{name} is {given}, not {text[:80]!r}") from None
    ((x, y),) = _in_metres([(first, second)], frame, name)
    return Circle(x, y, radius_m)


def polygon(text: str, frame: str, name: str = "--inside") -> Polygon:
    """Corners `LAT,LON LAT,LON LAT,LON …` (`X,Y …` where the map is not on Earth), or one GeoJSON polygon as text."""
    try:
        if text.lstrip().startswith("{"):
            corners = _ring(json.loads(text))
            corners = [(lat, lon) for lon, lat in corners] if frame else corners
        else:
            corners = [(float(first), float(second)) for first, second in (part.split(",") for part in text.split())]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        what = "LAT,LON" if frame else "X,Y"
        raise InputError(
            f"{name} is one GeoJSON polygon without holes, or '{what} {what} {what} …', not {text[:80]!r}"
        ) from None
    if len(corners) < 3:
        raise InputError(f"{name} has {len(corners)} corners; a polygon needs at least three")
    return Polygon(tuple(_in_metres(corners, frame, name)))


def _ring(geojson: Any) -> list[Corner]:
    """The ring of the one polygon in a GeoJSON value; an error of Python where there is none, or more than one."""
    while geojson["type"] in ("FeatureCollection", "Feature"):
        [geojson] = geojson["features"] if geojson["type"] == "FeatureCollection" else [geojson["geometry"]]
    if geojson["type"] != "Polygon":
        raise ValueError
    [ring] = geojson["coordinates"]
    return [(float(first), float(second)) for first, second, *_ in ring]


def _in_metres(corners: list[Corner], frame: str, name: str) -> list[Corner]:
    """The corners in metres: (lat, lon) projected into the frame, metres unchanged."""
    if not all(math.isfinite(v) for corner in corners for v in corner):
        raise InputError(f"{name} needs finite numbers")
    if not frame:
        return corners
    if not all(abs(lat) <= 90 and abs(lon) <= 180 for lat, lon in corners):
        raise InputError(f"{name} is LAT,LON in degrees: latitude within ±90, longitude within ±180")
    lat, lon = zip(*corners, strict=True)
    xy = _projected(lat, lon, frame)
    if not xy:
        hint = "latitude comes first, then longitude" if _projected(lon, lat, frame) else "give LAT,LON near its photos"
        raise InputError(f"{name} lies too far from the map; {hint}")
    return xy


def _projected(lat: Sequence[float], lon: Sequence[float], frame: str) -> list[Corner]:
    """The points in the frame's metres; empty where they lie outside it."""
    try:
        xy = Poses.from_latlon(lat, lon, frame=frame).xy
    except InputError:
        return []
    return [(x, y) for x, y in xy.tolist()] if np.isfinite(xy).all() else []
