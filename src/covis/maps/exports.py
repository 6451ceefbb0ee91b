"""Answers as files: CSV, GeoJSON, KML, GPX, OGC GeoPose, GPS in copies of the photos, or a page with map and photos.

All but CSV need a map with a place on Earth. Coordinates are WGS84 degrees, headings degrees clockwise from true north.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import numpy as np

from covis.core.errors import InputError
from covis.core.files import write_bytes, write_text
from covis.core.progress import warn
from covis.core.tables import counted
from covis.images import ImageSet
from covis.maps.locating import Answer, Match, Place, Position, match_facts, percent, places_of, printable, significant
from covis.maps.storage import Pictures, text_of
from covis.reading.decoding import Reject, decode, open_image

if TYPE_CHECKING:
    import jinja2


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
_Point = list[Any]
"""Longitude and latitude, as GeoJSON has them."""
_CSV = ("photo", "verdict", "probability", "confident", "lat", "lon", "easting", "northing", "heading", "radius_m",
        "rate", "match", "match_distance", "match_probability", "note")  # fmt: skip


def to_csv(answers: Sequence[Answer]) -> str:
    """One line per photo, with its first match."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _CSV, lineterminator="\n")
    writer.writeheader()
    for answer in answers:
        row: dict[str, Any] = {"photo": printable(answer.photo), "verdict": answer.word, "confident": answer.confident}
        row |= {"probability": significant(answer.probability), "note": answer.note}
        if answer.position is not None:
            row |= {key: value for key, value in answer.position.to_dict().items() if key in _CSV}
        if answer.matches:
            best = answer.matches[0]
            row |= {"match": best.image, "match_distance": round(best.distance, 6)}
            row |= {"match_probability": significant(best.probability)}
        writer.writerow(row)
    return buffer.getvalue()


def to_geojson(answers: Sequence[Answer]) -> dict[str, Any]:
    """A FeatureCollection: for each photo its position, its radius as a polygon, its matches and a line to each."""
    return {"type": "FeatureCollection", "features": [f for answer in answers for f in _features(answer)]}


def _features(answer: Answer) -> Iterator[dict[str, Any]]:
    photo, position = printable(answer.photo), answer.position
    if position is not None:
        facts = {"photo": photo, "confident": answer.confident, "probability": significant(answer.probability)}
        facts |= {"verdict": answer.word, **{key: position.to_dict()[key] for key in ("radius_m", "rate")}}
        point = _point(position.place)
        yield _feature({"type": "Point", "coordinates": point}, facts | {"kind": "position"}, position.place)
        ring = _ring(position)
        if ring:
            parts = [[part] for part in _sides(ring)]
            yield _feature(_geometry("Polygon", parts), facts | {"kind": "radius"})
    for rank, match in enumerate(answer.matches, 1):
        known = match.to_dict()
        facts = {"photo": photo, "rank": rank}
        facts |= {key: known[key] for key in ("image", "distance", "overlap", "probability")}
        yield _feature({"type": "Point", "coordinates": _point(match.place)}, facts | {"kind": "match"}, match.place)
        ends = _ends(position, match)
        if ends:
            yield _feature(_geometry("LineString", _sides(ends)), facts | {"kind": "line"})


def _feature(geometry: dict[str, Any], facts: dict[str, Any], place: Place | None = None) -> dict[str, Any]:
    heading = {} if place is None else {"heading": place.to_dict()["heading"]}
    return {"type": "Feature", "geometry": geometry, "properties": facts | heading}


def _geometry(kind: str, parts: Sequence[Any]) -> dict[str, Any]:
    """A geometry of one part, or the Multi… form for several."""
    if len(parts) == 1:
        return {"type": kind, "coordinates": parts[0]}
    return {"type": f"Multi{kind}", "coordinates": list(parts)}


def _point(place: Place) -> _Point:
    known = place.to_dict()
    return [known.get("lon"), known.get("lat")]


