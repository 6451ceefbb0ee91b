"""RobotCar Seasons v2 and Extended CMU Seasons: the best match's pose is the query's; the server knows the truth.

Figures are the share localised within 0.25 m/2°, 0.5 m/5° and 5 m/10°, by condition and by surroundings. Where query
poses are published (the training parts), the same figures are made here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covis import datasets
from covis.evaluation.benchmark import BENCHMARKS, Benchmark
from covis.evaluation.localisation import LONG_TERM_LIMITS
from covis.evaluation.submissions import LONG_TERM
from covis.images import ImageSet
from covis.labels import Radius

CAMERA = "rear"
"""RobotCar's only scored camera."""
COARSE_M, COARSE_DEG = LONG_TERM_LIMITS[-1]
RULE = f"within {COARSE_M:g} m and {COARSE_DEG:g}°"
HIDDEN = "hidden truth: write a submission file for visuallocalization.net"
RADII_M = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0)
NIGHT = ("night", "night-rain")


@BENCHMARKS.register("robotcar_v2")
def robotcar_v2(path: Path | None) -> Benchmark:
    """The rear camera's test queries against the reference drive."""
    queries, database = (_rear(side) for side in datasets.load("robotcar_v2", path, "test"))
    return Benchmark(
        "robotcar_v2",
        queries,
        database,
        None,
        f"pose of the best match {RULE}, known to the server alone",
        thresholds=LONG_TERM_LIMITS,
        breakdown=_conditions(queries),
        training=lambda: _rear(datasets.load("robotcar_v2", path, "train").queries),
        submission=LONG_TERM,
        notes=(HIDDEN,),
    )


@BENCHMARKS.register("robotcar_v2_train")
def robotcar_v2_train(path: Path | None) -> Benchmark:
    """The rear camera's training queries, whose poses are published, against the reference drive."""
    queries, database = (_rear(side) for side in datasets.load("robotcar_v2", path, "train"))
    return Benchmark(
        "robotcar_v2_train",
        queries,
        database,
        Radius(COARSE_M, COARSE_DEG)(queries, database),
        RULE,
        thresholds=LONG_TERM_LIMITS,
        radii_m=RADII_M,
        breakdown=_conditions(queries),
        notes=("the training queries, not the server's: not comparable with published figures",),
    )


@BENCHMARKS.register("cmu_extended")
def cmu_extended(path: Path | None) -> Benchmark:
    """The test slices' queries, each against its own slice of the map."""
    queries, database = datasets.load("cmu_extended", path, "test")
    return Benchmark(
        "cmu_extended",
        queries,
        database,
        None,
        f"pose of the best match {RULE}, known to the server alone",
        groups="same",
        thresholds=LONG_TERM_LIMITS,
        breakdown=_surroundings(queries),
        training=lambda: datasets.load("cmu_extended", path, "train").database,
        submission=LONG_TERM,
        notes=("a query is searched in its own slice", HIDDEN),
    )


@BENCHMARKS.register("cmu_extended_train")
def cmu_extended_train(path: Path | None) -> Benchmark:
    """Queries of the other slices whose poses are published, each against its own slice of the map."""
    queries, database = datasets.load("cmu_extended", path, "train")
    queries = queries.subset(queries.poses.known)
    return Benchmark(
        "cmu_extended_train",
        queries,
        database,
        Radius(COARSE_M, COARSE_DEG, within_group=True)(queries, database),
        RULE,
        groups="same",
        thresholds=LONG_TERM_LIMITS,
        radii_m=RADII_M,
        breakdown=_surroundings(queries),
        notes=("the training slices, not the server's: not comparable with published figures",),
    )


def _rear(images: ImageSet) -> ImageSet:
    return images.subset(images.columns["camera"] == CAMERA)


def _conditions(images: ImageSet) -> dict[str, np.ndarray]:
    condition = images.columns["condition"]
    return {"condition": condition, "light": np.where(np.isin(condition, NIGHT), "night-all", "day-all")}


def _surroundings(images: ImageSet) -> dict[str, np.ndarray]:
    return {"environment": images.columns["environment"], "condition": images.columns["condition"]}
