"""From descriptors to answers: what a map says of a photo, in numbers and in words; search, judge, fuse, walks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError, visible
from covis.images import ImageSet
from covis.maps.calibration import RATE, Calibration
from covis.maps.evidence import Fused, fuse, gather, weights
from covis.maps.photos import text_of
from covis.maps.settings import EVIDENCE, WALK
from covis.poses import PLACE_M, Poses, true_headings
from covis.ranking import Ranking
from covis.search import Area

WORDS = ((0.95, "very likely"), (0.75, "likely"), (0.5, "possibly"), (0.0, "unlikely"))
"""Probability from which on a word is used, the highest first."""


@dataclass(frozen=True)
class Place:
    """A pose in the map's frame, and on Earth where the frame has a place there."""

    x: float
    y: float
    heading: float | None = None
    """Degrees clockwise from true north, or from the frame's north where it has no place on Earth."""
    lat: float | None = None
    lon: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        degrees = {} if self.lat is None or self.lon is None else {"lat": round(self.lat, 8), "lon": round(self.lon, 8)}
        heading = None if self.heading is None else round(self.heading, 2)
        return {**degrees, "easting": round(self.x, 3), "northing": round(self.y, 3), "heading": heading}


@dataclass(frozen=True)
class Match:
    """One photo of the map that looks like the query."""

    image: str
    file: Path
    place: Place
    group: str
    distance: float
    overlap: float | None
    """Estimated ψ: the share of the view in common."""
    probability: float | None
    """That the query was taken at this place, within the distance that the calibration counts as right."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "image": self.image, "distance": round(self.distance, 6), "overlap": _rounded(self.overlap, 4),
            "probability": significant(self.probability), **self.place.to_dict(), "group": self.group, "file": printable(self.file) if self.file.name else "",
        }  # fmt: skip


@dataclass(frozen=True)
class Position:
    """Where the photo was taken, fused from the matches at one place."""

    place: Place
    radius_m: float | None
    """The true position lies within it at `rate`; None where that cannot be said."""
    rate: float
    fused: int
    """Matches that it was fused from."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        radius = _rounded(self.radius_m, 2)
        return {**self.place.to_dict(), "radius_m": radius, "rate": self.rate, "fused": self.fused}


@dataclass(frozen=True)
class Answer:
    """What a map says of one photo."""

    photo: Path
    matches: tuple[Match, ...]
    position: Position | None
    """The best guess, also where it is not confident."""
    probability: float | None
    confident: bool
    """Whether the best place is correct at the precision asked for, by the map's own calibration."""
    note: str = ""
    """Why it is not confident, or has no position or probability."""
    unusable: bool = False
    """Whether the file gave no descriptor."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "photo": printable(self.photo), "confident": self.confident, "probability": significant(self.probability),
            "verdict": self.verdict, "position": None if self.position is None else self.position.to_dict(),
            "matches": [match.to_dict() for match in self.matches], "note": self.note,
        }  # fmt: skip

    @property
    def word(self) -> str:
        """The probability in a word; empty where there is none."""
        return "" if self.probability is None else in_words(self.probability)

    @property
    def verdict(self) -> str:
        """One line for people: what is known first, then how sure it is, then why it is not surer."""
        if self.position is None:
            return self.note if self.unusable else f"no match: {self.note}"
        radius = self.position.radius_m
        within = "" if radius is None else f", within {_metres(radius)}"
        spot = where(self.position.place)
        if self.probability is None:
            return f"best guess {spot}{within}; no probability: {self.note}"
        doubt = "" if self.confident else f"; not confident: {self.note}"
        return f"{self.word} at {spot} ({percent(self.probability)}){within}{doubt}"

    def lines(self) -> list[str]:
        """For people."""
        rows = [
            f"  {i}. {match.image}  {', '.join(match_facts(self.matches, i - 1))}"
            for i, match in enumerate(self.matches, 1)
        ]
        return [visible(line) for line in (f"{printable(self.photo)}: {self.verdict}", *rows)]

    @property
    def reordered(self) -> bool:
        """Whether agreement, not descriptor distance, put the first match first."""
        return any(match.distance < self.matches[0].distance for match in self.matches[1:])

    @property
    def in_map(self) -> bool:
        """Whether the map has this very picture; probabilities hold only for new photos."""
        return any(match.distance < _SAME_PICTURE for match in self.matches)


_SAME_PICTURE = 1e-3
"""Distance of descriptors below which two pictures are one; in float32, that of a picture to itself is up to 5e-4."""


ORDER = (
    "match 1 is the one whose place the other matches agree with most, "
    "the others follow by probability, or by distance between descriptors where there is none"
)
"""What the order of matches means."""


def in_words(probability: float) -> str:
    """A probability as a word of `WORDS`, by the whole percent that is printed beside it."""
    return next(word for least, word in WORDS if round(100 * probability) >= 100 * least)


def percent(share: float) -> str:
    """`0.893` → `89 %`; never 0 or 100, which no estimate is."""
    return f"{min(max(100 * share, 1), 99):.0f} %"


def match_facts(matches: Sequence[Match], i: int) -> list[str]:
    """What is known of match i, for people."""
    match = matches[i]
    near = sum(math.hypot(other.place.x - match.place.x, other.place.y - match.place.y) <= PLACE_M for other in matches)
    facts = [where(match.place)]
    facts += [] if match.place.heading is None else [f"heading {match.place.heading:.0f}°"]
    facts += [f"distance {match.distance:.3f}"]
    facts += [f"agrees with {near - 1} other{'' if near == 2 else 's'}"] if near > 1 else []
    facts += [] if match.overlap is None else [f"overlap {100 * match.overlap:.0f} %"]
    facts += [] if match.probability is None else [f"{percent(match.probability)} likely correct"]
    return facts


def where(place: Place) -> str:
    """A position for people."""
    if place.lat is None or place.lon is None:
        return f"{place.x:.1f} m E, {place.y:.1f} m N"
    return f"{place.lat:.6f}, {place.lon:.6f}"


def printable(path: Path) -> str:
    """A path for people and JSON; bytes that are no UTF-8 are spelt out."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def significant(value: float | None) -> float | None:
    """To five digits, the last of which still shows a difference between two matches."""
    return None if value is None else float(f"{value:.5g}")