def _sides(points: Sequence[_Point]) -> list[list[_Point]]:
    """A line, or a convex ring whose first point is also its last, cut at the antimeridian: a part for each side of it."""
    turns = [360 * round((lon - points[0][0]) / 360) for lon, _ in points]
    beyond = [lon - turn for (lon, _), turn in zip(points, turns, strict=True)]  # continued from the first point's side
    edge = math.copysign(180, max(beyond, key=abs))
    if max(map(abs, beyond)) <= 180:
        return [list(points)]
    near, far = list[_Point](), list[_Point]()
    known = list(zip(beyond, (lat for _, lat in points), strict=True))
    for k, (lon, lat) in enumerate(known):
        before = known[k - 1] if k else (lon, lat)
        if (abs(before[0]) > 180) != (abs(lon) > 180):
            share = (edge - before[0]) / (lon - before[0])
            crossing = before[1] + share * (lat - before[1])
            near.append([edge, crossing])
            far.append([-edge, crossing])
        if abs(lon) > 180:
            far.append([lon - 2 * edge, lat])
        else:
            near.append([lon, lat])
    closed = points[0] == points[-1] and len(points) > 2
    return [near, [*far, far[0]] if closed else far]


def _ends(position: Position | None, match: Match) -> list[_Point]:
    """The line from a position to a match; empty where both are one point, which is no valid line."""
    if position is None or position.place.lat is None:
        return []
    ends = [_point(position.place), _point(match.place)]
    return [] if ends[0] == ends[1] else ends


def _ring(position: Position) -> list[_Point]:
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
    """A folder for each photo: its position, its radius, its matches and a line to each."""
    folders = "".join(_folder(answer) for answer in answers)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<kml xmlns="http://www.opengis.net/kml/2.2"><Document>'
        f"<name>covis</name>{folders}</Document></kml>\n"
    )


def _folder(answer: Answer) -> str:
    position, matches = answer.position, answer.matches
    marks = []
    if position is not None:
        marks = [_mark(answer.word or "best guess", answer.verdict, _spot(position.place)), _outline(position)]
    for i, match in enumerate(matches):
        ends = _ends(position, match)
        shape = _several(
            [_spot(match.place), *(_line(part) for part in _sides(ends))] if ends else [_spot(match.place)]
        )
        marks.append(_mark(f"{i + 1}. {match.image}", ", ".join(match_facts(matches, i)), shape))
    return f"<Folder><name>{_xml(printable(answer.photo))}</name>{''.join(marks)}</Folder>"


def _mark(name: str, text: str, shape: str) -> str:
    return f"<Placemark><name>{_xml(name)}</name><description>{_xml(text)}</description>{shape}</Placemark>"


def _spot(place: Place) -> str:
    return f"<Point>{_coordinates([_point(place)])}</Point>"


def _line(points: Sequence[_Point]) -> str:
    return f"<LineString><tessellate>1</tessellate>{_coordinates(points)}</LineString>"


def _coordinates(points: Sequence[_Point]) -> str:
    return f"<coordinates>{' '.join(f'{lon},{lat}' for lon, lat in points)}</coordinates>"


def _outline(position: Position) -> str:
    ring = _ring(position)
    if not ring:
        return ""
    name = f"{position.rate:.0%} within {position.radius_m:.0f} m"
    return f"<Placemark><name>{name}</name>{_several([_line(part) for part in _sides(ring)])}</Placemark>"


def _several(shapes: Sequence[str]) -> str:
    """One shape, or several as one."""
    return shapes[0] if len(shapes) == 1 else f"<MultiGeometry>{''.join(shapes)}</MultiGeometry>"


def to_gpx(answers: Sequence[Answer]) -> str:
    """A waypoint for each photo that has a position, GPX 1.1."""
    points = [
        f'<wpt lat="{_point(a.position.place)[1]}" lon="{_point(a.position.place)[0]}"><name>{_xml(a.photo.name)}</name>'
        f"<cmt>{_xml(a.verdict)}</cmt><desc>{_xml(printable(a.photo))}</desc></wpt>"
        for a in answers
        if a.position is not None
    ]
    head = '<gpx version="1.1" creator="covis" xmlns="http://www.topografix.com/GPX/1/1">'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}{"".join(points)}</gpx>\n'


def _xml(text: str) -> str:
    """Text for XML 1.0, which has no place for most control characters even if escaped."""
    return escape("".join(c if c >= " " or c in "\t\n\r" else "\ufffd" for c in text))


def check_geopose_target(target: Path, photos: int) -> None:
    """Refuses a file for several photos, each of which has a GeoPose of its own."""
    if target.suffix and photos > 1:
        raise InputError(f"{target} can hold the GeoPose of one photo; for {photos} give --geopose FOLDER")


