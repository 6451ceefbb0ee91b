"""From descriptors to answers: search, judge, fuse the matches of one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.descriptors import Matrix
from covis.images import ImageSet
from covis.maps.answers import Answer, Match, Place, Position, is_absent, unusable
from covis.maps.calibration import RATE, Calibration
from covis.maps.elsewhere import Bank
from covis.maps.evidence import FAR, Found, Fused, fuse, gather, weights
from covis.maps.photos import text_of
from covis.maps.settings import CALIBRATION, EVIDENCE
from covis.poses import Poses, true_headings
from covis.ranking import Ranking
from covis.search import Area


@dataclass(frozen=True)
class LocateOptions:
    """How photos are located."""

    area: Area | None = None
    """Limits the places searched."""
    precision: float | None = None
    """Share of confident answers that should be right; None: the highest that the map can promise."""
    rate: float = RATE
    """Share of true positions that should lie within the radius."""
    inliers: bool = False
    """Whether probabilities also count local features in common, in a map that has learned what they mean."""
    prior: float = CALIBRATION.prior
    """Share of the photos asked about that are thought to be from elsewhere."""

    def __post_init__(self) -> None:
        for name, value in (("precision", self.precision), ("rate", self.rate), ("prior", self.prior)):
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is {value}; it must lie between 0 and 1")


DEFAULTS = LocateOptions()
Search = Callable[[NDArray[np.float32], int], Ranking]
"""(Q, dim) descriptors and k → the k nearest photos, as positions in the map's images."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The matches of queries with all estimates about them."""

    ranking: Ranking
    """(Q, K) positions in the map's images: the agreed one, then by P where it is known, then by distance."""
    overlap: Floats | None
    """(Q, K) ψ̂."""
    probability: Floats | None
    """(Q, K) P of the first `EVIDENCE.context` matches, falling; NaN for those after them."""
    elsewhere: Floats | None
    """(Q,) probability that the map does not have the place."""
    fused: Fused
    radius_m: Floats


@dataclass(frozen=True, eq=False)
class Judge:
    """The photos of a map and what it knows of its own answers."""

    images: ImageSet
    """Photos with poses, their files in the column `file`."""
    search: Search
    calibration: Calibration | None
    options: LocateOptions = DEFAULTS
    inliers: Callable[[Ids], Ids] | None = None
    """Matches (Q, K) of the queries → local features in common, for a calibration that counts them."""
    bank: Bank | None = None
    """Pictures that are not of the map's places."""
    descriptors: Matrix | None = None
    """Rows `images.columns["row"]` are those of the photos; needed where there is a calibration."""
    whole: Judge | None = None
    """The same without the limits of an area, whose evidence counts too; None where there is no area."""

    def __call__(self, vectors: NDArray[np.float32], k: int) -> Judged:
        """Searches for (Q, dim) descriptors and judges the results."""
        calibration = self.calibration or Calibration(len(self.images), None, None)
        ranking = self.search(vectors, max(k, EVIDENCE.context))
        group = np.asarray(self.images.group, np.int64)
        found = Found(ranking.top(EVIDENCE.context), np.zeros(len(ranking)))
        if calibration.probability is not None:
            assert self.descriptors is not None
            found = Found.of(ranking, self.descriptors, self.images.columns["row"])
        evidence = gather(calibration.consensus(self.images.poses), found, group)
        if self.inliers is not None:
            evidence = evidence.with_inliers(self.inliers(evidence.ranking.ids[:, : EVIDENCE.inlier_matches]))
        distances = evidence.ranking.distances.astype(np.float64)
        shared = None if calibration.overlap is None else calibration.overlap(distances)
        fused = fuse(evidence.xy, evidence.heading, weights(distances, shared), evidence.found)
        few, near, present = evidence.ranking, None, None
        if calibration.probability is not None and few.k:
            order, near = calibration.judge(evidence)
            few = few.reordered(order)
            far = np.full(len(vectors), FAR) if self.bank is None else self.bank.distances(vectors)
            present = calibration.present(evidence, far, self.options.prior)
        ids = np.concatenate([few.ids, ranking.ids[:, EVIDENCE.context :]], axis=1)
        ranking = Ranking(ids, np.concatenate([few.distances, ranking.distances[:, EVIDENCE.context :]], axis=1))
        overlap = None if calibration.overlap is None else calibration.overlap(ranking.distances.astype(np.float64))
        if near is None:
            return Judged(ranking, overlap, None, None, fused, np.full(len(vectors), np.nan))
        radius_m = calibration.radius_m(near[:, 0], self.options.rate)
        near = near if present is None else near * present[:, None]
        near = np.concatenate([near, np.full((len(ids), ranking.k - few.k), np.nan)], axis=1)
        judged = Judged(ranking, overlap, near, None if present is None else 1 - present, fused, radius_m)
        return (
            judged if self.whole is None else _lowered(judged, self.images, self.whole(vectors, k), self.whole.images)
        )

    def answers(
        self, photos: Sequence[Path], vectors: NDArray[np.float32], bad: dict[int, str], k: int
    ) -> list[Answer]:
        """One answer for each photo; one in `bad` gets an answer without matches that says why."""
        judged, sound = self(vectors, k), iter(range(len(vectors)))
        return [
            unusable(photo, bad[i]) if i in bad else self.answer(photo, judged, next(sound), k)
            for i, photo in enumerate(photos)
        ]

    def answer(self, photo: Path, judged: Judged, q: int, k: int) -> Answer:
        """The answer to query q."""
        ids, distances = judged.ranking.row(q)
        if not len(ids):
            note = "the map is empty"
            if len(self.images):
                note = f"no photo of the map lies in the area; its photos lie {_reach(self.images.poses)}"
            return Answer(photo, (), None, None, False, note)
        ids, distances = ids[:k], distances[:k]
        places = places_of(self.images.poses.subset(ids))
        matches = tuple(
            self._match(int(i), float(d), place, (_cell(judged.overlap, q, j), _cell(judged.probability, q, j)))
            for j, (i, d, place) in enumerate(zip(ids, distances, places, strict=True))
        )
        fused, frame = judged.fused, self.images.poses.frame
        (spot,) = places_of(Poses(fused.xy[q : q + 1], fused.heading[q : q + 1], frame=frame))
        radius = float(judged.radius_m[q])
        position = Position(spot, None if np.isnan(radius) else radius, self.options.rate, int(fused.count[q]))
        probability = _cell(judged.probability, q, 0)
        elsewhere = None if judged.elsewhere is None else float(judged.elsewhere[q])
        note = doubt(self.calibration, probability, self.options, elsewhere)
        return Answer(photo, matches, position, probability, not note, note, elsewhere=elsewhere)

    def _match(self, i: int, distance: float, place: Place, shares: tuple[float | None, float | None]) -> Match:
        images = self.images
        group = text_of(os.fsencode(images.group_names[images.group[i]]))
        file = Path(os.fsdecode(images.columns["file"][i]))
        return Match(text_of(images.names[i]), file, place, group, distance, *shares)


