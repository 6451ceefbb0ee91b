"""Rules over whole sets, group by group where asked, into one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.cities import Options, label_rows
from covis.labels.fov import MEASURES, sides
from covis.labels.neighbours import Places, radius_rows
from covis.labels.rows import Rows, assemble
from covis.labels.rules import Advance, FovOverlap, Radius, Rule, facts_of
from covis.labels.views import Views, cameras, views

Members = NDArray[np.int32] | None
"""Ids of one group's images; None for all images."""


def fov_graph(rule: FovOverlap, queries: ImageSet, database: ImageSet, advance: Advance) -> SimilarityGraph:
    """ψ by overlap of fields of view."""
    (ra, rb), (fa, fb) = sides(rule.radius_m), sides(rule.fov_deg)
    a = views(cameras(queries.poses.xy, queries.poses.heading, ra, fa))
    one_set = queries is database
    b = a if one_set else views(cameras(database.poses.xy, database.poses.heading, rb, fb))
    # the query's own share differs between directions as soon as views differ in size
    mirror = one_set and (rule.measure != "query_overlap" or len(np.unique(a.fov)) <= 1)
    options = Options(MEASURES.index(rule.measure), _gate(rule), rule.facing, float(rule.zero_below), mirror)

    def label(i: Members, j: Members) -> Iterator[Rows]:
        return label_rows(_some(a, i), _some(b, j), options)

    return build(rule, queries, database, label, mirror, advance)


def radius_graph(rule: Radius, queries: ImageSet, database: ImageSet, advance: Advance) -> SimilarityGraph:
    """ψ = 1 within a radius."""
    one_set = queries is database

    def label(i: Members, j: Members) -> Iterator[Rows]:
        return radius_rows(_places(queries, i), _places(database, j), rule.radius_m, _gate(rule), one_set)

    return build(rule, queries, database, label, one_set, advance)


def build(
    rule: Rule,
    queries: ImageSet,
    database: ImageSet,
    label: Callable[[Members, Members], Iterator[Rows]],
    mirror: bool,
    advance: Advance,
) -> SimilarityGraph:
    """The graph of all rows that `label` yields for each pair of groups; `mirror` if it yields only i < j."""

    def rows() -> Iterable[Rows]:
        for i, j in group_pairs(queries, database, rule.within_group):
            for part in label(i, j):
                yield _renumbered(part, i, j)
                if advance is not None:
                    advance(len(part.ids))

    matrix = assemble(rows(), len(queries), mirror=mirror)
    graph = SimilarityGraph(*matrix, (len(queries), len(database)), facts_of(rule, queries, database))
    return graph.keep(graph.rows != graph.indices) if queries is database and not mirror else graph


def group_pairs(queries: ImageSet, database: ImageSet, within_group: bool) -> Iterator[tuple[Members, Members]]:
    """Ids on both sides that are to be compared: all with all, or group by group (by name)."""
    if not within_group:
        yield None, None
        return
    here, there = _members(queries), _members(database)
    for name in sorted(here.keys() & there.keys()):
        yield here[name], there[name]


def _members(images: ImageSet) -> dict[str, NDArray[np.int32]]:
    order = np.argsort(images.group, kind="stable").astype(np.int32)
    edges = np.searchsorted(images.group[order], np.arange(len(images.group_names) + 1))
    return {
        name: order[edges[code] : edges[code + 1]]
        for code, name in enumerate(images.group_names)
        if edges[code + 1] > edges[code]
    }


def _gate(rule: FovOverlap | Radius) -> float:
    return 360.0 if rule.max_angle_deg is None else float(rule.max_angle_deg)


def _some(view: Views, ids: Members) -> Views:
    return view if ids is None else Views(*(array[ids] for array in view))


def _places(images: ImageSet, ids: Members) -> Places:
    pick = slice(None) if ids is None else ids
    xy, heading = images.poses.xy[pick], images.poses.heading[pick]
    return Places(xy[:, 0].copy(), xy[:, 1].copy(), np.where(np.isnan(heading), -1.0, heading))


def _renumbered(part: Rows, i: Members, j: Members) -> Rows:
    if i is None or j is None:
        return part
    return Rows(i[part.ids].astype(np.int64), part.counts, j[part.columns], part.psi)
