"""Answers as files that other programs read: CSV, GeoJSON, KML, GPX, OGC GeoPose, or GPS in copies of the photos.

All but CSV need a map with a place on Earth. Coordinates are WGS84 degrees, headings degrees clockwise from true north.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

from covis.errors import InputError
from covis.files import write_bytes
from covis.maps.locating import Answer, Place, Position, percent, printable

MEDIA_TYPE = "application/geopose+json"
GeoPoseForm = Literal["ypr", "quaternion"]


def geopose(place: Place, form: GeoPoseForm = "ypr") -> dict[str, Any]:
    """A level camera at a place on Earth, its height and (where unknown) its heading 0."""
    assert place.lat is not None
    assert place.lon is not None
    yaw = 0.0 if place.heading is None else (90.0 - place.heading + 180.0) % 360.0 - 180.0
    position = {"lat": round(place.lat, 8), "lon": round(place.lon, 8), "h": 0.0}
    if form == "ypr":
        return {"position": position, "angles": {"yaw": round(yaw, 3), "pitch": 0.0, "roll": 0.0}}
    half = math.radians(yaw) / 2
    return {"position": position, "quaternion": {"x": 0.0, "y": 0.0, "z": math.sin(half), "w": math.cos(half)}}


def to_geopose(answers: Sequence[Answer]) -> dict[str, Any] | list[dict[str, Any]]:
    """One object for one photo, a list for several; photos without a position on Earth are left out."""
    poses = [pose for answer in answers if (pose := basic_ypr(answer)) is not None]
    return poses[0] if len(answers) == len(poses) == 1 else poses


def basic_ypr(answer: Answer) -> dict[str, Any] | None:
    """The answer's position as Basic-YPR; None where it has none on Earth."""
    spot = answer.position
    if spot is None or spot.place.lat is None or spot.place.lon is None:
        return None
    return {
        **geopose(spot.place),
        "covis": {
            "photo": printable(answer.photo), "confident": answer.confident, "probability": answer.probability,
            "radius_m": spot.radius_m, "rate": spot.rate, "heading_known": spot.place.heading is not None,
            "height_known": False,
        },
    }  # fmt: skip


# Answers as files that other programs read: CSV, GeoJSON, KML, GPX, OGC GeoPose, or GPS in copies of the photos.
#
# All but CSV need a map with a place on Earth. Coordinates are WGS84 degrees, headings degrees clockwise from true north.


_RING_DEG = 10
_CSV = ("photo", "verdict", "probability", "confident", "lat", "lon", "easting", "northing", "heading", "radius_m",
        "rate", "match", "match_distance", "match_probability", "note")  # fmt: skip