def _metres(length: float) -> str:
    return f"{length:.0f} m" if length < 1000 else f"{length / 1000:.1f} km"


# Search, judge, fuse the matches of one place


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
    step_m: float = WALK.step_m
    """How far two photos of a walk in a row may lie apart without being doubted."""

    def __post_init__(self) -> None:
        for name, value in (("precision", self.precision), ("rate", self.rate)):
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

    def __call__(self, vectors: NDArray[np.float32], k: int) -> Judged:
        """Searches for (Q, dim) descriptors and judges the results."""
        calibration = self.calibration or Calibration(len(self.images), None, None)
        ranking = self.search(vectors, max(k, EVIDENCE.context))
        group = np.asarray(self.images.group, np.int64)
        evidence = gather(calibration.consensus(self.images.poses), ranking, group)
        if self.inliers is not None:
            evidence = evidence.with_inliers(self.inliers(evidence.ranking.ids[:, : EVIDENCE.inlier_matches]))
        distances = evidence.ranking.distances.astype(np.float64)
        shared = None if calibration.overlap is None else calibration.overlap(distances)
        fused = fuse(evidence.xy, evidence.heading, weights(distances, shared), evidence.found)
        few, near = evidence.ranking, None
        if calibration.probability is not None and few.k:
            order, near = calibration.judge(evidence)
            few = few.reordered(order)
        ids = np.concatenate([few.ids, ranking.ids[:, EVIDENCE.context :]], axis=1)
        ranking = Ranking(ids, np.concatenate([few.distances, ranking.distances[:, EVIDENCE.context :]], axis=1))
        overlap = None if calibration.overlap is None else calibration.overlap(ranking.distances.astype(np.float64))
        if near is None:
            return Judged(ranking, overlap, None, fused, np.full(len(vectors), np.nan))
        behind = np.full((len(ids), ranking.k - few.k), np.nan)
        radius_m = calibration.radius_m(near[:, 0], self.options.rate)
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
        note = doubt(self.calibration, probability, self.options.precision)
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


# A walk as one query: the chain of places that looks right photo by photo and can be walked from one to the next.
#
# Each photo proposes its matches. A chain pays for the descriptor distance of each match, and for every metre that two
# photos in a row lie further apart than a step; the cheapest chain is found exactly (Viterbi). This way,
# photos that show little are placed by those that show much.


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
        """As plain values for JSON: the place of the last photo, and each photo's own answer under `photos`."""
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
) -> Walk:
    """Locates photos that were taken one after the other, from (Q, dim) descriptors of those that are not `bad`.

    The walk is confident where a photo on the chain is confident by itself, and no photo is confident of another place.
    """
    judged = judge(vectors, max(k, EVIDENCE.context))
    ids, poses = judged.ranking.ids, judge.images.poses
    xy = poses.xy[ids] if len(poses) else np.zeros((*ids.shape, 2))
    chain = best_chain(xy, judged.ranking.distances.astype(np.float64), ids >= 0, judge.options.step_m)
    if len(vectors) == 1:  # one photo leads nowhere: its own answer counts
        chain[:] = 0
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
    same = float(np.hypot(best.place.x - chosen.place.x, best.place.y - chosen.place.y)) <= PLACE_M
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


def best_chain(xy: Floats, distances: Floats, matched: NDArray[np.bool_], step_m: float) -> NDArray[np.int64]:
    """(Q,) the match of each photo on the cheapest chain: xy (Q, K, 2), distances (Q, K), matched (Q, K)."""
    count, k = distances.shape
    if not count or not k:
        return np.zeros(count, np.int64)
    cost = np.where(matched, distances, np.inf)
    cost[~matched.any(axis=1)] = 0.0  # a photo without any match leaves the chain as it is
    total = cost[0]
    came = np.zeros((count, k), np.int64)
    for t in range(1, count):
        gap = np.linalg.norm(xy[t][:, None] - xy[t - 1][None], axis=2)
        jump = WALK.jump_cost * np.clip(np.nan_to_num(gap - step_m, nan=0.0) / step_m, 0.0, 2.0)
        through = total[None] + jump
        came[t] = through.argmin(axis=1)
        total = cost[t] + through.min(axis=1)
    chain = np.empty(count, np.int64)
    chain[-1] = int(total.argmin())
    for t in range(count - 1, 0, -1):
        chain[t - 1] = came[t, chain[t]]
    return chain
