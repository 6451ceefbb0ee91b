"""Protocols over tables, folders and the simulated town: own photos, campus walks, street views, drives, the town."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covis import datasets
from covis.datasets import surveys
from covis.errors import InputError
from covis.evaluation.benchmark import (
    MAX_ANGLE_DEG,
    NEAR,
    NEAR_ALIKE,
    NEAR_ALIKE_RULE,
    NEAR_RULE,
    SHARED_VIEW,
    Benchmark,
    Groups,
    by_rule,
    register,
)
from covis.evaluation.metrics import limit_name
from covis.images import ImageSet, Split
from covis.labels import Radius


@register("table", "table", "all")
def table(path: Path | None) -> Benchmark:
    """Each photo of a table against the photos of other groups (of the whole table where it names no groups)."""
    from covis.reading.sources import open_images

    if path is None:
        raise InputError("benchmark 'table' needs a table of your photos; give --data FILE.csv")
    return leave_one_group_out("table", open_images(path))


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

    A model may be trained on the rest of the dataset: on `train` for its `val`, on what lies apart for a held-out part.
    """
    sides = datasets.load(dataset, path, split)
    training = partial(datasets.load, dataset, path, "train" if split == "val" else surveys.WITHOUT)
    alone = sides.queries is sides.database
    limits = {limit_name((r, MAX_ANGLE_DEG)): Radius(r, MAX_ANGLE_DEG)(*sides) for r in radii_m}
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
    """A set matched with itself, photos of one group never with each other; photos without a position are left out."""
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
