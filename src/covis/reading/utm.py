"""UTM zones: their frames, grid convergence, and one zone for a city that lies across a border."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.arrays import Floats

ZONE_TOLERANCE_M = 1000.0
"""How far a stated UTM position may lie from the one its latitude and longitude give, and still be of that zone."""


def zone_of(lon: ArrayLike) -> NDArray[np.int64]:
    """(N,) the six-degree zone 1–60 of each longitude; 0 where unknown."""
    degrees = np.asarray(lon, np.float64)
    zone = np.floor((np.where(np.isnan(degrees), 0, degrees) + 180) / 6).astype(np.int64) % 60 + 1
    return np.where(np.isnan(degrees), 0, zone)


def frame_of(zone: int, north: bool) -> str:
    """The EPSG code of a zone."""
    return f"EPSG:{(32600 if north else 32700) + zone}"


def convergence_deg(lat: ArrayLike, lon: ArrayLike, zone: ArrayLike) -> Floats:
    """(N,) how far grid north lies clockwise of true north, degrees; subtract it from a true heading.

    The spherical formula, within 0.01° of the ellipsoid's anywhere in a zone.
    """
    offset = np.radians(np.asarray(lon, np.float64) - (np.asarray(zone, np.float64) * 6 - 183))
    angle: Floats = np.degrees(np.arctan(np.tan(offset) * np.sin(np.radians(np.asarray(lat, np.float64)))))
    return angle


def one_zone(xy: Floats, lat: Floats, lon: Floats) -> tuple[Floats, int]:
    """Positions of one city in its most common zone, and that zone (0 if no longitude is known).

    Some files give each image the coordinates of its own zone, so that neighbours across a border are 400 km apart.
    Only positions that really are those of another zone are moved; all others stay as the file has them.
    """
    zones = zone_of(lon)
    known = zones > 0
    if not known.any():
        return xy, 0
    values, counts = np.unique(zones[known], return_counts=True)
    main = int(values[np.argmax(counts)])
    if len(values) == 1:
        return xy, main
    from pyproj import Transformer

    moved = xy.copy()
    north = bool(np.nanmean(lat) >= 0)
    for zone in values[values != main]:
        members = np.flatnonzero(zones == zone)
        there = Transformer.from_crs(4326, frame_of(int(zone), north), always_xy=True)
        own = np.column_stack(there.transform(lon[members], lat[members]))
        members = members[np.hypot(*(own - xy[members]).T) < ZONE_TOLERANCE_M]
        across = Transformer.from_crs(frame_of(int(zone), north), frame_of(main, north), always_xy=True)
        moved[members] = np.column_stack(across.transform(*xy[members].T))
    return moved, main