def _lowered(judged: Judged, images: ImageSet, whole: Judged, all_images: ImageSet) -> Judged:
    """Answers within an area, their probabilities no higher than the whole map gives them.

    A match that is not among the nearest of the whole map is less likely than the least likely of these.
    """
    if judged.probability is None or whole.probability is None:
        return judged
    least = np.nanmin(whole.probability, axis=1, initial=1.0)
    names, every = images.names[judged.ranking.ids], all_images.names[whole.ranking.ids]
    same = (names[:, :, None] == every[:, None]) & (whole.ranking.ids >= 0)[:, None]
    known = np.nanmax(np.where(same, whole.probability[:, None], np.nan), axis=2, initial=0.0)
    limit = np.minimum.accumulate(np.where(same.any(axis=2), known, least[:, None]), axis=1)
    return replace(judged, probability=np.minimum(judged.probability, limit), elsewhere=whole.elsewhere)


def doubt(
    calibration: Calibration | None, probability: float | None, options: LocateOptions, elsewhere: float | None
) -> str:
    """Why an answer of this probability is not confident; empty where it is."""
    if calibration is None or calibration.held_out is None or probability is None:
        return (calibration.note if calibration is not None else "") or "the map is not calibrated"
    if is_absent(elsewhere):
        return "the map has no photo of this place"
    wanted = calibration.promised(options.prior) if options.precision is None else options.precision
    if calibration.note:
        return f"the map promises nothing: {calibration.note}"
    if wanted is None:
        return "the map finds too few of its own photos to promise a precision of 80 % or more"
    threshold = calibration.threshold(wanted, options.prior)
    if threshold is None:
        return f"the map finds too few of its own photos to promise a precision of {100 * wanted:g} %"
    if probability < threshold:
        return f"a precision of {100 * wanted:g} % needs a probability above {100 * threshold:.0f} %"
    return ""


def places_of(poses: Poses) -> list[Place]:
    """Poses as places, with degrees where their frame has them."""
    degrees = poses.latlon() if poses.frame else np.full((len(poses), 2), np.nan)
    heading = true_headings(poses)
    return [
        Place(*poses.xy[i].tolist(), *(None if np.isnan(v) else float(v) for v in (heading[i], *degrees[i])))
        for i in range(len(poses))
    ]


def _reach(poses: Poses) -> str:
    """The extent of positions, in words."""
    corners = poses.latlon() if poses.frame else poses.xy
    (south, west), (north, east) = np.nanmin(corners, axis=0), np.nanmax(corners, axis=0)
    if poses.frame:
        return f"from {south:.5f}, {west:.5f} to {north:.5f}, {east:.5f}"
    return f"from {south:.0f} m E, {west:.0f} m N to {north:.0f} m E, {east:.0f} m N"


def _cell(values: Floats | None, q: int, j: int) -> float | None:
    return None if values is None or np.isnan(values[q, j]) else float(values[q, j])
