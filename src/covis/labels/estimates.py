"""How long labelling will take and how much it will give, from a sample of the images."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from covis.images import ImageSet
from covis.labels.rules import FovOverlap, Radius, Rule, SurfaceOverlap

_SAMPLE = 256
_SURFACE_SAMPLE = 32
"""Images on each side: their depth maps may have to be read."""
_BYTES_A_PAIR = {False: 8, True: 5}
"""A column in four bytes and ψ in four, or in one where it is quantised."""


class Estimate(NamedTuple):
    """What to expect."""

    pairs: int
    seconds: float
    megabytes: float


def estimate(rule: Rule, queries: ImageSet, database: ImageSet, *, quantised: bool = False) -> Estimate:
    """Labels an even sample and scales up; the first call may include the compiler's time."""
    if not len(queries) or not len(database):
        return Estimate(0, 0.0, 0.0)
    if isinstance(rule, SurfaceOverlap):
        pairs, seconds = _surface(rule, queries, database)
    else:
        pairs, seconds = _ground(rule, queries, database)
    return Estimate(round(pairs), seconds, pairs * _BYTES_A_PAIR[quantised] / 1e6)


def _ground(rule: FovOverlap | Radius, queries: ImageSet, database: ImageSet) -> tuple[float, float]:
    some = _sample(queries, _SAMPLE)
    one = queries.subset([0])
    rule(one, database)
    start = time.perf_counter()
    rule(one, database)  # what does not grow with the queries
    fixed = time.perf_counter() - start
    start = time.perf_counter()
    graph = rule(some, database)
    share = len(queries) / len(some)
    selves = len(queries) if queries is database else 0  # a sample is another set, so each image met itself
    return graph.pairs * share - selves, fixed + max(0.0, time.perf_counter() - start - fixed) * share


def _surface(rule: SurfaceOverlap, queries: ImageSet, database: ImageSet) -> tuple[float, float]:
    """Fusing grows with the depth maps, looking with the images, comparing with the pairs."""
    from covis.labels.fov import MEASURES
    from covis.labels.pointclouds import MAX_FRAMES, fuse_depth
    from covis.labels.surface import arrange, look, surface_rows
    from covis.labels.whole_sets import group_pairs

    groups = list(group_pairs(queries, database, rule.within_group))
    if not groups:
        return 0.0, 0.0
    i, j = groups[0]
    here = queries if i is None else queries.subset(i)
    there = database if j is None else database.subset(j)
    a, b = _sample(here, _SURFACE_SAMPLE), _sample(there, _SURFACE_SAMPLE)
    measure = MEASURES.index(rule.measure)
    start = time.perf_counter()
    points = arrange(rule.cloud or fuse_depth([a, b]))
    fuse = time.perf_counter() - start
    one = look(points, a.subset([0]), rule.occlusion)
    list(surface_rows(one, one, measure, rule.zero_below, False))  # now the kernels are loaded
    clock = [time.perf_counter()]
    seen_a, seen_b = look(points, a, rule.occlusion), look(points, b, rule.occlusion)
    clock.append(time.perf_counter())
    found = sum(len(rows.psi) for rows in surface_rows(seen_a, seen_b, measure, rule.zero_below, False))
    clock.append(time.perf_counter())
    see, compare = np.diff(clock)
    frames = 1.0 if rule.cloud else max(1.0, min(MAX_FRAMES, len(here) + len(there)) / (len(a) + len(b)))
    both = [(len(queries), len(database)) if i is None or j is None else (len(i), len(j)) for i, j in groups]
    images, pairs = sum(n + m for n, m in both) / (len(a) + len(b)), sum(n * m for n, m in both) / (len(a) * len(b))
    return found * pairs, float(fuse * frames * len(groups) + see * images + compare * pairs)


def _sample(images: ImageSet, most: int) -> ImageSet:
    return images.subset(np.unique(np.linspace(0, len(images) - 1, min(most, len(images))).astype(np.int64)))