def write_geoposes(target: Path, answers: Sequence[Answer], form: GeoPoseForm) -> tuple[int, int]:
    """A GeoPose file for one photo, a folder for several; returns how many were written, how many lack a heading."""
    check_geopose_target(target, len(answers))
    posed = [a for a in answers if a.position is not None and a.position.place.heading is not None]
    if target.suffix:
        files = [target]
    else:
        files = _unique(target, [a.photo.with_suffix("").name + ".geopose.json" for a in posed])
    for answer, file in zip(posed, files, strict=False):
        assert answer.position is not None
        text = json.dumps(geopose(answer.position.place, form), indent=1) + "\n"
        _write(file, text)
    return len(posed), len(answers) - len(posed)


def check_exif_target(folder: Path, photos: Sequence[Path]) -> None:
    """Refuses the folder of the photos themselves, which their copies would overwrite."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; give a folder for the copies with GPS")
    within = folder.resolve()
    original = next((p for p in photos if within in (p.parent.resolve(), p.resolve().parent)), None)
    if original is not None:
        raise InputError(f"{folder} holds the original {original}, which stays unchanged; give another folder")


def write_exif(folder: Path, answers: Sequence[Answer]) -> tuple[int, int, list[str]]:
    """Copies of the photos with the position in their EXIF block, pixels untouched.

    JPEG, PNG and WebP carry it inside; copies of other formats (HEIC, TIFF) get an XMP file of their name beside them.
    Returns how many were written, how many of those have such a file, and which photos have no position.
    """
    located = [a for a in answers if a.position is not None and a.position.place.lat is not None]
    left_out = [printable(a.photo) for a in answers if a not in located]
    check_exif_target(folder, [a.photo for a in located])
    files, beside = _unique(folder, [a.photo.name for a in located]), 0
    foreign = next((file for file in files if file.exists() and not _is_copy(file)), None)
    if foreign is not None:
        raise InputError(f"{foreign} already exists and was not written by covis; give another folder for the copies")
    for answer, file in zip(located, files, strict=True):
        data = answer.photo.read_bytes()
        folder.mkdir(parents=True, exist_ok=True)
        placed = with_position(data, answer)
        write_bytes(file, data if placed is None else placed)
        shutil.copystat(answer.photo, file)
        if placed is None:
            _write(file.with_name(f"{file.name}.xmp"), to_xmp(answer))
            beside += 1
    return len(located), beside, left_out


def _is_copy(file: Path) -> bool:
    """Whether `write_exif` wrote a file before: it, or the XMP file beside it, says so."""
    written = (file, file.with_name(f"{file.name}.xmp"))
    return any(part.is_file() and _METHOD.encode() in part.read_bytes() for part in written)


def with_position(data: bytes, answer: Answer) -> bytes | None:
    """A photo's content with the answer's position in its EXIF block, all else as it was; None if no JPEG, PNG or WebP."""
    put = (
        _put_jpeg if data[:3] == b"\xff\xd8\xff" else
        _put_png if data[:8] == _PNG else
        _put_webp if (data[:4], data[8:12]) == (b"RIFF", b"WEBP") else None
    )  # fmt: skip
    return None if put is None else put(data, answer)


def to_xmp(answer: Answer) -> str:
    """The answer's position as an XMP file, which photo programs read beside a photo."""
    assert answer.position is not None
    place, radius = answer.position.place, answer.position.radius_m
    assert place.lat is not None
    assert place.lon is not None
    facts = {"GPSVersionID": "2.3.0.0", "GPSMapDatum": "WGS-84", "GPSProcessingMethod": _method(answer)}
    for name, value, signs in (("GPSLatitude", place.lat, "NS"), ("GPSLongitude", place.lon, "EW")):
        whole, minutes = divmod(round(abs(value) * 60, 7), 60)
        facts[name] = f"{whole:.0f},{minutes:.7f}{signs[value < 0]}"
    if place.heading is not None:
        facts |= {"GPSImgDirectionRef": "T", "GPSImgDirection": f"{round(place.heading % 360.0 * 100):d}/100"}
    if radius is not None:
        facts["GPSHPositioningError"] = f"{round(radius * 10):d}/10"
    tags = "".join(f"<exif:{name}>{_xml(text)}</exif:{name}>" for name, text in facts.items())
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        f'<rdf:Description rdf:about="" xmlns:exif="http://ns.adobe.com/exif/1.0/">{tags}</rdf:Description>'
        "</rdf:RDF></x:xmpmeta>\n"
    )