def to_csv(answers: Sequence[Answer]) -> str:
    """One line per photo, with its first match."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _CSV, lineterminator="\n")
    writer.writeheader()
    for answer in answers:
        row: dict[str, Any] = {"photo": printable(answer.photo), "verdict": answer.word, "confident": answer.confident}
        row |= {"probability": answer.probability, "note": answer.note}
        if answer.position is not None:
            row |= {key: value for key, value in answer.position.to_dict().items() if key in _CSV}
        if answer.matches:
            best = answer.matches[0]
            row |= {"match": best.image, "match_distance": round(best.distance, 6)}
            row |= {"match_probability": best.probability}
        writer.writerow(row)
    return buffer.getvalue()


def to_geojson(answers: Sequence[Answer]) -> dict[str, Any]:
    """A FeatureCollection: for each photo its position, its radius as a polygon, its matches and a line to each."""
    return {"type": "FeatureCollection", "features": [f for answer in answers for f in _features(answer)]}


def _features(answer: Answer) -> Iterator[dict[str, Any]]:
    photo, position = printable(answer.photo), answer.position
    if position is not None:
        facts = {"photo": photo, "confident": answer.confident, "probability": answer.probability}
        facts |= {"verdict": answer.word, "radius_m": position.radius_m, "rate": position.rate}
        point = _point(position.place)
        yield _feature({"type": "Point", "coordinates": point}, facts | {"kind": "position"}, position.place)
        ring = _ring(position)
        if ring:
            yield _feature({"type": "Polygon", "coordinates": [ring]}, facts | {"kind": "radius"})
    for rank, match in enumerate(answer.matches, 1):
        facts = {"photo": photo, "rank": rank, "image": match.image, "distance": match.distance}
        facts |= {"overlap": match.overlap, "probability": match.probability}
        end = _point(match.place)
        yield _feature({"type": "Point", "coordinates": end}, facts | {"kind": "match"}, match.place)
        if position is not None:
            line = {"type": "LineString", "coordinates": [_point(position.place), end]}
            yield _feature(line, facts | {"kind": "line"})


def _feature(geometry: dict[str, Any], facts: dict[str, Any], place: Place | None = None) -> dict[str, Any]:
    heading = {} if place is None else {"heading": place.heading}
    return {"type": "Feature", "geometry": geometry, "properties": facts | heading}


def _point(place: Place) -> list[float | None]:
    return [place.lon, place.lat]


def _ring(position: Position) -> list[list[float]]:
    """The radius around a position: longitudes and latitudes, counter-clockwise, the first again at the end."""
    if position.radius_m is None or position.radius_m <= 0 or position.place.lat is None:
        return []
    from pyproj import Geod

    steps = [float(-angle) for angle in range(0, 361, _RING_DEG)]
    count = len(steps)
    place, radius = position.place, position.radius_m
    lon, lat, _ = Geod(ellps="WGS84").fwd([place.lon] * count, [place.lat] * count, steps, [radius] * count)
    ring = [[float(a), float(b)] for a, b in zip(lon, lat, strict=True)]
    return [*ring[:-1], ring[0]]


def to_kml(answers: Sequence[Answer]) -> str:
    """A folder for each photo: its position, a ring of the radius, its matches."""
    folders = "".join(_folder(answer) for answer in answers)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<kml xmlns="http://www.opengis.net/kml/2.2"><Document>'
        f"<name>covis</name>{folders}</Document></kml>\n"
    )


def _folder(answer: Answer) -> str:
    marks = [_mark(f"{i}. {m.image}", f"distance {m.distance:.3f}", m.place) for i, m in enumerate(answer.matches, 1)]
    if answer.position is not None:
        marks.insert(0, _mark(answer.word or "best guess", answer.verdict, answer.position.place))
        marks.insert(1, _outline(answer.position))
    return f"<Folder><name>{_xml(printable(answer.photo))}</name>{''.join(marks)}</Folder>"


def _mark(name: str, text: str, place: Place) -> str:
    point = f"<Point><coordinates>{place.lon},{place.lat}</coordinates></Point>"
    return f"<Placemark><name>{_xml(name)}</name><description>{_xml(text)}</description>{point}</Placemark>"


def _outline(position: Position) -> str:
    corners = " ".join(f"{lon},{lat}" for lon, lat in _ring(position))
    if not corners:
        return ""
    name = f"{position.rate:.0%} within {position.radius_m:.0f} m"
    return f"<Placemark><name>{name}</name><LineString><coordinates>{corners}</coordinates></LineString></Placemark>"


def to_gpx(answers: Sequence[Answer]) -> str:
    """A waypoint for each photo that has a position, GPX 1.1."""
    points = [
        f'<wpt lat="{a.position.place.lat}" lon="{a.position.place.lon}"><name>{_xml(a.photo.name)}</name>'
        f"<cmt>{_xml(a.verdict)}</cmt><desc>{_xml(printable(a.photo))}</desc></wpt>"
        for a in answers
        if a.position is not None
    ]
    head = '<gpx version="1.1" creator="covis" xmlns="http://www.topografix.com/GPX/1/1">'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}{"".join(points)}</gpx>\n'


def _xml(text: str) -> str:
    """Text for XML 1.0, which has no place for most control characters even if escaped."""
    return escape("".join(c if c >= " " or c in "\t\n\r" else "\ufffd" for c in text))


def write_geoposes(target: Path, answers: Sequence[Answer], form: GeoPoseForm) -> tuple[int, int]:
    """One GeoPose file for one photo, a folder of them for several; how many were written, and left out for no heading."""
    posed = [a for a in answers if a.position is not None and a.position.place.heading is not None]
    if target.suffix:
        if len(answers) > 1:
            raise InputError(f"{target} can hold the GeoPose of one photo; for {len(answers)} give --geopose FOLDER")
        files = [target]
    else:
        files = _unique(target, [a.photo.with_suffix("").name + ".geopose.json" for a in posed])
    for answer, file in zip(posed, files, strict=False):
        assert answer.position is not None
        text = json.dumps(geopose(answer.position.place, form), indent=1) + "\n"
        _write(file, text)
    return len(posed), len(answers) - len(posed)


def write_exif(folder: Path, answers: Sequence[Answer]) -> tuple[int, list[str]]:
    """Copies of the photos with the position in their EXIF block, pixels untouched; how many, and what was left out."""
    located = [a for a in answers if a.position is not None and a.position.place.lat is not None]
    left_out = [printable(a.photo) for a in answers if a not in located]
    written = 0
    for answer, file in zip(located, _unique(folder, [a.photo.name for a in located]), strict=True):
        data = answer.photo.read_bytes()
        if data[:3] != b"\xff\xd8\xff":
            left_out.append(f"{printable(answer.photo)} (not a JPEG)")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(file, with_position(data, answer))
        shutil.copystat(answer.photo, file)
        written += 1
    return written, left_out


def with_position(jpeg: bytes, answer: Answer) -> bytes:
    """A JPEG's content with the answer's position, heading and radius in its EXIF block; everything else as it was."""
    from PIL import Image

    assert answer.position is not None
    exif = Image.Exif()
    start, stop = _exif_segment(jpeg)
    if stop > start:
        exif.load(jpeg[start + 4 : stop])
    gps = exif.get_ifd(0x8825)
    gps.update(_gps(answer))
    exif[0x8825] = gps
    block = exif.tobytes()
    if not block.startswith(b"Exif\0\0"):
        block = b"Exif\0\0" + block
    if len(block) + 2 > 0xFFFF:
        raise InputError(f"{answer.photo}: its EXIF block has no room for a position; use --csv or --gpx")
    segment = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    return jpeg[:start] + segment + jpeg[stop:]


def _exif_segment(jpeg: bytes) -> tuple[int, int]:
    """Where a JPEG's EXIF segment begins and ends; an empty span behind the head where it has none."""
    at = 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xDA:
        size = int.from_bytes(jpeg[at + 2 : at + 4], "big") + 2
        if jpeg[at + 1] == 0xE1 and jpeg[at + 4 : at + 10] == b"Exif\0\0":
            return at, at + size
        at += size
    behind = 2
    if jpeg[2:4] == b"\xff\xe0":  # JFIF stays in front
        behind += int.from_bytes(jpeg[4:6], "big") + 2
    return behind, behind


