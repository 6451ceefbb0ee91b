"""Questions with known answers: photos of a map asked as if they were new, without those that would give them away.

A photo's own group (one walk, one drive) is left out where photos of other groups stand near enough to answer;
otherwise the photos next to it in the order of their names are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covis.localise.fusion import PLACE_RADIUS_M
from covis.search import Consensus, Ranking, rank

if TYPE_CHECKING:
    from covis.localise.map import Map

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
CONTEXT = 20
"""Matches of a photo that its answer is judged by."""
QUERIES = 2000
"""So many photos are asked at most."""
NEIGHBOURS = 2
"""Photos before and after in a walk that are left out with a photo, where no other walk can answer."""
STRETCHES = 20
"""Parts of a lonely walk that stand for walks."""
MIN_QUERIES = 50


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Photos asked of their own map, and what it found."""

    queries: Ids
    """(Q,) positions in the map's images."""
    ids: Ids
    """(Q, K) positions of the matches in the order of answers; −1 for none."""
    distances: Floats
    method: str
    """`groups` or `neighbours`: what was left out with each photo."""
    walk: Ids
    """(Q,) the group of each photo, or the stretch of its walk: photos that are right or wrong together."""
    fold: Ids
    """(Q,) whole walks that belong together when a fit is checked."""


def hold_out(map_: Map, folds: int = 5) -> HeldOut:
    """Asks up to `QUERIES` photos of the map; the same photos each time."""
    count = len(map_)
    rng = np.random.default_rng(0)
    queries = np.sort(rng.permutation(count)[:QUERIES])
    group = np.asarray(map_.images.group, np.int64)
    agree = Consensus(map_.images.poses, CONTEXT)
    if _answerable(map_, queries, group) >= MIN_QUERIES:
        found = agree(_without_group(map_, queries, group))
        part = rng.permutation(int(group.max()) + 1)[group[queries]] % folds
        return HeldOut(queries, found.ids, found.distances.astype(np.float64), "groups", group[queries], part)
    found = agree(_without_neighbours(map_, queries))
    place = np.empty(count, np.int64)
    place[_walk_order(map_)] = np.arange(count)
    stretch = place[queries] * STRETCHES // max(1, count)
    distances = found.distances.astype(np.float64)
    return HeldOut(queries, found.ids, distances, "neighbours", stretch, stretch * folds // STRETCHES)


def _answerable(map_: Map, queries: Ids, group: Ids) -> int:
    """How many photos have one of another group near enough to be right."""
    from scipy.spatial import cKDTree

    if len(np.unique(group)) < 2:
        return 0
    xy = map_.images.poses.xy
    near = cKDTree(xy).query_ball_point(xy[queries], PLACE_RADIUS_M)
    return sum(bool((group[found] != group[q]).any()) for q, found in zip(queries, near, strict=True))


def _without_group(map_: Map, queries: Ids, group: Ids) -> Ranking:
    rows = map_.state.rows
    codes = np.full(len(map_.descriptors), -1, np.int64)
    codes[rows] = group
    found = rank(
        map_.descriptors[rows[queries]], map_.descriptors, CONTEXT, group[queries], codes, "other", allowed=rows
    )
    ids = np.where(found.ids >= 0, np.searchsorted(rows, np.maximum(found.ids, 0)), -1)
    return Ranking(ids, found.distances)


def _without_neighbours(map_: Map, queries: Ids) -> Ranking:
    """Searches a little deeper, then takes out the photos next to each in its walk."""
    rows = map_.state.rows
    found = rank(map_.descriptors[rows[queries]], map_.descriptors, CONTEXT + 2 * NEIGHBOURS + 1, allowed=rows)
    ids = np.where(found.ids >= 0, np.searchsorted(rows, np.maximum(found.ids, 0)), -1)
    place = np.empty(len(map_), np.int64)
    place[_walk_order(map_)] = np.arange(len(map_))
    group = np.asarray(map_.images.group)
    beside = np.abs(place[ids] - place[queries][:, None]) <= NEIGHBOURS
    barred = (ids < 0) | (beside & (group[ids] == group[queries][:, None])) | (ids == queries[:, None])
    order = np.argsort(barred, axis=1, kind="stable")[:, :CONTEXT]
    barred = np.take_along_axis(barred, order, 1)
    ids = np.where(barred, -1, np.take_along_axis(ids, order, 1))
    return Ranking(ids, np.where(barred, np.inf, np.take_along_axis(found.distances, order, 1)))


def _walk_order(map_: Map) -> Ids:
    """Photos by group, then by name, which is the order they were taken in on most cameras."""
    return np.lexsort((map_.images.names, map_.images.group))