def _exif_block(before: bytes, answer: Answer) -> bytes:
    """An EXIF block (a TIFF header and its tags) with the position, and with all that was in the block before."""
    from PIL import Image

    exif = Image.Exif()
    if before:
        exif.load(before)
    gps = {tag: value for tag, value in exif.get_ifd(0x8825).items() if tag not in _OF_A_FIX} | _gps(answer)
    exif[0x8825] = gps
    return exif.tobytes().removeprefix(_EXIF_HEAD)


_OF_A_FIX = (*range(8, 12), 16, 17, 27, 28, 30, 31)
"""GPS tags about the previous position: satellites, status, mode, DOP, direction, method, area, differential, error."""
_EXIF_HEAD, _PNG = b"Exif\0\0", b"\x89PNG\r\n\x1a\n"


def _put_jpeg(jpeg: bytes, answer: Answer) -> bytes:
    start, stop = _exif_segment(jpeg)
    block = _EXIF_HEAD + _exif_block(jpeg[start + 4 : stop], answer)
    if len(block) + 2 > 0xFFFF:
        raise InputError(f"{answer.photo}: its EXIF block has no room for a position; use --csv or --gpx")
    segment = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    return jpeg[:start] + segment + jpeg[stop:]


def _exif_segment(jpeg: bytes) -> tuple[int, int]:
    """Where a JPEG's EXIF segment begins and ends; an empty span after the header where it has none."""
    at = 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xDA:
        size = int.from_bytes(jpeg[at + 2 : at + 4], "big") + 2
        if jpeg[at + 1] == 0xE1 and jpeg[at + 4 : at + 10] == _EXIF_HEAD:
            return at, at + size
        at += size
    behind = 2
    if jpeg[2:4] == b"\xff\xe0":  # JFIF stays in front
        behind += int.from_bytes(jpeg[4:6], "big") + 2
    return behind, behind


def _put_png(png: bytes, answer: Answer) -> bytes:
    """The chunk eXIf goes behind the header, before the pixels."""
    chunks: list[tuple[bytes, bytes]] = []
    at, before = len(_PNG), b""
    while at + 12 <= len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        kind, whole = png[at + 4 : at + 8], png[at : at + 12 + size]
        if kind == b"eXIf":
            before = whole[8:-4]
        else:
            chunks.append((kind, whole))
        at += 12 + size
    body = b"eXIf" + _exif_block(before, answer)
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return _PNG + chunks[0][1] + chunk + b"".join(whole for _, whole in chunks[1:]) + png[at:]


