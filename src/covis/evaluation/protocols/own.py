"""Protocols over tables and over the simulated town: a user's own photos, the campus walks, the embedded default."""

from __future__ import annotations

from pathlib import Path

from covis import datasets
from covis.evaluation.benchmarks import BENCHMARKS, Benchmark, Groups
from covis.evaluation.protocols.rules import MAX_ANGLE_DEG, RADIUS_M, needed, within_radius_and_angle
from covis.images import ImageSet

RULE = f"within {RADIUS_M:g} m and, where both headings are known, {MAX_ANGLE_DEG:g}°"


@BENCHMARKS.register("table")
def table(path: Path | None) -> Benchmark:
    """Each photo of a table against the photos of other groups (of the whole table where it names no groups)."""
    from covis.datasets.table import read_table

    return leave_one_group_out("table", read_table(needed("table", path, "a table (CSV or Parquet) of your photos")))


@BENCHMARKS.register("campus_west")
def campus_west(path: Path | None) -> Benchmark:
    """The western campus, at least 30 m from any training photo: each photo against other people's walks."""
    folder = needed("campus_west", path, "the folder that holds west.csv")
    return leave_one_group_out("campus_west", datasets.load("campus", folder, "west").queries)


BENCHMARKS.register("campus")(campus_west)


def leave_one_group_out(name: str, images: ImageSet) -> Benchmark:
    """A set matched with itself, photos of one group never with each other."""
    groups: Groups = "other" if len(images.group_names) > 1 else "any"
    notes = () if groups == "other" else ("no groups are named, so photos of one walk may match each other",)
    return Benchmark(
        name, images, images, within_radius_and_angle(images, images), rule=RULE, groups=groups, notes=notes
    )
