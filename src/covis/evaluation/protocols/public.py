"""Public datasets beside MSLS: streets by 25 m, seasons by the best match's pose, gardens and rooms by shared view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covis import datasets
from covis.datasets.seven_scenes import SCENES
from covis.evaluation.benchmark import NEAR, NEAR_RULE, Benchmark, Groups, by_rule, register
from covis.evaluation.metrics import LONG_TERM_LIMITS
from covis.evaluation.submissions import LONG_TERM
from covis.images import ImageSet, Split
from covis.labels import FovOverlap, Radius, SurfaceOverlap
from covis.labels.rules import LabelRule

# The gardens of TB-Places and the rooms of 7Scenes. Relevant is ψ ≥ 0.5: field of view of 3.5 m and 90° in the garden,
# surface seen by both cameras in the rooms. The method's authors divide by all queries and also report average
# precision over all pairs.

GARDEN_VIEW = FovOverlap(radius_m=3.5, fov_deg=90.0)
KS = (1, 2, 3, 4, 5, 10, 15, 20, 25)
_ROOM_RADII_M = (0.1, 0.25, 0.5, 1.0, 2.0, 3.5, 5.0)


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
    return by_rule(name, sides, rule, words, denominator="all", ks=KS, radii_m=_ROOM_RADII_M, pairs=True, **more)


for _split in ("w17_w18", "w18"):
    register(f"tb_places_{_split}", "tb_places", _split)(partial(tb_places, split=_split))
for _scene in SCENES:
    register(f"7scenes_{_scene}", "7scenes", _scene)(partial(seven_scenes, scene=_scene))


# Pittsburgh and Tokyo: right within 25 m


_BOTH = "the headline divides by all queries, as the original evaluator does"


def _streets(name: str, path: Path | None, dataset: str, split: str, **more: Any) -> Benchmark:
    """What the four share; `more` is what one of them adds."""
    more = {"words": NEAR_RULE, "notes": (), **more}
    notes = (*more.pop("notes"), _BOTH)
    return by_rule(name, datasets.load(dataset, path, split), NEAR, denominator="all", notes=notes, **more)


def pittsburgh(path: Path | None, dataset: str, split: str) -> Benchmark:
    """A split of Pittsburgh: one map, no second rule."""
    return _streets(
        f"{dataset}_{split}",
        path,
        dataset,
        split,
        training=lambda: datasets.load(dataset, path, "train").database,
        notes=("the validation split: not the set of the published figures",) if split == "val" else (),
    )


for _name in ("pitts30k", "pitts250k"):
    for _split in ("val", "test"):
        register(f"{_name}_{_split}", _name, _split)(partial(pittsburgh, dataset=_name, split=_split))


@register("tokyo247", "tokyo247", "test")
def tokyo247(path: Path | None) -> Benchmark:
    """Tokyo 24/7 as its authors score it: 12·k cut-outs are searched and the best of each panorama is kept."""
    folded: dict[str, Any] = {"fold": "panorama", "search_factor": 12}
    note = "of the 12 cut-outs of a panorama only the best counts"
    return _streets("tokyo247", path, "tokyo247", "test", **folded, notes=(note,))


@register("tokyo247_cutouts", "tokyo247", "test")
def tokyo247_cutouts(path: Path | None) -> Benchmark:
    """Tokyo 24/7 without that step: cut-outs of one panorama may fill the ranking. Some published figures count so."""
    note = "cut-outs of one panorama count one by one: not the original protocol"
    return _streets("tokyo247_cutouts", path, "tokyo247", "test", notes=(note,))


@register("tokyotm_val", "tokyotm", "val")
def tokyotm_val(path: Path | None) -> Benchmark:
    """TokyoTM's validation: 10·k are searched, and results of the query's own time stamp are dropped."""
    return _streets(
        "tokyotm_val",
        path,
        "tokyotm",
        "val",
        words=f"{NEAR_RULE}, taken at another time",
        apart="time_stamp",
        search_factor=10,
        training=lambda: datasets.load("tokyotm", path, "train").database,
        notes=("results of the query's own time stamp are dropped",),
    )


# RobotCar Seasons v2 and Extended CMU Seasons: the best match's pose is the query's; the server knows the truth.
#
# Figures are the share localised within 0.25 m/2°, 0.5 m/5° and 5 m/10°, by condition and by surroundings. Where query
# poses are published (the training parts), the same figures are made here.


CAMERA = "rear"
"""RobotCar's only scored camera."""
COARSE_M, COARSE_DEG = LONG_TERM_LIMITS[-1]
RULE = f"within {COARSE_M:g} m and {COARSE_DEG:g}°"
HIDDEN = "hidden truth: write a submission file for visuallocalization.net"
RADII_M = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0)
NIGHT = ("night", "night-rain")