def _gps(answer: Answer) -> dict[int, Any]:
    """GPS tags by number, as EXIF 2.3 defines them."""
    assert answer.position is not None
    place, radius = answer.position.place, answer.position.radius_m
    assert place.lat is not None
    assert place.lon is not None
    tags: dict[int, Any] = {0: b"\2\3\0\0", 1: "N" if place.lat >= 0 else "S", 2: _degrees(place.lat)}
    tags |= {3: "E" if place.lon >= 0 else "W", 4: _degrees(place.lon), 18: "WGS-84"}
    if place.heading is not None:
        tags |= {16: "T", 17: round(place.heading % 360.0, 2)}
    if radius is not None:
        tags[31] = round(radius, 1)
    sure = "" if answer.probability is None else f", {percent(answer.probability)} likely"
    return tags | {27: b"ASCII\0\0\0" + f"covis visual place recognition{sure}".encode("ascii", "replace")}


def _degrees(value: float) -> tuple[float, float, float]:
    """Degrees, minutes and seconds."""
    seconds = round(abs(value) * 3600, 4)
    return float(seconds // 3600), float(seconds % 3600 // 60), round(seconds % 60, 4)


def _unique(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files in `folder`, numbered where two have one name."""
    seen: dict[str, int] = {}
    files = []
    for name in names:
        seen[name] = count = seen.get(name, 0) + 1
        stem, dot, ending = name.partition(".")
        files.append(folder / (name if count == 1 else f"{stem}-{count}{dot}{ending}"))
    return files


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


TEXTS: dict[str, Callable[[Sequence[Answer]], str]] = {
    "csv": to_csv,
    "geojson": lambda answers: json.dumps(to_geojson(answers), indent=1, ensure_ascii=False) + "\n",
    "kml": to_kml,
    "gpx": to_gpx,
}
"""Option of `covis locate` → what it writes."""


def write_text(path: Path, kind: str, answers: Sequence[Answer]) -> None:
    """Writes one of `TEXTS`, whole or not at all."""
    _write(path, TEXTS[kind](answers))
