"""Relevance rules that several protocols share."""

from __future__ import annotations

from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import angle_between

RADIUS_M = 25.0
MAX_ANGLE_DEG = 40.0


def within_radius(queries: ImageSet, database: ImageSet, radius_m: float = RADIUS_M) -> SimilarityGraph:
    """Relevant within `radius_m`, whatever the heading: the usual rule of street-level protocols."""
    from covis.labels import Radius

    return Radius(radius_m=radius_m)(queries, database)


def within_radius_and_angle(queries: ImageSet, database: ImageSet) -> SimilarityGraph:
    """Relevant within 25 m and, where both headings are known, within 40°."""
    near = within_radius(queries, database)
    turn = angle_between(queries.poses.heading[near.rows], database.poses.heading[near.indices])
    return near.keep(~(turn > MAX_ANGLE_DEG), max_angle_deg=MAX_ANGLE_DEG, unknown_heading="distance alone")