@register("robotcar_v2", "robotcar_v2", "test", hidden=True)
def robotcar_v2(path: Path | None) -> Benchmark:
    """The rear camera's test queries against the whole reference drive, as the method's authors search."""
    sides = [_rear(side) for side in datasets.load("robotcar_v2", path, "test")]
    training = partial(datasets.load, "robotcar_v2", path, "train")
    return _hidden("robotcar_v2", sides, _conditions(sides[0]), lambda: _rear(training().queries))


@register("robotcar_v2_train", "robotcar_v2", "train")
def robotcar_v2_train(path: Path | None) -> Benchmark:
    """The rear camera's training queries, whose poses are published, against the reference drive."""
    queries, database = (_rear(side) for side in datasets.load("robotcar_v2", path, "train"))
    return by_rule(
        "robotcar_v2_train",
        (queries, database),
        Radius(COARSE_M, COARSE_DEG),
        RULE,
        thresholds=LONG_TERM_LIMITS,
        radii_m=RADII_M,
        breakdown=_conditions(queries),
        notes=("the training queries, not the server's: not comparable with published figures",),
    )


@register("cmu_extended_one_map", "cmu_extended", "test", hidden=True)
def cmu_extended_one_map(path: Path | None) -> Benchmark:
    """The test slices' queries against one map of all slices, as the method's authors search."""
    return _cmu("cmu_extended_one_map", path, groups="any", note="one map of all slices, as the published figures")


@register("cmu_extended", "cmu_extended", "test", hidden=True)
def cmu_extended(path: Path | None) -> Benchmark:
    """The test slices' queries, each against its own slice of the map: an easier task than `cmu_extended_one_map`."""
    note = "a query is searched in its own slice: not the protocol of the published figures"
    return _cmu("cmu_extended", path, groups="same", note=note)


@register("cmu_extended_train", "cmu_extended", "train")
def cmu_extended_train(path: Path | None) -> Benchmark:
    """Queries of the other slices whose poses are published, each against its own slice of the map."""
    queries, database = datasets.load("cmu_extended", path, "train")
    queries = queries.subset(queries.poses.known)
    return by_rule(
        "cmu_extended_train",
        (queries, database),
        Radius(COARSE_M, COARSE_DEG, within_group=True),
        RULE,
        groups="same",
        thresholds=LONG_TERM_LIMITS,
        radii_m=RADII_M,
        breakdown=_surroundings(queries),
        notes=("the training slices, not the server's: not comparable with published figures",),
    )


def _cmu(name: str, path: Path | None, *, groups: Groups, note: str) -> Benchmark:
    sides = list(datasets.load("cmu_extended", path, "test"))
    training = partial(datasets.load, "cmu_extended", path, "train")
    hidden = _hidden(name, sides, _surroundings(sides[0]), lambda: training().database)
    return replace(hidden, groups=groups, notes=(note, *hidden.notes))


def _hidden(
    name: str, sides: Sequence[ImageSet], breakdown: dict[str, np.ndarray], training: Callable[[], ImageSet]
) -> Benchmark:
    """A benchmark of which only the server knows the query poses."""
    return Benchmark(
        name,
        sides[0],
        sides[1],
        None,
        f"pose of the best match {RULE}, known to the server alone",
        thresholds=LONG_TERM_LIMITS,
        breakdown=breakdown,
        training=training,
        submission=LONG_TERM,
        notes=(HIDDEN,),
    )


def _rear(images: ImageSet) -> ImageSet:
    return images.subset(images.columns["camera"] == CAMERA)


def _conditions(images: ImageSet) -> dict[str, np.ndarray]:
    condition = images.columns["condition"]
    return {"condition": condition, "light": np.where(np.isin(condition, NIGHT), "night-all", "day-all")}


def _surroundings(images: ImageSet) -> dict[str, np.ndarray]:
    return {"environment": images.columns["environment"], "condition": images.columns["condition"]}