def _put_webp(webp: bytes, answer: Answer) -> bytes:
    """The chunk EXIF goes to the end of the file, whose header (VP8X, made where there is none) says so."""
    chunks: list[tuple[bytes, bytes]] = []
    at = 12
    while at + 8 <= len(webp):
        size = int.from_bytes(webp[at + 4 : at + 8], "little")
        chunks.append((webp[at : at + 4], webp[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    if chunks[0][0] != b"VP8X":
        alpha = chunks[0][0] == b"VP8L" and bool(chunks[0][1][4] & 0x10)
        canvas = b"".join((side - 1).to_bytes(3, "little") for side in open_image(io.BytesIO(webp)).size)
        chunks.insert(0, (b"VP8X", bytes([0x10 * alpha, 0, 0, 0]) + canvas))
    before = next((body for kind, body in chunks if kind == b"EXIF"), b"")
    head = chunks[0][1]
    kept = [(b"VP8X", bytes([head[0] | 0x08]) + head[1:]), *(c for c in chunks[1:] if c[0] != b"EXIF")]
    kept.append((b"EXIF", _exif_block(before, answer)))
    body = b"".join(kind + len(d).to_bytes(4, "little") + d + b"\0" * (len(d) % 2) for kind, d in kept)
    return b"RIFF" + (len(body) + 4).to_bytes(4, "little") + b"WEBP" + body


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
    return tags | {27: b"ASCII\0\0\0" + _method(answer).encode("ascii", "replace")}


def _method(answer: Answer) -> str:
    """How the position came about, and how likely it is right."""
    sure = "" if answer.probability is None else f", {percent(answer.probability)} likely"
    return f"{_METHOD}{sure}"


_METHOD = "covis visual place recognition"


def _degrees(value: float) -> tuple[float, float, float]:
    """Degrees, minutes and seconds."""
    seconds = round(abs(value) * 3600, 4)
    return float(seconds // 3600), float(seconds % 3600 // 60), round(seconds % 60, 4)


def _unique(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files in `folder`; where a name occurs again, a number that makes it unique is added."""
    taken, seen = set(names), set[str]()
    files = []
    for name in names:
        stem, dot, ending = name.partition(".")
        numbered = (f"{stem}-{count}{dot}{ending}" for count in itertools.count(2))
        own = name if name not in seen else next(other for other in numbered if other not in taken)
        seen.add(name)
        taken.add(own)
        files.append(folder / own)
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


def write_answers_as(path: Path, kind: str, answers: Sequence[Answer]) -> None:
    """Writes one of `TEXTS`, whole or not at all."""
    _write(path, TEXTS[kind](answers))


# Answers, or a whole map, as one self-contained page: a map that one can drag, photos side by side
# Nothing is loaded over the network unless map tiles are requested.


_THUMBNAIL = 400
_ROUGH = 2.0
"""Photos are decoded at up to this times the thumbnail's size, then scaled down."""
_PLACES = 20_000
"""Most photos of the map that a page shows as dots."""
_PICTURES = 400
"""Most photos of a whole map that are shown with a picture."""


def write_answers(
    path: Path, answers: Sequence[Answer], images: ImageSet, *, tiles: str = "", pictures: Sequence[Path] = ()
) -> None:
    """Writes the page of answers given by a map of `images`; `tiles` is an address with {z}, {x} and {y}.

    Pictures of the map's photos are shown where they lie in folders that were given to the map on this machine, or in
    one of `pictures`.
    """
    sure, located = sum(a.confident for a in answers), sum(a.position is not None for a in answers)
    of = f"{located} of " if located < len(answers) else ""
    lead = f"{of}{counted(len(answers), 'photo')} located in a map of {counted(len(images), 'photo')}; {counted(sure, 'answer')} confident."
    files = {match.file for answer in answers for match in answer.matches}
    earth = bool(images.poses.frame)
    entries = [_entry(answer, earth) for answer in answers]
    thumbnails = _Thumbnails(images.root, pictures)
    shown = {printable(file): thumbnails.of(file) for file in sorted(files)}
    _write_page(path, "Where these photos were taken", lead, entries, images, thumbnails=shown, tiles=tiles)
    thumbnails.tell(path)


def write_map(
    path: Path,
    images: ImageSet,
    name: str,
    facts: Mapping[str, Any],
    *,
    tiles: str = "",
    pictures: Sequence[Path] = (),
) -> None:
    """Writes the page of a whole map: its photos, and `facts` about it; `pictures` as in `write_answers`."""
    lead = f"{counted(len(images), 'photo')} in {counted(len(np.unique(images.group)), 'group')}."
    shown = np.arange(len(images))[:: max(1, -(-len(images) // _PICTURES))]
    earth, thumbnails = bool(images.poses.frame), _Thumbnails(images.root, pictures)
    entries: list[dict[str, Any]] = [
        {"kind": "photo", "name": text_of(images.names[i]), "tone": "none", "matches": [], "radius_m": None,
         "verdict": text_of(images.group_names[images.group[i]].encode("utf-8", "surrogateescape")),
         "thumbnail": thumbnails.of(Path(os.fsdecode(images.columns["file"][i]))), "heading": place.heading, "at": _at(place, earth)}
        for i, place in zip(shown, places_of(images.poses.subset(shown)), strict=True)
    ]  # fmt: skip
    _write_page(path, name, lead, entries, images, facts=facts, tiles=tiles)
    thumbnails.tell(path)


def _write_page(
    path: Path,
    title: str,
    lead: str,
    entries: Sequence[Mapping[str, Any]],
    images: ImageSet,
    *,
    thumbnails: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    tiles: str = "",
) -> None:
    check_tiles(tiles)
    data = {
        "earth": bool(images.poses.frame), "tiles": tiles, "photos": _dots(images), "entries": entries,
        "thumbnails": thumbnails or {},
    }  # fmt: skip
    leaflet = resources.files("covis").joinpath("report", "assets", "leaflet")
    own = resources.files("covis.maps").joinpath("assets")
    raw = _raw({
        "leaflet_css": leaflet.joinpath("leaflet.css"), "leaflet_js": leaflet.joinpath("leaflet.js"),
        "css": own.joinpath("map.css"), "script": own.joinpath("map.js"),
    })  # fmt: skip
    page = _environment().get_template("map.html").render(
        title=title, lead=lead, entries=entries, facts=facts or {}, data=data, tiles=tiles, **raw,
        tiles_host=urlsplit(tiles).hostname or "", footer="Written by covis.",
        licence=leaflet.joinpath("LICENSE").read_text(encoding="utf-8"),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)


def check_tiles(address: str) -> None:
    """Refuses an address that tiles cannot be requested from."""
    if address and not all(part in address for part in ("{z}", "{x}", "{y}")):
        raise InputError(f"--tiles is an address with {{z}}, {{x}} and {{y}} in it, not {address!r}")


def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(loader=jinja2.PackageLoader("covis.maps"), autoescape=True, keep_trailing_newline=True)


def _raw(assets: Mapping[str, Any]) -> dict[str, Any]:
    """Our own files as they are: scripts and styles must not be escaped."""
    from markupsafe import Markup

    texts = {name: asset.read_text(encoding="utf-8") for name, asset in assets.items()}
    texts["leaflet_js"] = texts["leaflet_js"].replace("//# sourceMappingURL=leaflet.js.map", "")
    return {name: Markup(text) for name, text in texts.items()}


def _entry(answer: Answer, earth: bool) -> dict[str, Any]:
    """One photo for the page's script and template."""
    position = answer.position
    return {
        "kind": "answer", "name": printable(Path(*answer.photo.parts[-2:])), "verdict": answer.verdict,
        "tone": "none" if position is None else "sure" if answer.confident else "unsure",
        "thumbnail": _thumbnail(answer.photo), "at": None if position is None else _at(position.place, earth),
        "heading": None if position is None else position.place.heading,
        "radius_m": None if position is None else position.radius_m,
        "matches": [_match(answer.matches, i, earth) for i in range(len(answer.matches))],
    }  # fmt: skip


def _match(matches: Sequence[Match], i: int, earth: bool) -> dict[str, Any]:
    match = matches[i]
    return {
        "image": match.image, "file": printable(match.file), "at": _at(match.place, earth),
        "heading": match.place.heading, "facts": match_facts(matches, i),
    }  # fmt: skip


def _at(place: Place, earth: bool) -> tuple[float, float]:
    """In Leaflet's order: latitude and longitude, or north and east in metres."""
    if earth and place.lat is not None and place.lon is not None:
        return round(place.lat, 8), round(place.lon, 8)
    return round(place.y, 3), round(place.x, 3)


def _dots(images: ImageSet) -> list[tuple[float, float, float | None, str]]:
    """Position, heading and name of the map's photos, every n-th if there are many."""
    some = images.subset(np.arange(0, len(images), max(1, -(-len(images) // _PLACES))))
    earth = bool(images.poses.frame)
    return [
        (*_at(place, earth), None if place.heading is None else round(place.heading, 1), text_of(name))
        for place, name in zip(places_of(some.poses), some.names, strict=True)
    ]


class _Thumbnails:
    """Small pictures of a map's photos that may be shown; how many may not is reported once."""

    def __init__(self, map_path: Path, pictures: Sequence[Path]) -> None:
        self.pictures = Pictures.of(map_path, pictures)
        self.hidden: list[Path] = []

    def of(self, file: Path) -> str:
        if not self.pictures.shows(file):
            self.hidden += [file] if file.name and file.is_file() else []
            return ""
        return _thumbnail(file)

    def tell(self, page: Path) -> None:
        if self.hidden:
            warn(
                f"{page}: {len(self.hidden)} photo{' is' if len(self.hidden) == 1 else 's are'} shown without a picture, "
                f"outside the folders that were given to the map on this machine; show with --pictures {self.hidden[0].parent}"
            )


def _thumbnail(file: Path) -> str:
    """A photo as a data address of a small JPEG; empty where the file cannot be used any more."""
    from PIL import Image

    try:
        picture = Image.fromarray(decode(file))
    except Reject:
        return ""
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL), reducing_gap=_ROUGH)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
