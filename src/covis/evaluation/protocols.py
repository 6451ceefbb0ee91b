"""The named protocols, each a function from a folder to a `Benchmark`; importing this fills `BENCHMARKS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from covis import datasets
from covis.core.errors import InputError
from covis.datasets import msls, surveys
from covis.datasets.msls import SUBTASKS
from covis.datasets.seven_scenes import SCENES
from covis.evaluation.benchmark import (
    NEAR,
    NEAR_ALIKE,
    NEAR_ALIKE_IN_CITY,
    NEAR_ALIKE_RULE,
    NEAR_IN_CITY,
    NEAR_RULE,
    SHARED_VIEW,
    SHARED_VIEW_IN_CITY,
    Benchmark,
    by_rule,
    register,
)
from covis.evaluation.metrics import LONG_TERM_LIMITS, limit_name
from covis.evaluation.submissions import LONG_TERM, MSLS
from covis.graph import SimilarityGraph
from covis.images import WINDOW, ImageSet, Split
from covis.labels import FovOverlap, Radius, SurfaceOverlap
from covis.labels.rules import LabelRule
from covis.poses import PLACE_TURN_DEG
from covis.ranking import Groups

# Mapillary Street-Level Sequences: images and sequences, validation and the server's test.
#
# Officially, a query is searched in its own city, map images within 25 m (UTM) are relevant at any heading, and queries
# without a relevant image are dropped. `msls_val` counts 740 queries that way.
#
# Sequences are scored as by the official evaluator: an item is searched in its own city, and two items match where any
# frame of one lies within 25 m of any frame of the other. An item's subtask is that of its middle frame.


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
    near = NEAR_IN_CITY(*frames)
    queries, database = (_membership(i, side) for i, side in zip(items, frames, strict=True))
    pairs = (queries @ csr_array(near.to_scipy()) @ database.T).tocoo()
    return SimilarityGraph.from_edges(
        pairs.row, pairs.col, np.ones(pairs.nnz), pairs.shape, {**near.facts, "of": "items"}
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


# Public datasets beside MSLS: streets by 25 m, seasons by the best match's pose, gardens and rooms by shared view


# The gardens of TB-Places and the rooms of 7Scenes. Pairs with ψ ≥ 0.5 are relevant: ψ is the shared field of view of
# 3.5 m and 90° in the garden, and the surface seen by both cameras in the rooms. The method's authors divide by all
# queries and also report average precision over all pairs.

GARDEN_VIEW = FovOverlap(radius_m=3.5, fov_deg=90.0)
_KS = (1, 2, 3, 4, 5, 10, 15, 20, 25)
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
    return by_rule(name, sides, rule, words, denominator="all", ks=_KS, radii_m=_ROOM_RADII_M, pairs=True, **more)


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
    """Tokyo 24/7 without that step: cut-outs of one panorama may fill the ranking, as in some published figures."""
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


# RobotCar Seasons v2 and Extended CMU Seasons: the best match's pose is taken as the query's; the server has the truth.
#
# Figures are the share localised within 0.25 m/2°, 0.5 m/5° and 5 m/10°, by condition and by surroundings. Where query
# poses are published (the training parts), the same figures are computed here.


_CAMERA = "rear"
"""RobotCar's only scored camera."""
COARSE_M, COARSE_DEG = LONG_TERM_LIMITS[-1]
RULE = f"within {COARSE_M:g} m and {COARSE_DEG:g}°"
HIDDEN = "hidden truth: write a submission file for visuallocalization.net"
_RADII_M = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0)
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
        radii_m=_RADII_M,
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
        radii_m=_RADII_M,
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


# Protocols over tables, folders and the simulated town: own photos, campus walks, street views, drives, the town


@register("table", "table", "all")
def table(path: Path | None, frame: str = "") -> Benchmark:
    """Each photo of a table against the photos of other groups (of the whole table where it names no groups)."""
    from covis.reading.sources import open_images

    if path is None:
        raise InputError("benchmark 'table' needs a table of your photos; give --data FILE.csv")
    return leave_one_group_out("table", open_images(path, frame=frame))


@register("campus", "campus", "west")
@register("campus_west", "campus", "west")
def campus_west(path: Path | None) -> Benchmark:
    """The western campus, at least 30 m from any training photo: each photo against other people's walks."""
    images = datasets.load("campus", path, "west").queries
    return leave_one_group_out("campus_west", images, lambda: datasets.load("campus", path, "train").queries)


