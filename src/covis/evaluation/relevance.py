"""Relevance rules that several protocols share, and benchmarks made by a rule."""

from __future__ import annotations

from typing import Any

from covis.evaluation.benchmark import Benchmark
from covis.images import ImageSet, Split
from covis.labels import FovOverlap, Radius
from covis.labels.rules import LabelRule
from covis.poses import PLACE_M, PLACE_TURN_DEG

NEAR = Radius(PLACE_M)
"""Within 25 m, whatever the heading: the usual rule of street-level protocols."""
NEAR_IN_CITY = Radius(PLACE_M, within_group=True)
NEAR_ALIKE = Radius(PLACE_M, PLACE_TURN_DEG)
"""Within 25 m and, where both headings are known, 40°."""
NEAR_ALIKE_IN_CITY = Radius(PLACE_M, PLACE_TURN_DEG, within_group=True)
SHARED_VIEW = FovOverlap()
"""ψ for graded figures: how much two fields of view of 50 m and 90° share."""
SHARED_VIEW_IN_CITY = FovOverlap(within_group=True)
NEAR_RULE = f"within {PLACE_M:g} m"
NEAR_ALIKE_RULE = f"within {PLACE_M:g} m and, where both headings are known, {PLACE_TURN_DEG:g}°"


def by_rule(name: str, sides: Split | tuple[ImageSet, ImageSet], rule: LabelRule, words: str, **more: Any) -> Benchmark:
    """A benchmark whose truth is a rule on poses; `more` are its other fields."""
    queries, database = sides
    return Benchmark(name, queries, database, rule(queries, database), words, **more)


def same_place_benchmark(name: str, sides: Split, **more: Any) -> Benchmark:
    """Relevant within 25 m and 40°, graded by shared view: the rule for photos with a heading."""
    return by_rule(name, sides, NEAR_ALIKE, NEAR_ALIKE_RULE, similarity=SHARED_VIEW(*sides), **more)
