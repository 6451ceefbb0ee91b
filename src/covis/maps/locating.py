"""From photos to answers: describe, search, judge, fuse the matches of one place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.describing.embedding import BATCH_SIZE, Runner, decoders
from covis.describing.loading import BadFile, image_batches
from covis.descriptors import NORM_TOLERANCE
from covis.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import Answer, Match, Place, Position
from covis.maps.calibration import CONTEXT, match_features
from covis.maps.fusion import Fused, fuse, weights
from covis.maps.intake import true_headings
from covis.maps.storage import text_of
from covis.poses import Poses
from covis.ranking import Ranking
from covis.search import Area, Consensus

if TYPE_CHECKING:
    from covis.maps.map import Map


@dataclass(frozen=True, eq=False)
class Judged:
    """The matches of queries with all that is thought of them."""

    ranking: Ranking
    """(Q, K) positions in the map's images."""
    overlap: Floats | None
    """(Q, K) ψ̂."""
    probability: Floats | None
    """(Q, K) P of the first `CONTEXT` matches; NaN behind them."""
    fused: Fused
    radius_m: Floats


def locate(map_: Map, photos: Sequence[Path], k: int, area: Area | None, precision: float, rate: float) -> list[Answer]:
    """One answer for each photo; a file that cannot be used gets an answer without matches that says why."""
    check_shares(precision, rate)
    vectors, bad = describe(map_, photos)
    judged = judge(map_, vectors, k, area, rate)
    sound = iter(range(len(vectors)))
    return [
        Answer(photo, (), None, None, False, bad[i], unusable=True) if i in bad else answer(map_, photo, judged, next(sound), k, precision, rate)
        for i, photo in enumerate(photos)
    ]  # fmt: skip


def check_shares(precision: float, rate: float) -> None:
    """Refuses shares that are none."""
    for name, value in (("precision", precision), ("rate", rate)):
        if not 0 < value < 1:
            raise InputError(f"{name} is {value}; it must lie between 0 and 1")


def describe(map_: Map, photos: Sequence[Path]) -> tuple[NDArray[np.float32], dict[int, str]]:
    """(Q, dim) descriptors of the photos that can be used, and why each other one cannot."""
    names = [os.fsencode(photo.absolute()) for photo in photos]
    nowhere = np.full((len(photos), 2), np.nan)
    images = ImageSet.of(Path(), np.array(names, dtype=bytes), Poses(nowhere, nowhere[:, 0]))
    model, runner, rejects = map_.describer, Runner.choose(), list[BadFile]()
    model.to(runner.device)
    rows: list[NDArray[np.float32]] = [np.zeros((0, map_.dim), np.float32)]
    ids: list[NDArray[np.int64]] = []
    size, workers = model.preprocessing.image_size, decoders(None, len(photos))
    for loaded in image_batches(images, None, size, BATCH_SIZE, workers, rejects=rejects):
        if len(loaded.ids):
            ids.append(loaded.ids)
            rows.append(runner.describe(model, loaded.images).cpu().numpy())
    bad = {int(r.id): f"the photo cannot be used: {r.reason} ({r.detail})" for r in rejects}
    vectors, at = np.concatenate(rows), np.concatenate([*ids, np.zeros(0, np.int64)]).astype(np.int64)
    sound = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= NORM_TOLERANCE
    bad |= {int(i): "the photo has no descriptor (is it blank?)" for i in at[~sound]}
    return vectors[sound], bad


def judge(map_: Map, vectors: NDArray[np.float32], k: int, area: Area | None, rate: float) -> Judged:
    """Searches for (Q, dim) descriptors and judges what is found."""
    poses = map_.images.poses
    ranking = Consensus(poses, CONTEXT)(map_.search(vectors, max(k, CONTEXT), area=area))
    calibration = map_.calibration
    found = ranking.ids >= 0
    distances = ranking.distances.astype(np.float64)
    if len(poses):
        xy, heading = poses.xy[ranking.ids], poses.heading[ranking.ids]
    else:
        xy, heading = np.zeros((*ranking.ids.shape, 2)), np.zeros(ranking.ids.shape)
    overlap = None if calibration is None or calibration.overlap is None else calibration.overlap(distances)
    few = (slice(None), slice(CONTEXT))
    fused = fuse(xy[few], heading[few], weights(distances[few], None if overlap is None else overlap[few]), found[few])
    if calibration is None or calibration.probability is None or not ranking.k:
        return Judged(ranking, overlap, None, fused, np.full(len(vectors), np.nan))
    probability = np.full(distances.shape, np.nan)
    probability[few] = calibration.probability(match_features(xy[few], distances[few], found[few]))
    return Judged(ranking, overlap, probability, fused, calibration.radius_m(probability[:, 0], rate))


def answer(map_: Map, photo: Path, judged: Judged, q: int, k: int, precision: float, rate: float) -> Answer:
    """The answer to query q."""
    ids, distances = judged.ranking.row(q)
    if not len(ids):
        return Answer(
            photo,
            (),
            None,
            None,
            False,
            "the map is empty" if not len(map_) else "no photo of the map lies in the area",
        )
    ids, distances = ids[:k], distances[:k]
    places = places_of(map_, map_.images.poses.subset(ids))
    matches = tuple(
        Match(
            text_of(map_.images.names[i]), map_.file(int(i)), place, text_of(os.fsencode(map_.images.group_names[map_.images.group[i]])), float(d),
            _cell(judged.overlap, q, j), _cell(judged.probability, q, j),
        )
        for j, (i, d, place) in enumerate(zip(ids, distances, places, strict=True))
    )  # fmt: skip
    frame = map_.images.poses.frame
    (spot,) = places_of(map_, Poses(judged.fused.xy[q : q + 1], judged.fused.heading[q : q + 1], frame=frame))
    radius = float(judged.radius_m[q])
    position = Position(spot, None if np.isnan(radius) else radius, rate, int(judged.fused.count[q]))
    probability = _cell(judged.probability, q, 0)
    note = doubt(map_, probability, precision)
    return Answer(photo, matches, position, probability, not note, note)


def doubt(map_: Map, probability: float | None, precision: float) -> str:
    """Why an answer of this probability is not confident; empty where it is."""
    calibration = map_.calibration
    if calibration is None or calibration.held_out is None or probability is None:
        return (calibration.note if calibration is not None else "") or "the map is not calibrated"
    threshold = calibration.threshold(precision)
    if threshold is None:
        return f"the map's {len(calibration.held_out)} held-out photos do not carry a precision of {precision:.0%}"
    if probability < threshold:
        return f"right with {probability:.1%}; a precision of {precision:.0%} takes {threshold:.1%}"
    return ""


def places_of(map_: Map, poses: Poses) -> list[Place]:
    """Poses as places, with degrees where the map's frame has them."""
    degrees = poses.latlon() if poses.frame else np.full((len(poses), 2), np.nan)
    heading = true_headings(poses)
    return [
        Place(*poses.xy[i].tolist(), *(None if np.isnan(v) else float(v) for v in (heading[i], *degrees[i])))
        for i in range(len(poses))
    ]


def _cell(values: Floats | None, q: int, j: int) -> float | None:
    return None if values is None or np.isnan(values[q, j]) else float(values[q, j])
