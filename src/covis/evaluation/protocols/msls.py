"""Mapillary Street-Level Sequences, single images: validation and the server's test.

Officially, a query is searched in its own city, map images within 25 m (UTM) are relevant at any heading, and queries
without a relevant image are dropped. `msls_val` counts 740 queries that way.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.relevance import NEAR_ALIKE_IN_CITY, NEAR_IN_CITY, NEAR_RULE, SHARED_VIEW_IN_CITY, by_rule
from covis.evaluation.submissions import MSLS
from covis.images import ImageSet, Split
from covis.poses import PLACE_TURN_DEG


def validation(path: Path | None, name: str, subtask: str) -> Benchmark:
    """The official validation: one subtask's queries and map, each city by itself."""
    note = f"official validation, subtask {subtask!r}, searched city by city, panoramas left out"
    return _located(name, path, _sides(path, "val", subtask), groups="same", notes=(note,))


@register("msls_val_all", "msls", "val")
def validation_all(path: Path | None) -> Benchmark:
    """Another common reading: every query that is no panorama, searched in the map of both cities together."""
    note = "not the official validation: all queries (about 11,000) against one map of both cities"
    return _located("msls_val_all", path, datasets.load("msls", path, "val"), notes=(note,))


@register("msls_val_40deg", "msls", "val")
def validation_40deg(path: Path | None) -> Benchmark:
    """The official queries and map with the rule of the text: 25 m and 40°."""
    return _located(
        "msls_val_40deg",
        path,
        _sides(path, "val", "all"),
        rule=NEAR_ALIKE_IN_CITY,
        words=f"{NEAR_RULE} and {PLACE_TURN_DEG:g}°",
        groups="same",
        notes=("the official evaluator asks for 25 m alone; this is the rule that papers state",),
    )


def _located(name: str, path: Path | None, sides: Split | tuple[ImageSet, ImageSet], **more: Any) -> Benchmark:
    """What the protocols with known positions share; `more` is what one of them adds."""
    more = {"rule": NEAR_IN_CITY, "words": NEAR_RULE, **more}
    return by_rule(
        name,
        sides,
        similarity=SHARED_VIEW_IN_CITY(*sides),
        breakdown={"city": cities(sides[0])},
        training=partial(training_cities, path),
        **more,
    )


def server_test(path: Path | None, name: str, subtask: str) -> Benchmark:
    """The test cities, whose positions only the server knows; scored here where the user has them (raw.csv)."""
    queries, database = _sides(path, "test", subtask)
    if queries.poses.known.all() and database.poses.known.all():
        note = f"subtask {subtask!r}, scored here by the positions that lie beside the test cities"
        return _located(name, path, (queries, database), groups="same", notes=(note,), submission=MSLS)
    return Benchmark(
        name,
        queries,
        database,
        None,
        rule=f"{NEAR_RULE}, known to the server alone",
        groups="same",
        submission=MSLS,
        training=partial(training_cities, path),
        notes=(f"hidden truth, subtask {subtask!r}: write a submission file",),
    )


def _sides(path: Path | None, split: str, subtask: str) -> tuple[ImageSet, ImageSet]:
    """Queries and map of one subtask."""
    both = datasets.load("msls", path, split)
    queries, database = (side.subset(side.columns[subtask]) for side in both)
    return queries, database


def training_cities(path: Path | None) -> ImageSet:
    """The map images of the training cities."""
    return datasets.load("msls", path, "train").database


def cities(images: ImageSet) -> NDArray[np.str_]:
    """(N,) the city of each image."""
    return np.array(images.group_names)[images.group]


_VALIDATION_SUBTASKS = {
    "msls_val": "all",
    "msls_val_s2w": "s2w",
    "msls_val_w2s": "w2s",
    "msls_val_o2n": "o2n",
    "msls_val_n2o": "n2o",
    "msls_val_d2n": "d2n",
    "msls_val_n2d": "n2d",
}
_TEST_SUBTASKS = {
    "msls_test": "all",
    "msls_test_s2w": "s2w",
    "msls_test_w2s": "w2s",
    "msls_test_o2n": "o2n",
    "msls_test_n2o": "n2o",
    "msls_test_d2n": "d2n",
    "msls_test_n2d": "n2d",
}
for _name, _subtask in _VALIDATION_SUBTASKS.items():
    register(_name, "msls", "val")(partial(validation, name=_name, subtask=_subtask))
for _name, _subtask in _TEST_SUBTASKS.items():
    register(_name, "msls", "test", hidden=True)(partial(server_test, name=_name, subtask=_subtask))
