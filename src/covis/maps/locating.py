"""From descriptors to answers: search, judge, fuse the matches of one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import Answer, Match, Place, Position
from covis.maps.calibration import Calibration
from covis.maps.evidence import CONTEXT, PLACE_RADIUS_M, Fused, fuse, gather, weights
from covis.maps.storage import text_of
from covis.poses import Poses, true_headings
from covis.ranking import Ranking

Search = Callable[[NDArray[np.float32], int], Ranking]
"""(Q, dim) descriptors and k → the k nearest photos, as positions in the map's images."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The matches of queries with all that is thought of them."""

    ranking: Ranking
    """(Q, K) positions in the map's images: the agreed one, then by P where it is known, then by distance."""
    overlap: Floats | None
    """(Q, K) ψ̂."""
    probability: Floats | None
    """(Q, K) P of the first `CONTEXT` matches, falling; NaN behind them."""
    fused: Fused
    radius_m: Floats


@dataclass(frozen=True, eq=False)
class Judge:
    """The photos of a map and what it knows of its own answers."""

    images: ImageSet
    """Photos with poses, their files in the column `file`."""
    search: Search
    calibration: Calibration | None
    precision: float | None
    """Share of confident answers that shall be right; None: the highest that the map can promise."""
    rate: float
    """Share of true positions that shall lie within the radius."""

    def __post_init__(self) -> None:
        for name, value in (("precision", self.precision), ("rate", self.rate)):
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is {value}; it must lie between 0 and 1")

    def __call__(self, vectors: NDArray[np.float32], k: int) -> Judged:
        """Searches for (Q, dim) descriptors and judges what is found."""
        calibration = self.calibration or Calibration(len(self.images), None, None)
        ranking = self.search(vectors, max(k, CONTEXT))
        group = np.asarray(self.images.group, np.int64)
        evidence = gather(calibration.consensus(self.images.poses), ranking, group)
        distances = evidence.ranking.distances.astype(np.float64)
        shared = None if calibration.overlap is None else calibration.overlap(distances)
        fused = fuse(evidence.xy, evidence.heading, weights(distances, shared), evidence.found)
        few, near = evidence.ranking, None
        if calibration.probability is not None and few.k:
            order, near = calibration.judge(evidence)
            few = few.reordered(order)
        ids = np.concatenate([few.ids, ranking.ids[:, CONTEXT:]], axis=1)
        ranking = Ranking(ids, np.concatenate([few.distances, ranking.distances[:, CONTEXT:]], axis=1))
        overlap = None if calibration.overlap is None else calibration.overlap(ranking.distances.astype(np.float64))
        if near is None:
            return Judged(ranking, overlap, None, fused, np.full(len(vectors), np.nan))
        behind = np.full((len(ids), ranking.k - few.k), np.nan)
        radius_m = calibration.radius_m(near[:, 0], self.rate)
        return Judged(ranking, overlap, np.concatenate([near, behind], axis=1), fused, radius_m)

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
            note = "no photo of the map lies in the area" if len(self.images) else "the map is empty"
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
        position = Position(spot, None if np.isnan(radius) else radius, self.rate, int(fused.count[q]))
        probability = _cell(judged.probability, q, 0)
        note = doubt(self.calibration, probability, self.precision)
        return Answer(photo, matches, position, probability, not note, note)

    def _match(self, i: int, distance: float, place: Place, shares: tuple[float | None, float | None]) -> Match:
        images = self.images
        group = text_of(os.fsencode(images.group_names[images.group[i]]))
        file = Path(os.fsdecode(images.columns["file"][i]))
        return Match(text_of(images.names[i]), file, place, group, distance, *shares)


def unusable(photo: Path, why: str) -> Answer:
    """The answer to a photo that has no descriptor."""
    return Answer(photo, (), None, None, False, f"the photo cannot be used: {why}", unusable=True)


def doubt(calibration: Calibration | None, probability: float | None, precision: float | None) -> str:
    """Why an answer of this probability is not confident; empty where it is."""
    if calibration is None or calibration.held_out is None or probability is None:
        return (calibration.note if calibration is not None else "") or "the map is not calibrated"
    wanted = calibration.promised() if precision is None else precision
    if wanted is None:
        return "the map finds too few of its own photos to promise a precision of 80 % or more"
    threshold = calibration.threshold(wanted)
    if threshold is None:
        return f"the map finds too few of its own photos to promise a precision of {100 * wanted:g} %"
    if probability < threshold:
        return f"a precision of {100 * wanted:g} % needs {100 * threshold:.0f} %"
    return ""


def places_of(poses: Poses) -> list[Place]:
    """Poses as places, with degrees where their frame has them."""
    degrees = poses.latlon() if poses.frame else np.full((len(poses), 2), np.nan)
    heading = true_headings(poses)
    return [
        Place(*poses.xy[i].tolist(), *(None if np.isnan(v) else float(v) for v in (heading[i], *degrees[i])))
        for i in range(len(poses))
    ]


