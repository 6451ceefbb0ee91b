"""Mapillary Street-Level Sequences, sequences of frames, scored as by the official evaluator.

An item is searched in its own city, and two items match where any frame of one lies within 25 m of any frame of the
other. An item's subtask is that of its middle frame.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covis import datasets
from covis.core.errors import InputError
from covis.datasets import msls
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.protocols.msls import cities, training_cities
from covis.evaluation.relevance import NEAR_IN_CITY, NEAR_RULE
from covis.evaluation.submissions import MSLS
from covis.graph import SimilarityGraph
from covis.images import WINDOW, ImageSet, Split

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
        training=partial(training_cities, path),
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
        training=partial(training_cities, path),
        **more,
    )


def _items(path: Path | None, split: str, task: str, length: int) -> tuple[Split, tuple[ImageSet, ImageSet]]:
    """All frames of both sides, and the items among them that the task counts.

    A panorama is never the middle of an item, but it may be one of its frames, as in the official evaluator.
    """
    frames = msls.load(datasets.data_path("msls", path), split, panoramas=True)
    lengths = [length if sequence else 1 for sequence in TASKS[task]]
    sides = [as_sequences(side, n) for side, n in zip(frames, lengths, strict=True)]
    queries, database = (side.subset(side.columns["all"] & ~side.columns["pano"]) for side in sides)
    return frames, (queries, database)


def as_sequences(images: ImageSet, length: int) -> ImageSet:
    """The items of `images`: each image that has `length` // 2 neighbours on both sides in its sequence.

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
    from scipy.sparse import csr_array

    near = NEAR_IN_CITY(*frames)
    queries, database = (_membership(i, side) for i, side in zip(items, frames, strict=True))
    pairs = (queries @ csr_array(near.to_scipy()) @ database.T).tocoo()
    return SimilarityGraph.from_edges(
        pairs.row, pairs.col, np.ones(pairs.nnz), pairs.shape, {**near.facts, "of": "items"}
    )


def _membership(items: ImageSet, frames: ImageSet) -> Any:
    """(items, frames) 1 where a frame belongs to an item."""
    from scipy.sparse import csr_array

    window = items.columns[WINDOW]
    order = np.argsort(frames.names)
    column = order[np.searchsorted(frames.names, window.ravel(), sorter=order)]
    row = np.repeat(np.arange(len(items)), window.shape[1])
    return csr_array((np.ones(len(row), np.float32), (row, column)), shape=(len(items), len(frames)))


register("msls_val_im2seq", "msls", "val")(partial(sequence_validation, task="im2seq"))
register("msls_val_seq2im", "msls", "val")(partial(sequence_validation, task="seq2im"))
register("msls_val_seq2seq", "msls", "val")(partial(sequence_validation, task="seq2seq"))
register("msls_test_im2seq", "msls", "test", hidden=True)(partial(sequence_test, task="im2seq"))
register("msls_test_seq2im", "msls", "test", hidden=True)(partial(sequence_test, task="seq2im"))
register("msls_test_seq2seq", "msls", "test", hidden=True)(partial(sequence_test, task="seq2seq"))
