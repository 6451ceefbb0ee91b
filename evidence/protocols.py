"""Protocols over photographs that are not public: campus walks, street views of Cambridge, a race track."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from covis import datasets
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.pose_errors import limit_name
from covis.evaluation.protocols.photos import leave_one_group_out
from covis.evaluation.relevance import same_place_benchmark
from covis.labels import Radius
from covis.poses import PLACE_TURN_DEG
from evidence.datasets import WITHOUT, across_days

_STREET_RADII_M = (5.0, 10.0)
_TRACK_RADII_M = (2.0, 5.0, 10.0)


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


register("campus_north", "campus", "north")(partial(campus_part, part="north"))
register("campus_east", "campus", "east")(partial(campus_part, part="east"))


@register("campus_walks", "campus", "new_walks")
def campus_walks(path: Path | None) -> Benchmark:
    """New walks over places whose map the model may have been trained on: a map of one's own photos."""
    sides = datasets.load("campus", path, "new_walks")
    return same_place_benchmark("campus_walks", sides, training=lambda: sides.database)


def survey(path: Path | None, dataset: str, split: str, radii_m: tuple[float, ...]) -> Benchmark:
    """Street views against other panoramas, or a second day of drives against the first: 25 m and 40°, and stricter.

    A model may be trained on the rest of the dataset: on `train` for `val`, on what lies apart for a held-out part.
    """
    sides = datasets.load(dataset, path, split)
    training = partial(datasets.load, dataset, path, "train" if split == "val" else WITHOUT)
    alone = sides.queries is sides.database
    limits = {limit_name((r, PLACE_TURN_DEG)): Radius(r, PLACE_TURN_DEG)(*sides) for r in radii_m}
    return same_place_benchmark(
        f"{dataset}_{split}",
        sides,
        groups="other" if alone else "any",
        stricter=limits,
        training=(lambda: training().queries) if alone else (lambda: across_days(training())),
    )


_cambridge = partial(survey, dataset="cambridge", radii_m=_STREET_RADII_M)
_racetrack = partial(survey, dataset="racetrack", radii_m=_TRACK_RADII_M)
register("cambridge_val", "cambridge", "val")(partial(_cambridge, split="val"))
register("cambridge_held_out", "cambridge", "held_out")(partial(_cambridge, split="held_out"))
register("racetrack_val", "racetrack", "val")(partial(_racetrack, split="val"))
register("racetrack_held_out", "racetrack", "held_out")(partial(_racetrack, split="held_out"))
