"""Answers as files, in the format that a file's ending names.

Coordinates are WGS84 degrees, headings degrees clockwise from true north.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.core.files import write_bytes
from covis.geojson import collection, feature
from covis.images import ImageSet
from covis.maps.answers import Answer, Place, printable, significant

FORMATS = {
    ".csv": "table, one line per photo",
    ".json": "answers as --json prints them",
    ".html": "page with a map and the photos side by side",
    ".geojson": "positions and matches as points",
    ".geopose.json": "OGC GeoPoses",
}
"""Ending → what is written."""
COLUMNS = ("photo", "verdict", "probability", "elsewhere", "confident", "lat", "lon", "easting", "northing", "heading", "radius_m",
           "rate", "match", "match_distance", "match_probability", "note")  # fmt: skip
GEOJSON, GEOPOSE = "application/geo+json", "application/geopose+json"
"""Media types."""
_WITHOUT_EARTH = (".csv", ".json", ".html")


def ending_of(path: Path) -> str:
    """The key of `FORMATS` that a path is written as."""
    known = [ending for ending in FORMATS if path.name.lower().endswith(ending)]
    if not known:
        raise InputError(f"{path} must end in {', '.join(FORMATS)}; positions are written into photos by covis geotag")
    return max(known, key=len)


def check(path: Path, sources: Sequence[Path]) -> None:
    """Refuses, before any work, a path that cannot be written or would overwrite one of the `sources`."""
    ending_of(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file")
    if path.is_file() and any(source.is_file() and path.samefile(source) for source in sources):
        raise InputError(f"{path} would overwrite a file that is read; give another output")


def check_earth(path: Path, images: ImageSet) -> None:
    """Refuses a file of degrees for a map that has no place on Earth."""
    if not images.poses.frame and ending_of(path) not in _WITHOUT_EARTH:
        raise InputError(
            f"{path} cannot show a map in metres without a place on Earth; write {', '.join(_WITHOUT_EARTH)}"
        )


def write(
    path: Path, answers: Sequence[Answer], images: ImageSet, *, tiles: str = "", pictures: Sequence[Path] = ()
) -> None:
    """Writes one file, whole or not at all.

    images: the photos of the map that gave the answers. tiles: below a page's map: `osm`, or an address with {z}, {x} and
    {y}. pictures: further folders whose photos a page may show.
    """
    check_earth(path, images)
    ending = ending_of(path)
    if ending == ".html":
        from covis.maps.page import write_answers

        write_answers(path, answers, images, tiles=tiles, pictures=pictures)
        return
    text = to_csv(answers) if ending == ".csv" else json.dumps(_VALUES[ending](answers), indent=1) + "\n"
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def to_csv(answers: Sequence[Answer]) -> str:
    """One line per photo, with its first match."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(answer_row(answer) for answer in answers)
    return buffer.getvalue()


def answer_row(answer: Answer) -> dict[str, Any]:
    """Column → value, of those that are known."""
    row: dict[str, Any] = {"photo": printable(answer.photo), "verdict": answer.word, "confident": answer.confident}
    row |= {"probability": significant(answer.probability), "elsewhere": significant(answer.elsewhere)}
    row |= {"note": answer.note}
    if answer.position is not None and not answer.absent:
        row |= {key: value for key, value in answer.position.to_dict().items() if key in COLUMNS}
    if answer.matches:
        best = answer.matches[0]
        row |= {"match": best.image, "match_distance": round(best.distance, 6)}
        row |= {"match_probability": significant(best.probability)}
    return row


def to_geojson(answers: Sequence[Answer]) -> dict[str, Any]:
    """A FeatureCollection: for each photo its position, with its radius, and its matches."""
    return collection([f for answer in answers for f in _features(answer)])


def _features(answer: Answer) -> Iterator[dict[str, Any]]:
    photo, position = printable(answer.photo), answer.position
    if position is not None:
        values = position.to_dict()
        facts = {"kind": "position", "photo": photo, "confident": answer.confident, "verdict": answer.word}
        facts |= {"probability": significant(answer.probability), "elsewhere": significant(answer.elsewhere)}
        facts |= {key: values[key] for key in ("heading", "radius_m", "rate")}
        yield feature("Point", None if answer.absent else _lon_lat(position.place), facts)  # listed, but drawn nowhere
    for rank, match in enumerate(answer.matches, 1):
        values = match.to_dict()
        facts = {key: values[key] for key in ("image", "heading", "distance", "overlap", "probability")}
        yield feature("Point", _lon_lat(match.place), {"kind": "match", "photo": photo, "rank": rank, **facts})


def _lon_lat(place: Place) -> list[Any]:
    values = place.to_dict()
    return [values.get("lon"), values.get("lat")]


def to_geopose(answers: Sequence[Answer]) -> dict[str, Any] | list[dict[str, Any]]:
    """Basic-YPR: one object for one photo, a list for several; photos without a position on Earth are left out."""
    poses = [pose for answer in answers if (pose := _basic_ypr(answer)) is not None]
    return poses[0] if len(answers) == len(poses) == 1 else poses


def _basic_ypr(answer: Answer) -> dict[str, Any] | None:
    """A level camera at the answer's place; its height, and its heading if unknown, are 0."""
    position = None if answer.absent else answer.position
    if position is None or position.place.lat is None or position.place.lon is None:
        return None
    place = position.place
    yaw = 0.0 if place.heading is None else (90.0 - place.heading + 180.0) % 360.0 - 180.0
    return {
        "position": {"lat": round(position.place.lat, 8), "lon": round(position.place.lon, 8), "h": 0.0},
        "angles": {"yaw": round(yaw, 3), "pitch": 0.0, "roll": 0.0},
        "covis": {
            "photo": printable(answer.photo), "confident": answer.confident, "probability": answer.probability,
            "radius_m": position.radius_m, "rate": position.rate, "heading_known": place.heading is not None, "height_known": False,
        },
    }  # fmt: skip


_VALUES: dict[str, Callable[[Sequence[Answer]], Any]] = {
    ".json": lambda answers: [answer.to_dict() for answer in answers],
    ".geojson": to_geojson,
    ".geopose.json": to_geopose,
}
