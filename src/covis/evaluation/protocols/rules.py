"""Relevance rules that several protocols share."""

from __future__ import annotations

from pathlib import Path

from covis.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet

RADIUS_M = 25.0
MAX_ANGLE_DEG = 40.0


def within_radius(queries: ImageSet, database: ImageSet, *, within_group: bool = False) -> SimilarityGraph:
    """Relevant within 25 m, whatever the heading: the usual rule of street-level protocols."""
    from covis.labels import Radius

    return Radius(RADIUS_M, within_group=within_group)(queries, database)


def within_radius_and_angle(queries: ImageSet, database: ImageSet, *, within_group: bool = False) -> SimilarityGraph:
    """Relevant within 25 m and, where both headings are known, within 40°."""
    from covis.labels import Radius

    return Radius(RADIUS_M, MAX_ANGLE_DEG, within_group)(queries, database)


def needed(name: str, path: Path | None, what: str) -> Path:
    """The path of a benchmark's data, or an error that says what to give."""
    if path is None:
        raise InputError(f"benchmark {name!r} needs data; give --data {what}")
    return path
