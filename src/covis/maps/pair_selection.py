"""Choosing pairs of images to match: by what descriptors retrieve, by overlap of views, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Descriptors
from covis.core.errors import InputError
from covis.describing.describers import open_describer
from covis.descriptors import Describer
from covis.field import pairs
from covis.field.pairs import ImagePairs
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels import FovOverlap, TrackOverlap
from covis.labels.tracks import read_tracks
from covis.maps.map import Map
from covis.maps.photos import reframed
from covis.maps.storage.layout import MODEL, RECORD
from covis.reading.formats.colmap import find_model
from covis.reading.sources import open_images
from covis.search import rank


@dataclass(frozen=True)
class DescribedImages:
    """Images and, if something describes them, their descriptors by ids."""

    images: ImageSet
    describe: Callable[[NDArray[np.int64]], Descriptors] | None
    path: Path
    model: str = ""
    """Fingerprint of what describes them."""

    def descriptors(self) -> Descriptors:
        """Those of all images; an error if nothing describes them."""
        if self.describe is None:
            raise InputError(f"{self.path} has no descriptors, which this needs; give --model, or a map")
        return self.describe(np.arange(len(self.images)))


def open_described(path: Path, model: Path | None) -> DescribedImages:
    """A map with its own descriptors, or images with those of a describer."""
    if not (path / RECORD).is_file():
        return _described_by(open_images(path), model, path)
    if model is not None:
        raise InputError(f"{path} is a map, which has its own descriptors; leave --model out")
    opened = Map.open(path)
    rows, descriptors = opened.state.rows, opened.descriptors
    return DescribedImages(opened.images, lambda ids: descriptors[rows[ids]], path, opened.model_fingerprint)


def open_queries(path: Path, source: Path, model: Path | None) -> DescribedImages:
    """Queries, described by the model of the images at `source`."""
    return _described_by(open_images(path), source / MODEL if (source / RECORD).is_file() else model, path)


def _described_by(images: ImageSet, model: Path | None, path: Path) -> DescribedImages:
    if model is None:
        return DescribedImages(images, None, path)
    describer = open_describer(model)
    return DescribedImages(images, _describe_some(describer, images), path, str(describer.facts["fingerprint"]))


def _describe_some(describer: Describer, images: ImageSet) -> Callable[[NDArray[np.int64]], Descriptors]:
    def describe(ids: NDArray[np.int64]) -> Descriptors:
        rows, lost = describer.describe(images.subset(ids))
        if lost.any():
            name = images.name(int(ids[int(lost.argmax())]))
            raise InputError(
                f"{int(lost.sum())} images cannot be described (first: {name}); take them out of {images.root}"
            )
        return rows

    return describe


def choose_pairs(
    queries: DescribedImages, database: DescribedImages, by: str, *, per_image: int, least: float
) -> tuple[ImagePairs, str]:
    """The pairs, and how they were chosen: `retrieval`, `overlap`, `both`, or `exhaustive` for small sets."""
    one_set = queries is database
    if max(len(queries.images), len(database.images)) <= pairs.EXHAUSTIVE:
        return pairs.exhaustive(len(queries.images), None if one_set else len(database.images)), "exhaustive"
    by = by or ("overlap" if database.describe is None else "retrieval")
    parts = []
    if by in ("retrieval", "both"):
        parts.append(_by_retrieval(queries, database, per_image))
    if by in ("overlap", "both"):
        parts.append(pairs.by_overlap(_overlap(queries, database), per_image, least, one_set=one_set))
    return pairs.joined_pairs(*parts, one_set=one_set), by


def _by_retrieval(queries: DescribedImages, database: DescribedImages, per_image: int) -> ImagePairs:
    one_set = queries is database
    rows = database.descriptors()
    ranking = rank(rows if one_set else queries.descriptors(), rows, min(len(rows), per_image + one_set))
    return pairs.by_ranking(ranking.ids, per_image, one_set=one_set)


def _overlap(queries: DescribedImages, database: DescribedImages) -> SimilarityGraph:
    """ψ by the tracks of a COLMAP model if the images are its own, else by fields of view."""
    if queries is not database:
        poses = reframed(queries.images.poses, database.images.poses.frame, str(queries.path))
        return FovOverlap()(replace(queries.images, poses=poses), database.images)
    if database.path.is_dir() and find_model(database.path) is not None:
        return TrackOverlap(read_tracks(database.path))(database.images, database.images)
    return FovOverlap()(database.images, database.images)
