"""Label rules: (queries, database) → graph of graded similarities, with what labelling will cost.

A rule is a value: its fields are all that decides the labels, and they travel with the graph. Matching a set with
itself (one object twice) gives a symmetric graph without its diagonal. `advance` is called with the number of
queries that were labelled since it was called before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from covis.errors import InputError, unknown_name
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.building import Advance, Members, Rows, build, group_pairs
from covis.labels.fov import MEASURES, Measure, Views, cameras, check_measure, sides, views
from covis.poses import require_metres

if TYPE_CHECKING:
    from covis.labels.city import Places
    from covis.labels.clouds import PointCloud
    from covis.labels.surface import Occlusion
    from covis.labels.tracks import Tracks


@dataclass(frozen=True)
class FovOverlap:
    """ψ = how much the fields of view of two cameras share on the ground.

    A field of view is the sector of `radius_m` and `fov_deg` around the heading; a camera of unknown heading sees the
    full circle.
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

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        check_measure(self.measure)
        check_gate(self.max_angle_deg)
        (ra, rb), (fa, fb) = sides(self.radius_m), sides(self.fov_deg)
        if queries is database and (ra != rb or fa != fb):
            raise InputError("one set matched with itself takes one radius_m and one fov_deg for both sides")
        require_positions(queries, database, metres=True)
        return _fov_graph(self, queries, database, advance)


@dataclass(frozen=True)
class Radius:
    """ψ = 1 for pairs within `radius_m` (and `max_angle_deg`, where both headings are known)."""

    radius_m: float = 25.0
    """Metres, inclusive."""
    max_angle_deg: float | None = None
    """Degrees between headings, inclusive; unknown headings pass."""
    within_group: bool = False
    """Only pairs of one group (cities may share coordinates)."""

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        if not 0 < self.radius_m < np.inf:
            raise InputError(f"radius_m is {self.radius_m}; expected metres above 0")
        check_gate(self.max_angle_deg)
        require_positions(queries, database, metres=True)
        return _radius_graph(self, queries, database, advance)


@dataclass(frozen=True)
class SurfaceOverlap:
    """ψ = how much two cameras with 6DOF poses and intrinsics see of the same points of a scene."""

    cloud: PointCloud | None = None
    """The scene's points in the images' frame; without one they are fused from the images' depth maps."""
    occlusion: Occlusion = "none"
    """`none`: points that project into the image are seen; `zbuffer`: unless nearer ones hide them."""
    measure: Measure = "iou"
    """Shared points ÷ those seen by either (`iou`), by the one that sees fewer (`overlap`), by the query."""
    within_group: bool = False
    """Only pairs of one group, each group with its own cloud where clouds are fused."""
    zero_below: float = 1e-9
    """ψ below this counts as 0."""

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        from covis.labels.surface import OCCLUSIONS, surface_graph

        check_measure(self.measure)
        if self.occlusion not in OCCLUSIONS:
            raise unknown_name("occlusion", self.occlusion, OCCLUSIONS)
        require_positions(queries, database)
        facts = facts_of(self, queries, database)
        return surface_graph(queries, database, self.cloud, facts=facts, advance=advance)


@dataclass(frozen=True)
class TrackOverlap:
    """ψ = how many points of a sparse model two of its images both see, ÷ points. Needs neither depth nor metres."""

    tracks: Tracks
    """Which points each image sees (`covis.labels.tracks.read_tracks`)."""
    measure: Measure = "overlap"
    """Shared points ÷ those of the one that sees fewer (`overlap`), of the query, of either (`iou`)."""
    within_group: bool = False
    """Only pairs of one group."""

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        from covis.labels.tracks import track_graph

        check_measure(self.measure)
        facts = facts_of(self, queries, database)
        return track_graph(
            self.tracks,
            queries,
            database,
            measure=self.measure,
            within_group=self.within_group,
            facts=facts,
            advance=advance,
        )


Rule = FovOverlap | Radius | SurfaceOverlap | TrackOverlap


