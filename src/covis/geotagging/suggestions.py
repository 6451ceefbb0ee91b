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
        return self.answer.confident

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, as `covis locate` has them."""
        beside = [{"image": name, "seconds": round(s, 1)} for name, s in self.neighbours]
        return self.answer.to_dict() | {"photo": self.photo.name, "evidence": self.evidence, "neighbours": beside}


def combine(
    photo: LibraryPhoto, answer: Answer, guess: TimeGuess | None, *, is_place: bool, precision: float, regions: Regions
) -> tuple[Answer, str]:
    """The answer of the pictures, in the plane of the regions, and the guess by time as one; and what it rests on.

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
        return _on_earth(answer, regions), PICTURES if answer.position else ""
    probability, match = _agreeing(answer, guess)
    seen = (answer.probability or 0.0) if answer.position is not None else 0.0
    first = match is not None and match is answer.matches[0] and answer.position is not None
    if first:
        probability = max(probability, seen)
    if match is not None and probability >= max(guess.probability, 0.0 if first else seen):
        position = answer.position if first else Position(match.place, None, 0.9, 1)
        return _decided(answer, position, probability, precision, regions), BOTH
    against = _far(answer, guess)
    if answer.confident and against:
        # Each is right only where the other is wrong.
        seen_only, time_only = seen * (1 - guess.probability), guess.probability * (1 - seen)
        seen, late = (
            v / (seen_only + time_only + (1 - seen) * (1 - guess.probability)) for v in (seen_only, time_only)
        )
        if seen >= late:
            return _decided(answer, answer.position, seen, precision, regions), PICTURES
        guess = guess._replace(probability=late)
    elif answer.confident:
        return _on_earth(answer, regions), PICTURES
    place = Place(*guess.xy)
    return _decided(
        answer, Position(place, None, 0.9, 0), max(guess.probability, probability), precision, regions
    ), TIME


def _agreeing(answer: Answer, guess: TimeGuess) -> tuple[float, Match | None]:
    """The match that is most likely, given where time puts the photo, and how likely; (0, None) where none is there."""
    best: tuple[float, Match | None] = (0.0, None)
    for match in answer.matches:
        seen = match.probability or 0.0
        if _apart(match.place, guess) > _AREA_M + guess.doubt_m or not seen:
            continue
        agrees = guess.probability + (1 - guess.probability) * _CHANCE
        right = seen * agrees
        p = right / (right + (1 - seen) * _CHANCE)
        # Where the match is wrong, the place is still that of the neighbours.
        near = guess.probability if _apart(match.place, guess) <= RIGHT_M / 2 else 0.0
        p += (1 - p) * near * (1 - seen)
        if p > best[0]:
            best = p, match
    return best


def _far(answer: Answer, guess: TimeGuess) -> bool:
    return answer.position is not None and _apart(answer.position.place, guess) > _AREA_M + guess.doubt_m


def _apart(place: Place, guess: TimeGuess) -> float:
    return math.hypot(place.x - guess.xy[0], place.y - guess.xy[1])


def _decided(
    answer: Answer, position: Position | None, probability: float, precision: float, regions: Regions
) -> Answer:
    """The answer at another position, confident where it is likely enough."""
    sure = probability >= precision and position is not None
    note = "" if sure else unsure(precision)
    elsewhere = None if answer.elsewhere is None else min(answer.elsewhere, 1 - probability)
    changed = replace(
        answer, position=position, probability=min(probability, 0.99), confident=sure, note=note, elsewhere=elsewhere
    )
    return _on_earth(changed, regions)


def _on_earth(answer: Answer, regions: Regions) -> Answer:
    """The answer with places on Earth instead of places in the plane; headings are not suggested."""
    position = answer.position
    matches = tuple(replace(m, place=earth_place(m.place, regions)) for m in answer.matches)
    if position is not None:
        position = replace(position, place=earth_place(position.place, regions))
    return replace(answer, position=position, matches=matches)


def earth_place(place: Place, regions: Regions) -> Place:
    """A place of the plane with latitude, longitude and metres in its own region."""
    xy = np.array([[place.x, place.y]])
    ((lat, lon),), ((x, y),) = regions.to_earth(xy), regions.local(xy)
    return Place(float(x), float(y), None, float(lat), float(lon))


def moved(suggestion: Suggestion, lat: float, lon: float) -> Suggestion:
    """The suggestion with a pin that a person has set."""
    place = Place(0.0, 0.0, None, lat, lon)
    position = Position(place, None, 0.9, 0)
    answer = replace(suggestion.answer, position=position, confident=True, note="", probability=None, elsewhere=None)
    return replace(suggestion, answer=answer, evidence="a person")
