"""Answers as GeoJSON: for each photo its position, its radius as a polygon, its matches and a line to each.

A GeoPackage holds the points of it: positions and matches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from covis.gis import write_features
from covis.maps.answers import Answer, Match, Place, Position, printable, significant

_RING_STEP_DEG = 10
_LonLat = list[Any]


def to_geojson(answers: Sequence[Answer]) -> dict[str, Any]:
    """The answers as a FeatureCollection."""
    return {"type": "FeatureCollection", "features": [f for answer in answers for f in _answer_features(answer)]}


def write_geojson(path: Path, answers: Sequence[Answer]) -> None:
    """Writes all features."""
    write_features(path, {"answers": to_geojson(answers)["features"]})


def write_geopackage(path: Path, answers: Sequence[Answer]) -> None:
    """Writes positions and matches as a layer of points."""
    points = [f for f in to_geojson(answers)["features"] if f["geometry"] and f["geometry"]["type"] == "Point"]
    write_features(path, {"answers": points})


def _answer_features(answer: Answer) -> Iterator[dict[str, Any]]:
    photo, position = printable(answer.photo), answer.position
    if position is not None:
        facts = {"photo": photo, "confident": answer.confident, "probability": significant(answer.probability)}
        facts |= {
            "elsewhere": significant(answer.elsewhere),
            "verdict": answer.word,
            **{key: position.to_dict()[key] for key in ("radius_m", "rate")},
        }
        if answer.absent:  # listed, but drawn nowhere
            yield _feature(None, facts | {"kind": "position"})
            return
        yield _point_feature(position.place, facts | {"kind": "position"})
        ring = _radius_ring(position)
        if ring:
            parts = [[part] for part in _cut_at_antimeridian(ring)]
            yield _feature(_geometry("Polygon", parts), facts | {"kind": "radius"})
    for rank, match in enumerate(answer.matches, 1):
        values = match.to_dict()
        facts = {"photo": photo, "rank": rank}
        facts |= {key: values[key] for key in ("image", "distance", "overlap", "probability")}
        yield _point_feature(match.place, facts | {"kind": "match"})
        line = _line_to_match(position, match)
        if line:
            yield _feature(_geometry("LineString", _cut_at_antimeridian(line)), facts | {"kind": "line"})


def _point_feature(place: Place, facts: dict[str, Any]) -> dict[str, Any]:
    heading = place.to_dict()["heading"]
    return _feature({"type": "Point", "coordinates": _lon_lat(place)}, facts | {"heading": heading})


def _feature(geometry: dict[str, Any] | None, facts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Feature", "geometry": geometry, "properties": facts}


def _geometry(kind: str, parts: Sequence[Any]) -> dict[str, Any]:
    """A geometry of one part, or the Multi… form for several."""
    if len(parts) == 1:
        return {"type": kind, "coordinates": parts[0]}
    return {"type": f"Multi{kind}", "coordinates": list(parts)}


def _lon_lat(place: Place) -> _LonLat:
    values = place.to_dict()
    return [values.get("lon"), values.get("lat")]


def _cut_at_antimeridian(points: Sequence[_LonLat]) -> list[list[_LonLat]]:
    """A line, or a convex ring whose first point is also its last: one part, or one on each side of the antimeridian."""
    turns = [360 * round((lon - points[0][0]) / 360) for lon, _ in points]
    unwrapped = [(lon - turn, lat) for (lon, lat), turn in zip(points, turns, strict=True)]
    edge = math.copysign(180, max((lon for lon, _ in unwrapped), key=abs))
    if all(abs(lon) <= 180 for lon, _ in unwrapped):
        return [list(points)]
    near, far = list[_LonLat](), list[_LonLat]()
    for before, (lon, lat) in zip([unwrapped[0], *unwrapped], unwrapped, strict=False):
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


def _line_to_match(position: Position | None, match: Match) -> list[_LonLat]:
    """The line from a position to a match; empty where both are one point, which is no valid line."""
    if position is None or position.place.lat is None:
        return []
    ends = [_lon_lat(position.place), _lon_lat(match.place)]
    return [] if ends[0] == ends[1] else ends


def _radius_ring(position: Position) -> list[_LonLat]:
    """The radius around a position: longitudes and latitudes, counter-clockwise, the first again at the end."""
    if position.radius_m is None or position.radius_m <= 0 or position.place.lat is None:
        return []
    from pyproj import Geod

    azimuths = [float(-angle) for angle in range(0, 361, _RING_STEP_DEG)]
    count = len(azimuths)
    place, radius = position.place, position.radius_m
    lon, lat, _ = Geod(ellps="WGS84").fwd([place.lon] * count, [place.lat] * count, azimuths, [radius] * count)
    ring = [[float(a), float(b)] for a, b in zip(lon, lat, strict=True)]
    return [*ring[:-1], ring[0]]