def require_positions(*sets: ImageSet, metres: bool = False) -> None:
    """An error that counts and names images without a position; labelling them 0 would be a lie.

    With `metres`, positions of unknown scale are refused too.
    """
    for images in sets:
        if metres:
            require_metres(images.poses, str(images.root))
        unknown = np.flatnonzero(~images.poses.known)
        if len(unknown):
            raise InputError(
                f"{len(unknown)} of {len(images)} images have no position (first: {images.name(int(unknown[0]))}); "
                "leave them out, for instance with images.subset(images.poses.known)"
            )


def check_gate(max_angle_deg: float | None) -> None:
    """An error for a heading gate that is none."""
    if max_angle_deg is not None and not 0 <= max_angle_deg <= 180:
        raise InputError(f"max_angle_deg is {max_angle_deg}; expected degrees from 0 to 180, or None")


def facts_of(rule: Rule, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
    """What travels with a graph: the rule, its parameters and both sides' fingerprints."""
    here = queries.fingerprint()
    whole = isinstance(rule, SurfaceOverlap | TrackOverlap)  # copying a cloud or tracks would cost their memory again
    given = {f.name: getattr(rule, f.name) for f in fields(rule)} if whole else asdict(rule)
    return {
        "rule": type(rule).__name__,
        "measure": "radius",
        **given,
        "one_set": queries is database,
        "queries": here,
        "database": here if queries is database else database.fingerprint(),
    }


def _fov_graph(rule: FovOverlap, queries: ImageSet, database: ImageSet, advance: Advance) -> SimilarityGraph:
    """ψ by overlap of fields of view."""
    from covis.labels.city import Options, label_rows

    (ra, rb), (fa, fb) = sides(rule.radius_m), sides(rule.fov_deg)
    a = views(cameras(queries.poses.xy, queries.poses.heading, ra, fa))
    one_set = queries is database
    b = a if one_set else views(cameras(database.poses.xy, database.poses.heading, rb, fb))
    # the query's own share differs between directions as soon as views differ in size
    mirror = one_set and (rule.measure != "query_overlap" or len(np.unique(a.fov)) <= 1)
    options = Options(MEASURES.index(rule.measure), _gate(rule), rule.facing, float(rule.zero_below), mirror)

    def label(i: Members, j: Members) -> Iterator[Rows]:
        return label_rows(_some(a, i), _some(b, j), options)

    facts = facts_of(rule, queries, database)
    return build(queries, database, label, facts=facts, mirror=mirror, advance=advance)


def _radius_graph(rule: Radius, queries: ImageSet, database: ImageSet, advance: Advance) -> SimilarityGraph:
    """ψ = 1 within a radius."""
    from covis.labels.city import radius_rows

    one_set = queries is database

    def label(i: Members, j: Members) -> Iterator[Rows]:
        return radius_rows(_places(queries, i), _places(database, j), rule.radius_m, _gate(rule), one_set)

    facts = facts_of(rule, queries, database)
    return build(queries, database, label, facts=facts, mirror=one_set, advance=advance)


def _gate(rule: FovOverlap | Radius) -> float:
    return 360.0 if rule.max_angle_deg is None else float(rule.max_angle_deg)


def _some(view: Views, ids: Members) -> Views:
    return view if ids is None else Views(*(array[ids] for array in view))


def _places(images: ImageSet, ids: Members) -> Places:
    from covis.labels.city import Places

    pick = slice(None) if ids is None else ids
    xy, heading = images.poses.xy[pick], images.poses.heading[pick]
    return Places(xy[:, 0].copy(), xy[:, 1].copy(), np.where(np.isnan(heading), -1.0, heading))


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
    elif isinstance(rule, TrackOverlap):
        pairs, seconds = _tracked(rule, queries, database)
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
    from covis.labels.clouds import MAX_FRAMES, fuse_depth
    from covis.labels.surface import arrange, look, surface_rows

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


def _tracked(rule: TrackOverlap, queries: ImageSet, database: ImageSet) -> tuple[float, float]:
    """All of it grows with the queries."""
    some = _sample(queries, _SAMPLE)
    start = time.perf_counter()
    graph = rule(some, database)
    share = len(queries) / len(some)
    selves = len(queries) if queries is database else 0
    return graph.pairs * share - selves, (time.perf_counter() - start) * share


def _sample(images: ImageSet, most: int) -> ImageSet:
    return images.subset(np.unique(np.linspace(0, len(images) - 1, min(most, len(images))).astype(np.int64)))
