"""Label rules: (queries, database) → graph of graded similarities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.cities import Options, label_rows
from covis.labels.fov import MEASURES, Measure, check_measure, sides
from covis.labels.neighbours import Places, radius_rows
from covis.labels.rows import Rows, assemble
from covis.labels.views import Views, cameras, views


@dataclass(frozen=True)
class FovOverlap:
    """ψ = how much the fields of view of two cameras share on the ground.

    A field of view is the sector of `radius_m` and `fov_deg` around the heading; a camera of unknown heading sees the
    full circle. One set matched with itself gives a symmetric graph without its diagonal.
    """

    radius_m: float | tuple[float, float] = 50.0
    """Depth of view in metres; a tuple is (queries, database)."""
    fov_deg: float | tuple[float, float] = 90.0
    """Opening in degrees up to 360; a tuple is (queries, database)."""
    measure: Measure = "overlap"
    """`overlap`: ÷ the smaller field of view; `query_overlap`: ÷ the query's; `iou`: ÷ the union."""
    within_group: bool = False
    """Only pairs of one group (cities may share coordinates)."""
    max_angle_deg: float | None = None
    """Leave out pairs whose headings differ by more; unknown headings pass."""
    facing: bool = False
    """Times min(1, 1 + cos Δheading): cameras that look at each other share space but hardly a surface."""
    zero_below: float = 1e-9
    """ψ below this counts as 0; the kernel is exact to about 1e-11."""

    def __call__(self, queries: ImageSet, database: ImageSet) -> SimilarityGraph:
        """Labels of every pair."""
        check_measure(self.measure)
        one_set = queries is database
        require_positions(queries, database)
        (ra, rb), (fa, fb) = sides(self.radius_m), sides(self.fov_deg)
        if one_set and (ra != rb or fa != fb):
            raise InputError("one set matched with itself takes one radius_m and one fov_deg for both sides")
        a = views(cameras(queries.poses.xy, queries.poses.heading, ra, fa))
        b = a if one_set else views(cameras(database.poses.xy, database.poses.heading, rb, fb))
        mirror = one_set and (self.measure != "query_overlap" or len(np.unique(a.fov)) <= 1)
        options = Options(
            MEASURES.index(self.measure), gate_deg(self.max_angle_deg), self.facing, float(self.zero_below), mirror
        )
        rows = (
            _renumbered(part, i, j)
            for i, j in group_pairs(queries, database, self.within_group)
            for part in label_rows(_some(a, i), _some(b, j), options)
        )
        return _graph(self, rows, queries, database, mirror)


@dataclass(frozen=True)
class Radius:
    """ψ = 1 for pairs within `radius_m` (and `max_angle_deg`, where both headings are known)."""

    radius_m: float = 25.0
    """Metres, inclusive."""
    max_angle_deg: float | None = None
    """Degrees between headings, inclusive; unknown headings pass."""
    within_group: bool = False
    """Only pairs of one group (cities may share coordinates)."""

    def __call__(self, queries: ImageSet, database: ImageSet) -> SimilarityGraph:
        """Labels of every pair."""
        if not self.radius_m > 0:
            raise InputError(f"radius_m is {self.radius_m}; expected metres above 0")
        one_set = queries is database
        require_positions(queries, database)
        gate = gate_deg(self.max_angle_deg)
        rows = (
            _renumbered(part, i, j)
            for i, j in group_pairs(queries, database, self.within_group)
            for part in radius_rows(_places(queries, i), _places(database, j), self.radius_m, gate, one_set)
        )
        return _graph(self, rows, queries, database, one_set)


Rule = FovOverlap | Radius
Members = NDArray[np.int32] | None


def require_positions(*sets: ImageSet) -> None:
    """An error that counts and names images without a position; labelling them 0 would be a lie."""
    for images in sets:
        unknown = np.flatnonzero(~images.poses.known)
        if len(unknown):
            raise InputError(
                f"{len(unknown)} of {len(images)} images have no position (first: {images.name(int(unknown[0]))}); "
                "leave them out, for instance with images.subset(images.poses.known)"
            )


def gate_deg(max_angle_deg: float | None) -> float:
    """A heading gate as a number; none is 360."""
    if max_angle_deg is None:
        return 360.0
    if not 0 <= max_angle_deg <= 180:
        raise InputError(f"max_angle_deg is {max_angle_deg}; expected degrees from 0 to 180, or None")
    return float(max_angle_deg)


def group_pairs(queries: ImageSet, database: ImageSet, within_group: bool) -> Iterator[tuple[Members, Members]]:
    """Ids on both sides that are to be compared: all with all (None), or group by group (by name)."""
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


def _graph(rule: Rule, rows: Iterable[Rows], queries: ImageSet, database: ImageSet, mirror: bool) -> SimilarityGraph:
    matrix = assemble(rows, len(queries), mirror=mirror)
    graph = SimilarityGraph(*matrix, (len(queries), len(database)), facts_of(rule, queries, database))
    return graph.keep(graph.rows != graph.indices) if queries is database and not mirror else graph


def facts_of(rule: Any, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
    """What travels with a graph: the rule, its parameters and both sides' fingerprints."""
    here = queries.fingerprint()
    return {
        "rule": type(rule).__name__,
        "measure": "radius",
        **asdict(rule),
        "one_set": queries is database,
        "queries": here,
        "database": here if queries is database else database.fingerprint(),
    }
