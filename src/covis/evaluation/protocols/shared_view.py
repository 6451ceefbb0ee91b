"""The gardens of TB-Places and the rooms of 7Scenes: pairs that share at least half of their view are relevant.

ψ is the shared field of view of 3.5 m and 90° in the garden, and the surface seen by both cameras in the rooms. The
method's authors divide by all queries and also report average precision over all pairs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from covis import datasets
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.relevance import by_rule
from covis.images import Split
from covis.labels import FovOverlap, SurfaceOverlap
from covis.labels.rules import LabelRule

GARDEN_VIEW = FovOverlap(radius_m=3.5, fov_deg=90.0)
_KS = (1, 2, 3, 4, 5, 10, 15, 20, 25)


def tb_places(path: Path | None, split: str) -> Benchmark:
    """`w17_w18`: W18 against the map W17; `w18`: its published halves."""
    return _shared_view(
        f"tb_places_{split}",
        datasets.load("tb_places", path, split),
        GARDEN_VIEW,
        "field of view of 3.5 m and 90° shared by at least half",
        training=lambda: datasets.load("tb_places", path, "w17_train").queries,
        notes=("the headline divides by all queries, as the method's authors do",),
    )


def seven_scenes(path: Path | None, scene: str) -> Benchmark:
    """Test frames of one scene against its training frames."""
    return _shared_view(
        f"7scenes_{scene}",
        datasets.load("7scenes", path, scene),
        SurfaceOverlap(),
        "at least half of the surface points that either camera sees are seen by both",
        training=lambda: datasets.load("7scenes", path, f"{scene}/train").queries,
        notes=("training frames are the map, so fitting on either is the same",),
    )


def _shared_view(name: str, sides: Split, rule: LabelRule, words: str, **more: Any) -> Benchmark:
    return by_rule(name, sides, rule, words, denominator="all", ks=_KS, pairs=True, **more)


register("tb_places_w17_w18", "tb_places", "w17_w18")(partial(tb_places, split="w17_w18"))
register("tb_places_w18", "tb_places", "w18")(partial(tb_places, split="w18"))
register("7scenes_chess", "7scenes", "chess")(partial(seven_scenes, scene="chess"))
register("7scenes_fire", "7scenes", "fire")(partial(seven_scenes, scene="fire"))
register("7scenes_heads", "7scenes", "heads")(partial(seven_scenes, scene="heads"))
register("7scenes_office", "7scenes", "office")(partial(seven_scenes, scene="office"))
register("7scenes_pumpkin", "7scenes", "pumpkin")(partial(seven_scenes, scene="pumpkin"))
register("7scenes_redkitchen", "7scenes", "redkitchen")(partial(seven_scenes, scene="redkitchen"))
register("7scenes_stairs", "7scenes", "stairs")(partial(seven_scenes, scene="stairs"))