def campus_part(path: Path | None, part: str) -> Benchmark:
    """A part of the campus held out of `train`, to choose settings on; scored as `campus_west`."""
    images = datasets.load("campus", path, part).queries
    training = partial(datasets.load, "campus", path, f"without_{part}")
    return leave_one_group_out(f"campus_{part}", images, lambda: training().queries)


for _part in ("north", "east"):
    register(f"campus_{_part}", "campus", _part)(partial(campus_part, part=_part))


@register("campus_walks", "campus", "new_walks")
def campus_walks(path: Path | None) -> Benchmark:
    """New walks over places whose map the model may have been trained on: a map of one's own photos."""
    sides = datasets.load("campus", path, "new_walks")
    return _alike("campus_walks", sides, training=lambda: sides.database)


@register("photos_new_walks", "photos", "new_walks")
def photos_new_walks(path: Path | None) -> Benchmark:
    """Every fourth walk of one's own photos against the others, which a model may have been trained on."""
    sides = datasets.load("photos", path, "new_walks")
    return _alike("photos_new_walks", sides, training=lambda: sides.database)


def survey(path: Path | None, dataset: str, split: str, radii_m: tuple[float, ...]) -> Benchmark:
    """Street views against other panoramas, or a second day of drives against the first: 25 m and 40°, and stricter.

    A model may be trained on the rest of the dataset: on `train` for `val`, on what lies apart for a held-out part.
    """
    sides = datasets.load(dataset, path, split)
    training = partial(datasets.load, dataset, path, "train" if split == "val" else surveys.WITHOUT)
    alone = sides.queries is sides.database
    limits = {limit_name((r, PLACE_TURN_DEG)): Radius(r, PLACE_TURN_DEG)(*sides) for r in radii_m}
    return _alike(
        f"{dataset}_{split}",
        sides,
        groups="other" if alone else "any",
        stricter=limits,
        training=(lambda: training().queries) if alone else (lambda: surveys.across_days(training())),
    )


for _name, _radii in (("cambridge", (5.0, 10.0)), ("racetrack", (2.0, 5.0, 10.0))):
    for _split in ("val", surveys.HELD_OUT):
        register(f"{_name}_{_split}", _name, _split)(partial(survey, dataset=_name, split=_split, radii_m=_radii))


def _alike(name: str, sides: Split, **more: Any) -> Benchmark:
    """25 m and 40°, graded by shared view: the rule for photos with a heading."""
    return by_rule(name, sides, NEAR_ALIKE, NEAR_ALIKE_RULE, similarity=SHARED_VIEW(*sides), **more)


def leave_one_group_out(name: str, images: ImageSet, training: Callable[[], ImageSet] | None = None) -> Benchmark:
    """A set matched with itself, but never within a group; photos without a position are left out."""
    known = images.poses.known
    groups: Groups = "other" if len(images.group_names) > 1 else "any"
    notes = () if groups == "other" else ("no groups are named, so photos of one walk may match each other",)
    if not known.all():
        if not known.any():
            raise InputError(f"none of the {len(images)} photos has a position, so nothing can be scored")
        notes = (*notes, f"{int((~known).sum())} photos without a position are left out")
        images = images.subset(known)
    return _alike(name, Split(images, images), groups=groups, training=training, notes=notes)


def folders(path: Path | None, split: str) -> Benchmark:
    """The community's `images/<split>/{queries,database}` folders with positions in the file names."""
    return by_rule(
        f"folders_{split}",
        datasets.load("utm_folders", path, split),
        NEAR,
        NEAR_RULE,
        denominator="all",
        training=lambda: datasets.load("utm_folders", path, "train").database,
        notes=("the headline divides by all queries, as the community's evaluators do",),
    )


def town(path: Path | None, split: str, name: str) -> Benchmark:
    """Streets of the simulated town that training never sees, under other weather, light and season than its map."""
    sides = datasets.load("town", path, split)
    return _alike(
        name,
        sides,
        breakdown={"condition": np.char.decode(sides.queries.columns["condition"])},
        training=lambda: datasets.load("town", path, "train").database,
        notes=("simulated images: compare models here, not with figures of real photographs",),
    )


for _split in ("val", "test"):
    register(f"folders_{_split}", "utm_folders", _split)(partial(folders, split=_split))
register("town", "town", "test")(partial(town, split="test", name="town"))
register("town_val", "town", "val")(partial(town, split="val", name="town_val"))
