"""A library's places all over the world in one plane: a local frame per region, the regions side by side.

A map searches all of them at once and knows only metres; no two regions come near each other, so that no evidence of
one counts in another. Regions are found from the photos, keep their place once they have one, and are centred by
directions from the Earth's middle: the antimeridian and the poles are places like others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from covis.core.arrays import Floats, Ids
from covis.poses import WGS84, local_frame, transformer

_EARTH_M = 6_371_000.0
_REACH_M = 800_000.0
"""How far a region goes from its centre: there its metres are 0.8 % too long."""
_LINK_M = 100_000.0
"""Photos nearer than this to each other are of one region, up to its reach."""
_APART_M = 4_000_000.0
"""From one region's centre to the next in the plane."""
_way = lru_cache(maxsize=256)(transformer)


class Regions:
    """Local frames around `centres` (lat, lon), the i-th of them `_APART_M` · i east in the plane."""

    def __init__(self, centres: Sequence[tuple[float, float]] = ()) -> None:
        self.centres = list(centres)

    def __len__(self) -> int:
        return len(self.centres)

    def frame(self, i: int) -> str:
        """The frame of region i."""
        lat, lon = self.centres[i]
        return local_frame(np.array([lat]), np.array([lon]))

    def of(self, lat: ArrayLike, lon: ArrayLike) -> Ids:
        """(N,) the nearest region that reaches a place; −1 for none."""
        directions = _directions(lat, lon)
        if not self.centres:
            return np.full(len(directions), -1)
        angle = directions @ _directions(*np.array(self.centres).T).T
        return np.where(angle.max(axis=1) >= np.cos(_REACH_M / _EARTH_M), angle.argmax(axis=1), -1)

    def extend(self, lat: ArrayLike, lon: ArrayLike) -> None:
        """Adds regions until each of these places has one."""
        lat, lon = np.asarray(lat, np.float64), np.asarray(lon, np.float64)
        while (new := self.of(lat, lon) < 0).any():
            cells = np.unique(np.round(_directions(lat[new], lon[new]) * _EARTH_M / (_LINK_M / 4)), axis=0)
            for x, y, z in _middles(cells / np.linalg.norm(cells, axis=1, keepdims=True)):
                place = np.degrees(np.arcsin(np.clip(z, -1, 1))), np.degrees(np.arctan2(y, x))
                self.centres.append(tuple(np.round(place, 4).tolist()))

    def to_plane(self, lat: ArrayLike, lon: ArrayLike) -> Floats:
        """(N, 2) metres; every place must have a region."""
        lat, lon = np.asarray(lat, np.float64), np.asarray(lon, np.float64)
        region, xy = self.of(lat, lon), np.empty((len(lat), 2))
        for i in np.unique(region).tolist():
            at = region == i
            x, y = _way(WGS84, self.frame(i)).transform(lon[at], lat[at])
            xy[at] = np.column_stack([np.asarray(x) + _APART_M * i, y])
        return xy

    def to_earth(self, xy: ArrayLike) -> Floats:
        """(N, 2) latitude and longitude of places in the plane; NaN where they are."""
        xy = np.asarray(xy, np.float64).reshape(-1, 2)
        degrees, region, local = np.full((len(xy), 2), np.nan), self.region_at(xy), self.local(xy)
        for i in sorted({*region.tolist()} - {-1}):
            at = region == i
            lon, lat = _way(self.frame(i), WGS84).transform(*local[at].T)
            degrees[at] = np.column_stack([lat, (np.asarray(lon) + 180.0) % 360.0 - 180.0])
        return degrees

    def region_at(self, xy: Floats) -> Ids:
        """(N,) the region of places in the plane; −1 where they are unknown."""
        return np.where(np.isnan(xy[:, 0]), -1, np.round(np.nan_to_num(xy[:, 0]) / _APART_M)).astype(np.int64)

    def local(self, xy: Floats) -> Floats:
        """(N, 2) metres in each place's own frame."""
        return np.asarray(xy - np.column_stack([_APART_M * self.region_at(xy), np.zeros(len(xy))]))


def _middles(directions: Floats) -> Iterator[Floats]:
    """The middle of each cluster of directions whose members are linked; of a cluster that is too wide, of its first part."""
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    pairs = cKDTree(directions).sparse_distance_matrix(cKDTree(directions), 1.5 * _LINK_M / _EARTH_M)
    _, cluster = connected_components(pairs, directed=False)
    for one in np.unique(cluster):
        members = directions[cluster == one]
        middle = members.mean(axis=0)
        if np.linalg.norm(members - middle, axis=1).max() > _REACH_M / _EARTH_M:
            middle = members[np.linalg.norm(members - members[0], axis=1) < _REACH_M / _EARTH_M].mean(axis=0)
        yield middle / np.linalg.norm(middle)


def _directions(lat: ArrayLike, lon: ArrayLike) -> Floats:
    """(N, 3) unit vectors from the Earth's middle."""
    a, b = np.radians(np.asarray(lat, np.float64)), np.radians(np.asarray(lon, np.float64))
    return np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], axis=-1)
