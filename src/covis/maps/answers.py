"""What a map says of a photo, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from covis.core.errors import visible
from covis.poses import PLACE_M

if TYPE_CHECKING:
    from covis.reading.inputs import Photo

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


class AnswerView(Protocol):
    """Shows an answer with its photo and the map that gave it."""

    @property
    def photo(self) -> Photo:
        """The photo, also one in memory."""
        ...

    def html(self, answer: Answer) -> str:
        """A card for a notebook."""
        ...

    def show(self, answer: Answer) -> Path:
        """Opens a page in the browser; returns where it lies."""
        ...


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
    elsewhere: float | None = None
    """Probability that the photo was taken where the map has no photo, or is of no place at all."""
    view: AnswerView | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Answer {printable(self.photo)}: {self.verdict}>"

    def _repr_html_(self) -> str | None:
        return None if self.view is None else self.view.html(self)

    def show(self) -> Path:
        """Opens the answer in the browser, on a map beside its matches; returns where the page lies."""
        if self.view is None:
            raise ValueError("only an answer of Map.locate can be shown")
        return self.view.show(self)

    @property
    def lat(self) -> float | None:
        """Latitude of the best guess; None without one, or in a map without a place on Earth."""
        return None if self.position is None else self.position.place.lat

    @property
    def lon(self) -> float | None:
        """Longitude of the best guess, as `lat`."""
        return None if self.position is None else self.position.place.lon

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "photo": printable(self.photo), "confident": self.confident, "probability": significant(self.probability),
            "elsewhere": significant(self.elsewhere), "verdict": self.verdict, "position": None if self.position is None else self.position.to_dict(),
            "matches": [match.to_dict() for match in self.matches], "note": self.note,
        }  # fmt: skip

    @property
    def word(self) -> str:
        """The probability in a word; empty where there is none."""
        if self.absent:
            return ABSENT
        return "" if self.probability is None else in_words(self.probability)

    @property
    def absent(self) -> bool:
        """Whether the photo is more likely from elsewhere than from a place of the map."""
        return is_absent(self.elsewhere)

    @property
    def verdict(self) -> str:
        """One line for people: what is known first, then how sure it is, then why it is not surer."""
        if self.position is None:
            return self.note if self.unusable else f"no match: {self.note}"
        radius = self.position.radius_m
        within = "" if radius is None else f", within {metres(radius)}"
        spot = where(self.position.place)
        if self.probability is None:
            return f"best guess {spot}{within}; no probability: {self.note}"
        if self.absent:
            assert self.elsewhere is not None
            return f"{ABSENT} ({percent(self.elsewhere)}); most alike at {spot} ({percent(self.probability)})"
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
    def in_map(self) -> bool:
        """Whether the map has this very picture; probabilities hold only for new photos."""
        return any(match.distance < _SAME_PICTURE for match in self.matches)


_SAME_PICTURE = 1e-3
"""Distance of descriptors below which two pictures are one; in float32, that of a picture to itself is up to 5e-4."""


ABSENT = "not in this map"
"""What is said of a photo whose place the map does not have."""


def is_absent(elsewhere: float | None) -> bool:
    """Whether a probability of being from elsewhere makes an answer "not in this map"."""
    return elsewhere is not None and round(100 * elsewhere) > 50


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


def metres(length: float) -> str:
    """A length for people."""
    return f"{length:.0f} m" if length < 1000 else f"{length / 1000:.1f} km"


def unusable(photo: Path, why: str) -> Answer:
    """The answer to a photo that has no descriptor."""
    return Answer(photo, (), None, None, False, f"the photo cannot be used: {why}", unusable=True)
