"""What a map says of a photo: matches, a position and how sure it is; as JSON, GeoJSON and KML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from covis.files import write_text


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
        """As JSON knows it."""
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
    """That the photo was taken here, as near as the calibration calls right."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "image": self.image, "distance": round(self.distance, 6), "overlap": _rounded(self.overlap, 4),
            "probability": _rounded(self.probability, 5), **self.place.to_dict(), "group": self.group, "file": printable(self.file),
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
        """As JSON knows it."""
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
    """Whether the best place is right with the precision asked for, by the map's own calibration."""
    note: str = ""
    """Why it is not confident, or has no position or probability."""
    unusable: bool = False
    """Whether the file gave no descriptor."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "photo": printable(self.photo), "confident": self.confident, "probability": _rounded(self.probability, 5),
            "position": None if self.position is None else self.position.to_dict(),
            "matches": [match.to_dict() for match in self.matches], "note": self.note,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For people."""
        head = f"{printable(self.photo)}: {self._verdict()}"
        rows = [
            f"  {i}. {m.image}  {where(m.place)}{_heading(m.place)}  distance {m.distance:.3f}"
            f"{_share(', overlap', m.overlap)}{_share(', right with', m.probability)}"
            for i, m in enumerate(self.matches, 1)
        ]
        return [head, *rows]

    def _verdict(self) -> str:
        if self.position is None:
            return f"no match ({self.note})"
        radius = self.position.radius_m
        around = "" if radius is None else f" ± {radius:.0f} m ({self.position.rate:.0%})"
        spot = f"{where(self.position.place)}{around}"
        if self.confident:
            return f"{spot}{_share(', right with', self.probability)}"
        return f"no confident match ({self.note}); best guess {spot}"


def where(place: Place) -> str:
    """A position for people."""
    if place.lat is None or place.lon is None:
        return f"{place.x:.1f} m E, {place.y:.1f} m N"
    return f"{place.lat:.6f}, {place.lon:.6f}"


def printable(path: Path) -> str:
    """A path for people and JSON; bytes that are no UTF-8 are spelt out."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_geojson(answers: Sequence[Answer]) -> dict[str, Any]:
    """A FeatureCollection: for each photo its position, then its matches; needs a map with a place on Earth."""
    return {"type": "FeatureCollection", "features": [f for answer in answers for f in _features(answer)]}


def to_kml(answers: Sequence[Answer]) -> str:
    """The same as KML: a folder for each photo, and a ring of the uncertainty radius."""
    folders = "".join(_folder(answer) for answer in answers)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<kml xmlns="http://www.opengis.net/kml/2.2"><Document>'
        f"<name>covis</name>{folders}</Document></kml>\n"
    )


def write_geojson(path: Path, answers: Sequence[Answer]) -> None:
    """Writes `to_geojson`."""
    write_text(path, json.dumps(to_geojson(answers), indent=1, ensure_ascii=False) + "\n")


def write_kml(path: Path, answers: Sequence[Answer]) -> None:
    """Writes `to_kml`."""
    write_text(path, to_kml(answers))


def _features(answer: Answer) -> Iterator[dict[str, Any]]:
    photo = printable(answer.photo)
    if answer.position is not None:
        facts = {"kind": "position", "photo": photo, "confident": answer.confident, "probability": answer.probability}
        yield _feature(answer.position.place, facts | {"radius_m": answer.position.radius_m})
    for rank, match in enumerate(answer.matches, 1):
        facts = {"kind": "match", "photo": photo, "rank": rank, "image": match.image, "distance": match.distance}
        yield _feature(match.place, facts | {"overlap": match.overlap, "probability": match.probability})


def _feature(place: Place, facts: dict[str, Any]) -> dict[str, Any]:
    point = {"type": "Point", "coordinates": [place.lon, place.lat]}
    return {"type": "Feature", "geometry": point, "properties": facts | {"heading": place.heading}}


def _folder(answer: Answer) -> str:
    marks = [_mark(f"{i}. {m.image}", f"distance {m.distance:.3f}", m.place) for i, m in enumerate(answer.matches, 1)]
    if answer.position is not None:
        verdict = "position" if answer.confident else "best guess, no confident match"
        marks.insert(0, _mark(verdict, answer.note, answer.position.place) + _ring(answer.position))
    return f"<Folder><name>{escape(printable(answer.photo))}</name>{''.join(marks)}</Folder>"


def _mark(name: str, text: str, place: Place) -> str:
    point = f"<Point><coordinates>{place.lon},{place.lat}</coordinates></Point>"
    return f"<Placemark><name>{escape(name)}</name><description>{escape(text)}</description>{point}</Placemark>"


def _ring(position: Position) -> str:
    """The uncertainty radius as a line around the position."""
    if position.radius_m is None:
        return ""
    from pyproj import Geod

    steps = range(0, 361, 10)
    count = len(steps)
    lon, lat, _ = Geod(ellps="WGS84").fwd(
        [position.place.lon] * count, [position.place.lat] * count, list(steps), [position.radius_m] * count
    )
    corners = " ".join(f"{a},{b}" for a, b in zip(lon, lat, strict=True))
    name = f"{position.rate:.0%} within {position.radius_m:.0f} m"
    return f"<Placemark><name>{name}</name><LineString><coordinates>{corners}</coordinates></LineString></Placemark>"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _heading(place: Place) -> str:
    return "" if place.heading is None else f", heading {place.heading:.0f}°"


def _share(label: str, value: float | None) -> str:
    return "" if value is None else f"{label} {100 * value:.1f} %"
