"""Relevance rules that several protocols share, and a benchmark made by one."""

from __future__ import annotations

from typing import Any

from covis.evaluation.benchmark import Benchmark
from covis.images import ImageSet, Split
from covis.labels import FovOverlap, Radius
from covis.labels.rules import LabelRule

RADIUS_M = 25.0
MAX_ANGLE_DEG = 40.0
NEAR = Radius(RADIUS_M)
"""Within 25 m, whatever the heading: the usual rule of street-level protocols."""
NEAR_IN_CITY = Radius(RADIUS_M, within_group=True)
NEAR_ALIKE = Radius(RADIUS_M, MAX_ANGLE_DEG)
"""Within 25 m and, where both headings are known, 40°."""
NEAR_ALIKE_IN_CITY = Radius(RADIUS_M, MAX_ANGLE_DEG, within_group=True)
SHARED_VIEW = FovOverlap()
"""ψ for graded figures: how much two fields of view of 50 m and 90° share."""
SHARED_VIEW_IN_CITY = FovOverlap(within_group=True)
NEAR_RULE = f"within {RADIUS_M:g} m"
NEAR_ALIKE_RULE = f"within {RADIUS_M:g} m and, where both headings are known, {MAX_ANGLE_DEG:g}°"


def by_rule(name: str, sides: Split | tuple[ImageSet, ImageSet], rule: LabelRule, words: str, **more: Any) -> Benchmark:
    """A benchmark whose truth is a rule on poses, with whatever else its protocol says."""
    queries, database = sides
    return Benchmark(name, queries, database, rule(queries, database), words, **more)
