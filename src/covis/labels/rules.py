"""Label rules: (queries, database) → graph of graded similarities.

A rule is a value: its fields are all that decides the labels, and they travel with the graph. Matching a set with
itself (one object twice) gives a symmetric graph without its diagonal. `advance` is called with the number of
queries that were labelled since it was called before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from covis.errors import InputError, unknown_name
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.fov import Measure, check_measure, sides

if TYPE_CHECKING:
    from covis.labels.pointclouds import PointCloud

Advance = Callable[[int], None] | None
Occlusion = Literal["none", "zbuffer"]


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
        from covis.labels.whole_sets import fov_graph

        check_measure(self.measure)
        check_gate(self.max_angle_deg)
        (ra, rb), (fa, fb) = sides(self.radius_m), sides(self.fov_deg)
        if queries is database and (ra != rb or fa != fb):
            raise InputError("one set matched with itself takes one radius_m and one fov_deg for both sides")
        require_positions(queries, database)
        return fov_graph(self, queries, database, advance)


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
        from covis.labels.whole_sets import radius_graph

        if not 0 < self.radius_m < np.inf:
            raise InputError(f"radius_m is {self.radius_m}; expected metres above 0")
        check_gate(self.max_angle_deg)
        require_positions(queries, database)
        return radius_graph(self, queries, database, advance)


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
        return surface_graph(self, queries, database, advance)


Rule = FovOverlap | Radius | SurfaceOverlap


def require_positions(*sets: ImageSet) -> None:
    """An error that counts and names images without a position; labelling them 0 would be a lie."""
    for images in sets:
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
    given = {f.name: getattr(rule, f.name) for f in fields(rule)} if isinstance(rule, SurfaceOverlap) else asdict(rule)
    return {
        "rule": type(rule).__name__,
        "measure": "radius",
        **given,
        "one_set": queries is database,
        "queries": here,
        "database": here if queries is database else database.fingerprint(),
    }
