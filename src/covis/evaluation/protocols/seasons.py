"""RobotCar Seasons v2 and Extended CMU Seasons: the best match's pose is taken as the query's; the server has the truth.

Figures are the share localised within 0.25 m/2°, 0.5 m/5° and 5 m/10°, by condition and by surroundings. Where query
poses are published (the training parts), the same figures are computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from covis import datasets
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.pose_errors import LONG_TERM_LIMITS
from covis.evaluation.relevance import by_rule
from covis.evaluation.submissions import LONG_TERM
from covis.images import ImageSet
from covis.labels import Radius
from covis.ranking import Groups

_CAMERA = "rear"
"""RobotCar's only scored camera."""
COARSE_M, COARSE_DEG = LONG_TERM_LIMITS[-1]
RULE = f"within {COARSE_M:g} m and {COARSE_DEG:g}°"
HIDDEN = "hidden truth: write a submission file for visuallocalization.net"
NIGHT = ("night", "night-rain")


@register("robotcar_v2", "robotcar_v2", "test", hidden=True)
def robotcar_v2(path: Path | None) -> Benchmark:
    """The rear camera's test queries against its images of the whole reference drive, as the method's authors search."""
    sides = [_rear(side) for side in datasets.load("robotcar_v2", path, "test")]
    training = partial(datasets.load, "robotcar_v2", path, "train")
    return _hidden("robotcar_v2", sides, _conditions(sides[0]), lambda: _rear(training().queries))


@register("robotcar_v2_train", "robotcar_v2", "train")
def robotcar_v2_train(path: Path | None) -> Benchmark:
    """The rear camera's training queries, whose poses are published, against its images of the reference drive."""
    queries, database = (_rear(side) for side in datasets.load("robotcar_v2", path, "train"))
    return by_rule(
        "robotcar_v2_train",
        (queries, database),
        Radius(COARSE_M, COARSE_DEG),
        RULE,
        thresholds=LONG_TERM_LIMITS,
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
    """A benchmark whose query poses only the server knows."""
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
    return images.subset(images.columns["camera"] == _CAMERA)


def _conditions(images: ImageSet) -> dict[str, np.ndarray]:
    condition = images.columns["condition"]
    return {"condition": condition, "light": np.where(np.isin(condition, NIGHT), "night-all", "day-all")}


def _surroundings(images: ImageSet) -> dict[str, np.ndarray]:
    return {"environment": images.columns["environment"], "condition": images.columns["condition"]}
