"""Mapillary Street-Level Sequences: the official validation, its subtasks, other readings of it, and the test server.

Official: a query is searched in its own city, 25 m in UTM are relevant whatever the heading, queries without a
relevant image are dropped. `msls_val` counts 740 queries that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.datasets.msls import SUBTASKS
from covis.errors import InputError
from covis.evaluation.benchmarks import BENCHMARKS, Benchmark
from covis.evaluation.protocols.rules import MAX_ANGLE_DEG, RADIUS_M, needed, within_radius, within_radius_and_angle
from covis.evaluation.submissions import MSLS
from covis.images import ImageSet

FOLDER = "the MSLS folder that holds train_val/ and test/"
TEST_KS = (1, 5, 10, 20)


def validation(path: Path | None, name: str, subtask: str) -> Benchmark:
    """The official validation: one subtask's queries and map, each city by itself."""
    queries, database = _sides(name, path, "val", subtask)
    return Benchmark(
        name,
        queries,
        database,
        within_radius(queries, database, within_group=True),
        rule=f"within {RADIUS_M:g} m",
        groups="same",
        breakdown={"city": cities(queries)},
        notes=(f"official validation, subtask {subtask!r}, searched city by city, panoramas left out",),
    )


def validation_all(path: Path | None, name: str = "msls_val_all") -> Benchmark:
    """Another common reading: every query that is no panorama, searched in the map of both cities together."""
    queries, database = datasets.load("msls", needed(name, path, FOLDER), "val")
    return Benchmark(
        name,
        queries,
        database,
        within_radius(queries, database, within_group=True),
        rule=f"within {RADIUS_M:g} m",
        breakdown={"city": cities(queries)},
        notes=("not the official validation: all queries (about 11,000) against one map of both cities",),
    )


def validation_40deg(path: Path | None, name: str = "msls_val_40deg") -> Benchmark:
    """The official queries and map with the rule of the text: 25 m and 40°."""
    queries, database = _sides(name, path, "val", "all")
    return Benchmark(
        name,
        queries,
        database,
        within_radius_and_angle(queries, database, within_group=True),
        rule=f"within {RADIUS_M:g} m and {MAX_ANGLE_DEG:g}°",
        groups="same",
        breakdown={"city": cities(queries)},
        notes=("the official evaluator asks for 25 m alone; this is the rule that papers state",),
    )


def test(path: Path | None, name: str, subtask: str) -> Benchmark:
    """The test cities, whose positions only the server knows."""
    queries, database = _sides(name, path, "test", subtask)
    return Benchmark(
        name,
        queries,
        database,
        None,
        rule=f"within {RADIUS_M:g} m, known to the server alone",
        groups="same",
        ks=TEST_KS,
        submission=MSLS,
        notes=(f"hidden truth, subtask {subtask!r}: write a submission file",),
    )


def _sides(name: str, path: Path | None, split: str, subtask: str) -> tuple[ImageSet, ImageSet]:
    """Queries and map of one subtask."""
    both = datasets.load("msls", needed(name, path, FOLDER), split)
    queries, database = (side.subset(side.columns[subtask]) for side in both)
    return queries, database


def cities(images: ImageSet) -> NDArray[np.str_]:
    """(N,) the city of each image."""
    return np.array(images.group_names)[images.group]


def as_sequences(images: ImageSet, length: int) -> ImageSet:
    """The sequence tasks' items: each image whose `length` // 2 neighbours on both sides are there, in one sequence.

    An item is its middle image; its column `frames` holds the comma-joined keys that the server wants.
    """
    if length < 1 or length % 2 == 0:
        raise InputError(f"a sequence of {length} frames has no middle; give an odd length")
    row, key = images.columns["row"], images.columns["key"]
    sequence, frame = images.columns["sequence_key"], images.columns["frame_number"]
    reach = np.arange(length) - length // 2
    order = np.lexsort((row, images.group))
    at = np.arange(len(order))[:, None] + reach
    inside = ((at >= 0) & (at < len(order))).all(axis=1)
    frames = order[np.clip(at, 0, len(order) - 1)]
    middle = order[:, None]
    whole = (
        inside & (images.group[frames] == images.group[middle]).all(1) & (sequence[frames] == sequence[middle]).all(1)
    )
    whole &= (frame[frames] - frame[middle] == reach).all(axis=1)
    kept = np.flatnonzero(whole)
    kept = kept[np.argsort(order[kept])]
    joined = np.array([",".join(k.decode() for k in key[f]) for f in frames[kept]])
    chosen = images.subset(order[kept])
    return replace(chosen, columns={**chosen.columns, "frames": joined})


def _register(name: str, make: Callable[[Path | None], Benchmark]) -> None:
    BENCHMARKS.register(name)(make)


for _subtask in SUBTASKS:
    _suffix = "" if _subtask == "all" else f"_{_subtask}"
    _register(f"msls_val{_suffix}", partial(validation, name=f"msls_val{_suffix}", subtask=_subtask))
    _register(f"msls_test{_suffix}", partial(test, name=f"msls_test{_suffix}", subtask=_subtask))
_register("msls_val_all", validation_all)
_register("msls_val_40deg", validation_40deg)
