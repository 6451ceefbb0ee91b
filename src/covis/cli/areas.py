"""Where a photo may be, as commands take it: a centre and a radius, or the corners of a polygon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from covis.errors import InputError

if TYPE_CHECKING:
    from covis.search import Area

Corner = tuple[float, float]


def read_area(near: str, inside: str, frame: str = "", option: str = "--near") -> Area | None:
    """The area in metres of `frame` (without one the numbers are metres already); None where nothing is given."""
    if near and inside:
        raise InputError(f"{option} and --inside are both given; give one area")
    if near:
        return _circle(near, frame, option)
    return _polygon(inside, frame) if inside else None


def _circle(text: str, frame: str, option: str) -> Area:
    from covis.search import Circle

    try:
        first, second, radius_m = map(float, text.split(","))
    except ValueError:
        given = "LAT,LON,RADIUS (degrees, degrees, metres)" if frame else "X,Y,RADIUS in metres"
        raise InputError(f"{option} is {given}, not {text!r}") from None
    ((x, y),) = _metres([(first, second)], frame)
    return Circle(x, y, radius_m)


def _polygon(text: str, frame: str) -> Area:
    from covis.search import Polygon

    path = Path(text)
    if path.suffix.lower() in (".geojson", ".json"):
        return Polygon(tuple(_metres(_ring(path, bool(frame)), frame)))
    try:
        corners = [_pair(part) for part in text.split()]
    except ValueError:
        what = "LAT,LON" if frame else "X,Y"
        raise InputError(f"--inside is a GeoJSON file or corners '{what} {what} {what} …', not {text!r}") from None
    return Polygon(tuple(_metres(corners, frame)))


def _pair(text: str) -> Corner:
    first, second = map(float, text.split(","))
    return first, second


def _ring(path: Path, degrees: bool) -> list[Corner]:
    """The outline of the one polygon of a GeoJSON file, as (lat, lon) or (x, y)."""
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as GeoJSON ({error}); give a file with one polygon") from None
    shapes = _shapes(found)
    if len(shapes) != 1 or shapes[0].get("type") != "Polygon" or len(shapes[0]["coordinates"]) != 1:
        raise InputError(f"{path} must hold one polygon without holes; split other areas into several commands")
    corners = [(float(first), float(second)) for first, second, *_ in shapes[0]["coordinates"][0]]
    return [(lat, lon) for lon, lat in corners] if degrees else corners


def _shapes(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, dict):
        return []
    if found.get("type") == "FeatureCollection":
        return [shape for feature in found["features"] for shape in _shapes(feature)]
    return [found["geometry"]] if found.get("type") == "Feature" else [found]


def _metres(corners: list[Corner], frame: str) -> list[Corner]:
    """(lat, lon) in the frame's metres; metres as they are."""
    if not frame:
        return corners
    from covis.poses import Poses

    lat, lon = zip(*corners, strict=True)
    xy = Poses.from_latlon(lat, lon, frame=frame).xy
    return [(float(x), float(y)) for x, y in xy]