def _cell(values: Floats | None, q: int, j: int) -> float | None:
    return None if values is None or np.isnan(values[q, j]) else float(values[q, j])


# A walk as one query: the chain of places that looks right photo by photo and can be walked from one to the next.
#
# Each photo proposes its matches. A chain pays for the descriptor distance of each match, and for every metre that two
# photos in a row lie further apart than a step; the cheapest chain is found exactly (Viterbi). Photos that see little
# are so carried by those that see much.


STEP_M = 50.0
"""How far two photos of a walk in a row may lie apart without being doubted."""
_JUMP_COST = 0.25
"""Descriptor distance that one step too far weighs as much as; further jumps cost no more than twice this."""


@dataclass(frozen=True)
class Walk:
    """A sequence of photos, located together."""

    answers: tuple[Answer, ...]
    """One for each photo, the chain's match first."""
    confident: bool
    note: str
    agreement: float
    """Share of photos whose own best match stands at the chain's place."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it: the place of the last photo, and each photo's own answer under `photos`."""
        last = self.answers[-1].to_dict()
        return {
            "photo": last["photo"], "confident": self.confident, "probability": last["probability"], "position": last["position"],
            "matches": last["matches"], "note": self.note, "agreement": round(self.agreement, 4),
            "photos": [a.to_dict() for a in self.answers],
        }  # fmt: skip


def locate_walk(
    judge: Judge,
    photos: Sequence[Path],
    vectors: NDArray[np.float32],
    bad: dict[int, str],
    k: int,
    *,
    step_m: float = STEP_M,
) -> Walk:
    """Locates photos that were taken one after the other, from (Q, dim) descriptors of those that are not `bad`.

    The walk is confident where a photo on the chain is so by itself, and no photo is confident of another place.
    """
    judged = judge(vectors, max(k, CONTEXT))
    ids, poses = judged.ranking.ids, judge.images.poses
    xy = poses.xy[ids] if len(poses) else np.zeros((*ids.shape, 2))
    chain = best_chain(xy, judged.ranking.distances.astype(np.float64), ids >= 0, step_m)
    answers: list[Answer] = []
    own_place: list[bool] = []
    torn = False
    sound = iter(range(len(vectors)))
    for i, photo in enumerate(photos):
        if i in bad:
            answers.append(unusable(photo, bad[i]))
            continue
        q = next(sound)
        alone = judge.answer(photo, judged, q, judged.ranking.k)
        moved, same = _on_chain(alone, int(chain[q]) if alone.matches else 0, k)
        answers.append(moved)
        if alone.matches:
            own_place.append(same)
            torn |= alone.confident and not same
    return _walk(answers, own_place, torn)


def _on_chain(alone: Answer, at: int, k: int) -> tuple[Answer, bool]:
    """The photo's answer with the chain's match first, and whether its own best match stands at the same place."""
    if not alone.matches:
        return alone, False
    best, chosen = alone.matches[0], alone.matches[at]
    same = float(np.hypot(best.place.x - chosen.place.x, best.place.y - chosen.place.y)) <= PLACE_RADIUS_M
    rest = tuple(m for j, m in enumerate(alone.matches) if j != at)
    if same or alone.position is None:
        return replace(alone, matches=(chosen, *rest)[:k]), same
    moved = replace(alone.position, place=chosen.place, radius_m=None, fused=1)
    return replace(
        alone, matches=(chosen, *rest)[:k], position=moved, probability=chosen.probability, confident=False,
        note="the walk leads elsewhere than this photo alone would",
    ), False  # fmt: skip


def _walk(answers: list[Answer], own_place: list[bool], torn: bool) -> Walk:
    agreement = float(np.mean(own_place)) if own_place else 0.0
    sure = any(a.confident for a in answers)
    note = ""
    if torn:
        note = "a photo is confident of a place that the walk does not pass"
    elif not sure:
        note = "no photo of the walk is confident by itself"
    return Walk(tuple(answers), sure and not torn, note, agreement)


def best_chain(xy: Floats, distances: Floats, found: NDArray[np.bool_], step_m: float) -> NDArray[np.int64]:
    """(Q,) the match of each photo on the cheapest chain: xy (Q, K, 2), distances (Q, K), found (Q, K)."""
    count, k = distances.shape
    if not count or not k:
        return np.zeros(count, np.int64)
    cost = np.where(found, distances, np.inf)
    cost[~found.any(axis=1)] = 0.0  # a photo without any match leaves the chain as it is
    total = cost[0]
    came = np.zeros((count, k), np.int64)
    for t in range(1, count):
        gap = np.linalg.norm(xy[t][:, None] - xy[t - 1][None], axis=2)
        jump = _JUMP_COST * np.clip(np.nan_to_num(gap - step_m, nan=0.0) / step_m, 0.0, 2.0)
        through = total[None] + jump
        came[t] = through.argmin(axis=1)
        total = cost[t] + through.min(axis=1)
    chain = np.empty(count, np.int64)
    chain[-1] = int(total.argmin())
    for t in range(count - 1, 0, -1):
        chain[t - 1] = came[t, chain[t]]
    return chain
