"""Your own photos: each against the photos of other groups, or new walks against known ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from covis import datasets
from covis.core.errors import InputError
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.relevance import same_place_benchmark
from covis.images import ImageSet, Split
from covis.ranking import Groups
from covis.reading.sources import open_images


@register("table", "table", "all")
def table(path: Path | None, frame: str = "") -> Benchmark:
    """Each photo of a table against the photos of other groups (of the whole table where it names no groups)."""
    if path is None:
        raise InputError("benchmark 'table' needs a table of your photos; give --data FILE.csv")
    return leave_one_group_out("table", open_images(path, frame=frame))


@register("photos_new_walks", "photos", "new_walks")
def photos_new_walks(path: Path | None) -> Benchmark:
    """Every fourth walk of one's own photos against the others, which a model may have been trained on."""
    sides = datasets.load("photos", path, "new_walks")
    return same_place_benchmark("photos_new_walks", sides, training=lambda: sides.database)


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
    return same_place_benchmark(name, Split(images, images), groups=groups, training=training, notes=notes)
