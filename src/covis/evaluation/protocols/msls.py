"""Mapillary Street-Level Sequences: the official validation, its subtasks, other readings of it, and the test server.

Official: a query is searched in its own city, 25 m in UTM are relevant whatever the heading, queries without a
relevant image are dropped. `msls_val` counts 740 queries that way.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.datasets.msls import SUBTASKS
from covis.evaluation.benchmarks import BENCHMARKS, Benchmark
from covis.evaluation.protocols.rules import (
    MAX_ANGLE_DEG,
    NEAR_ALIKE_IN_CITY,
    NEAR_IN_CITY,
    NEAR_RULE,
    SHARED_VIEW_IN_CITY,
)
from covis.evaluation.submissions import MSLS
from covis.images import ImageSet


def validation(path: Path | None, name: str, subtask: str) -> Benchmark:
    """The official validation: one subtask's queries and map, each city by itself."""
    queries, database = _sides(path, "val", subtask)
    return Benchmark(
        name,
        queries,
        database,
        NEAR_IN_CITY(queries, database),
        NEAR_RULE,
        SHARED_VIEW_IN_CITY(queries, database),
        groups="same",
        breakdown={"city": cities(queries)},
        training=partial(training, path),
        notes=(f"official validation, subtask {subtask!r}, searched city by city, panoramas left out",),
    )


def validation_all(path: Path | None) -> Benchmark:
    """Another common reading: every query that is no panorama, searched in the map of both cities together."""
    queries, database = datasets.load("msls", path, "val")
    return Benchmark(
        "msls_val_all",
        queries,
        database,
        NEAR_IN_CITY(queries, database),
        NEAR_RULE,
        SHARED_VIEW_IN_CITY(queries, database),
        breakdown={"city": cities(queries)},
        training=partial(training, path),
        notes=("not the official validation: all queries (about 11,000) against one map of both cities",),
    )


def validation_40deg(path: Path | None) -> Benchmark:
    """The official queries and map with the rule of the text: 25 m and 40°."""
    queries, database = _sides(path, "val", "all")
    return Benchmark(
        "msls_val_40deg",
        queries,
        database,
        NEAR_ALIKE_IN_CITY(queries, database),
        f"{NEAR_RULE} and {MAX_ANGLE_DEG:g}°",
        SHARED_VIEW_IN_CITY(queries, database),
        groups="same",
        breakdown={"city": cities(queries)},
        training=partial(training, path),
        notes=("the official evaluator asks for 25 m alone; this is the rule that papers state",),
    )


def server_test(path: Path | None, name: str, subtask: str) -> Benchmark:
    """The test cities, whose positions only the server knows."""
    queries, database = _sides(path, "test", subtask)
    return Benchmark(
        name,
        queries,
        database,
        None,
        rule=f"{NEAR_RULE}, known to the server alone",
        groups="same",
        submission=MSLS,
        training=partial(training, path),
        notes=(f"hidden truth, subtask {subtask!r}: write a submission file",),
    )


def _sides(path: Path | None, split: str, subtask: str) -> tuple[ImageSet, ImageSet]:
    """Queries and map of one subtask."""
    both = datasets.load("msls", path, split)
    queries, database = (side.subset(side.columns[subtask]) for side in both)
    return queries, database


def training(path: Path | None) -> ImageSet:
    """The map images of the training cities."""
    return datasets.load("msls", path, "train").database


def cities(images: ImageSet) -> NDArray[np.str_]:
    """(N,) the city of each image."""
    return np.array(images.group_names)[images.group]


for _subtask in SUBTASKS:
    _suffix = "" if _subtask == "all" else f"_{_subtask}"
    BENCHMARKS.register(f"msls_val{_suffix}")(partial(validation, name=f"msls_val{_suffix}", subtask=_subtask))
    BENCHMARKS.register(f"msls_test{_suffix}")(partial(server_test, name=f"msls_test{_suffix}", subtask=_subtask))
BENCHMARKS.register("msls_val_all")(validation_all)
BENCHMARKS.register("msls_val_40deg")(validation_40deg)
