"""What is suggested for a photo without a position: the answer of the pictures and the neighbours in time, as one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covis.geotagging.clocks import RIGHT_M, TimeGuess
from covis.geotagging.library import LibraryPhoto
from covis.geotagging.likelihood import unsure
from covis.geotagging.regions import Regions
from covis.maps.answers import Answer, Match, Place, Position

PICTURES, TIME, BOTH = "pictures", "time", "pictures and time"
_CHANCE = 0.15
"""Share of wrong matches that lie where the neighbours in time are: these places look alike, and are photographed most."""
_AREA_M = 300.0
"""A match this near to where time puts a photo agrees with it."""


@dataclass(frozen=True)
class Suggestion:
    """A position for one photo, or why it has none."""

    photo: LibraryPhoto
    answer: Answer
    """With latitude and longitude, and matches by the names of the library."""
    evidence: str = ""
    """`PICTURES`, `TIME` or `BOTH`; empty without a position."""
    neighbours: tuple[tuple[str, float], ...] = ()
    """Photos around it in time, and how many seconds later they were taken."""

    @property
    def confident(self) -> bool:
        """Whether it may be written without being asked."""
        return self.answer.confident and self.answer.position is not None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, as `covis locate` has them."""
        beside = [{"image": name, "seconds": round(s, 1)} for name, s in self.neighbours]
        return self.answer.to_dict() | {"photo": self.photo.name, "evidence": self.evidence, "neighbours": beside}

    def moved(self, lat: float, lon: float) -> Suggestion:
        """The suggestion with a pin that a person has set."""
        position = Position(Place(0.0, 0.0, None, lat, lon), None, 0.9, 0)
        answer = replace(self.answer, position=position, confident=True, note="", probability=None, elsewhere=None)
        return replace(self, answer=answer, evidence="a person")


def combine(answer: Answer, guess: TimeGuess | None, *, is_place: bool, precision: float) -> tuple[Answer, str]:
    """The answer of the pictures and the guess by time as one, in the plane of the regions; and what it rests on.

    is_place: whether the photo looks like a place at all, without which time says nothing: screenshots and documents
    are taken along the way too.
    """
    if answer.unusable:
        return answer, ""
    if not is_place:
        note = "it does not look like a photo of a place"
        position = answer.position if answer.confident else None
        answer = replace(answer, confident=False, note=note, position=position)
    elif answer.absent:
        answer = replace(answer, position=None)
    if guess is None or not is_place:
        return answer, PICTURES if answer.position else ""
    seen = (answer.probability or 0.0) if answer.position is not None else 0.0
    probability, match = _agreeing(answer, guess)
    first = match is not None and match is answer.matches[0] and answer.position is not None
    if first:
        probability = max(probability, seen)
    if match is not None and probability >= max(guess.probability, 0.0 if first else seen):
        position = answer.position if first else Position(match.place, None, 0.9, 1)
        return _decided(answer, position, probability, precision), BOTH
    by_time = guess.probability
    if answer.confident and answer.position is not None:
        if _gap_m(answer.position.place, guess) <= _AREA_M + guess.doubt_m:
            return answer, PICTURES
        # Each is right only where the other is wrong.
        parts = np.array([seen * (1 - by_time), by_time * (1 - seen), (1 - seen) * (1 - by_time)])
        seen, by_time, _ = (parts / parts.sum()).tolist()
        if seen >= by_time:
            return _decided(answer, answer.position, seen, precision), PICTURES
    position = Position(Place(*guess.xy), None, 0.9, 0)
    return _decided(answer, position, max(by_time, probability), precision), TIME


def _agreeing(answer: Answer, guess: TimeGuess) -> tuple[float, Match | None]:
    """The match that is most likely, given where time puts the photo, and how likely; (0, None) where none is there."""
    best: tuple[float, Match | None] = (0.0, None)
    for match in answer.matches:
        seen, gap_m = match.probability or 0.0, _gap_m(match.place, guess)
        if gap_m > _AREA_M + guess.doubt_m or not seen:
            continue
        right = seen * (guess.probability + (1 - guess.probability) * _CHANCE)
        p = right / (right + (1 - seen) * _CHANCE)
        # Where the match is wrong, the place is still that of the neighbours.
        p += (1 - p) * (guess.probability if gap_m <= RIGHT_M / 2 else 0.0) * (1 - seen)
        if p > best[0]:
            best = p, match
    return best


def _gap_m(place: Place, guess: TimeGuess) -> float:
    return math.hypot(place.x - guess.xy[0], place.y - guess.xy[1])


def _decided(answer: Answer, position: Position | None, probability: float, precision: float) -> Answer:
    """The answer at another position, confident where it is likely enough."""
    sure = probability >= precision and position is not None
    return replace(
        answer, position=position, probability=min(probability, 0.99), confident=sure,
        note="" if sure else unsure(precision),
        elsewhere=None if answer.elsewhere is None else min(answer.elsewhere, 1 - probability),
    )  # fmt: skip


def on_earth(answer: Answer, regions: Regions) -> Answer:
    """The answer with places on Earth, in metres of their regions, instead of places in the plane; without headings."""
    places = [match.place for match in answer.matches] + ([answer.position.place] if answer.position else [])
    xy = np.array([(place.x, place.y) for place in places]).reshape(-1, 2)
    rows = zip(regions.local(xy).tolist(), regions.to_earth(xy).tolist(), strict=True)
    placed = [Place(x, y, None, lat, lon) for (x, y), (lat, lon) in rows]
    matches = tuple(replace(match, place=place) for match, place in zip(answer.matches, placed, strict=False))
    position = None if answer.position is None else replace(answer.position, place=placed[-1])
    return replace(answer, position=position, matches=matches)
