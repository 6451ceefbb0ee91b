"""GeoJSON: features written, and points read. Coordinates are WGS84 longitude and latitude."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.core.files import write_bytes
from covis.core.foreign import read_foreign_text

SUFFIX = ".geojson"


def feature(geometry: str, coordinates: Any, properties: Mapping[str, Any]) -> dict[str, Any]:
    """A feature; without `coordinates` it has no place."""
    shape = None if coordinates is None else {"type": geometry, "coordinates": coordinates}
    return {"type": "Feature", "geometry": shape, "properties": dict(properties)}


def collection(features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Features as one value."""
    return {"type": "FeatureCollection", "features": list(features)}


def write_features(path: Path, features: Sequence[Mapping[str, Any]]) -> None:
    """Writes a file, whole or not at all."""
    if path.suffix.lower() != SUFFIX:
        raise InputError(f"{path} must end in {SUFFIX}")
    text = json.dumps(collection(features), indent=1, ensure_ascii=False) + "\n"
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def read_points(path: Path) -> list[dict[str, Any]]:
    """The properties of a file's points, one each, with `lat` and `lon` (None without a place)."""
    try:
        content = json.loads(read_foreign_text(path))
        system = str((content.get("crs") or {}).get("properties", {}).get("name", "CRS84"))
        features = [(f["properties"] or {}, f["geometry"]) for f in content["features"]]
        kinds = {geometry["type"] for _, geometry in features if geometry}
        rows = [dict(values) | _place(geometry) for values, geometry in features]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise InputError(f"{path} cannot be read as GeoJSON; give a FeatureCollection with a point per photo") from None
    if kinds - {"Point"}:
        raise InputError(f"{path} has features that are no points ({', '.join(sorted(kinds))}); give a point per photo")
    if not system.endswith(("CRS84", "4326")):
        raise InputError(f"{path} is in {system}; save it in longitude and latitude (EPSG:4326)")
    return rows


def _place(geometry: dict[str, Any] | None) -> dict[str, Any]:
    if not geometry or geometry["type"] != "Point":
        return {"lat": None, "lon": None}
    lon, lat, *_ = geometry["coordinates"]
    return {"lat": lat, "lon": lon}
