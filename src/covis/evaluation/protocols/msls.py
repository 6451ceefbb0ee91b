"""Protocols of Mapillary Street-Level Sequences: images and sequences, validation and the server's test.

Official: a query is searched in its own city, 25 m in UTM are relevant whatever the heading, queries without a
relevant image are dropped. `msls_val` counts 740 queries that way.

As the official evaluator counts: an item is searched in its own city, and two items match where any frame of one lies
within 25 m of any frame of the other. An item's subtask is that of its middle frame.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from covis import datasets
from covis.datasets.msls import SUBTASKS
from covis.errors import InputError
from covis.evaluation.benchmark import (
    MAX_ANGLE_DEG,
    NEAR_ALIKE_IN_CITY,
    NEAR_IN_CITY,
    NEAR_RULE,
    SHARED_VIEW_IN_CITY,
    Benchmark,
    by_rule,
    register,
)
from covis.evaluation.submissions import MSLS
from covis.graph import SimilarityGraph
from covis.images import WINDOW, ImageSet, Split


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
        words=f"{NEAR_RULE} and {MAX_ANGLE_DEG:g}°",
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
        training=partial(training, path),
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
    _val, _test = f"msls_val{_suffix}", f"msls_test{_suffix}"
    register(_val, "msls", "val")(partial(validation, name=_val, subtask=_subtask))
    register(_test, "msls", "test", hidden=True)(partial(server_test, name=_test, subtask=_subtask))


LENGTH = 3
"""Frames of an item, as in the official evaluator."""
TASKS = {"im2seq": (False, True), "seq2im": (True, False), "seq2seq": (True, True)}
"""Whether queries and map are sequences."""
_ITEM_RULE = f"any frame {NEAR_RULE} of any other's"


def sequence_validation(path: Path | None, task: str, length: int = LENGTH) -> Benchmark:
    """Items of the official validation's queries and map."""
    frames, items = _items(path, "val", task, length)
    return _located_items(f"msls_val_{task}", path, frames, items, notes=(_item_note(task, length),))


def sequence_test(path: Path | None, task: str, length: int = LENGTH) -> Benchmark:
    """Items of the test cities, whose positions only the server knows; scored here where the user has them."""
    name, note = f"msls_test_{task}", _item_note(task, length)
    frames, items = _items(path, "test", task, length)
    if all(side.poses.known.all() for side in frames):
        notes = (note, "scored here by the positions that lie beside the test cities")
        return _located_items(name, path, frames, items, notes=notes, submission=MSLS)
    return Benchmark(
        name,
        *items,
        None,
        f"{_ITEM_RULE}, known to the server alone",
        groups="same",
        submission=MSLS,
        training=partial(training, path),
        notes=(f"hidden truth: write a submission file; {note}",),
    )


def _item_note(task: str, length: int) -> str:
    return f"{task} with sequences of {length} frames, whose descriptor is the mean of theirs"


def _located_items(
    name: str, path: Path | None, frames: Split, items: tuple[ImageSet, ImageSet], **more: Any
) -> Benchmark:
    """A protocol of items whose frames have known positions."""
    return Benchmark(
        name,
        *items,
        _relevance(frames, items),
        _ITEM_RULE,
        groups="same",
        breakdown={"city": cities(items[0])},
        training=partial(training, path),
        **more,
    )


def _items(path: Path | None, split: str, task: str, length: int) -> tuple[Split, tuple[ImageSet, ImageSet]]:
    """All frames of both sides, and the items among them that the task counts.

    A panorama is never the middle of an item, but it may be one of its frames, as in the official evaluator.
    """
    frames = datasets.msls.load(datasets.data_path("msls", path), split, panoramas=True)
    lengths = [length if sequence else 1 for sequence in TASKS[task]]
    sides = [as_sequences(side, n) for side, n in zip(frames, lengths, strict=True)]
    queries, database = (side.subset(side.columns["all"] & ~side.columns["pano"]) for side in sides)
    return frames, (queries, database)


def as_sequences(images: ImageSet, length: int) -> ImageSet:
    """The items of `images`: each whose `length` // 2 neighbours on both sides are there, in one sequence.

    An item is its middle image; its column `window` (N, length) holds the names of its frames.
    """
    if length < 1 or length % 2 == 0:
        raise InputError(f"a sequence of {length} frames has no middle; give an odd length")
    order = np.lexsort((images.columns["row"], images.group))
    reach = np.arange(length) - length // 2
    at = np.arange(len(order))[:, None] + reach
    window, middle = order[np.clip(at, 0, len(order) - 1)], order[:, None]
    whole = ((at >= 0) & (at < len(order))).all(axis=1)
    for values in (images.group, images.columns["sequence_key"]):
        whole &= (values[window] == values[middle]).all(axis=1)
    frame = images.columns["frame_number"]
    whole &= (frame[window] - frame[middle] == reach).all(axis=1)
    kept = np.flatnonzero(whole)
    kept = kept[np.argsort(order[kept])]
    chosen = images.subset(order[kept])
    return replace(chosen, columns={**chosen.columns, WINDOW: images.names[window[kept]]})


def _relevance(frames: Split, items: tuple[ImageSet, ImageSet]) -> SimilarityGraph:
    """ψ = 1 for items with frames near each other."""
    near = NEAR_IN_CITY(*frames)
    queries, database = (_membership(i, side) for i, side in zip(items, frames, strict=True))
    found = (queries @ csr_array(near.to_scipy()) @ database.T).tocoo()
    return SimilarityGraph.from_edges(
        found.row, found.col, np.ones(found.nnz), found.shape, {**near.facts, "of": "items"}
    )


def _membership(items: ImageSet, frames: ImageSet) -> csr_array:
    """(items, frames) 1 where a frame belongs to an item."""
    window = items.columns[WINDOW]
    order = np.argsort(frames.names)
    column = order[np.searchsorted(frames.names, window.ravel(), sorter=order)]
    row = np.repeat(np.arange(len(items)), window.shape[1])
    return csr_array((np.ones(len(row), np.float32), (row, column)), shape=(len(items), len(frames)))


for _task in TASKS:
    register(f"msls_val_{_task}", "msls", "val")(partial(sequence_validation, task=_task))
    register(f"msls_test_{_task}", "msls", "test", hidden=True)(partial(sequence_test, task=_task))
