"""Photos of street-level services as their own tools leave them: images beside the service's JSON.

Mapillary (`mapillary_image_description.json` of mapillary_tools, answers of the API v4), KartaView (answers of its API,
first and second version), Panoramax (STAC items). Where a service tells a corrected position, that is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covis.errors import InputError
from covis.files import foreign
from covis.images import ImageSet
from covis.poses import Poses
from covis.progress import warn
from covis.reading.scenes import read_json

NAN = float("nan")
_IMAGES = (".jpg", ".jpeg", ".png", ".webp")


class Row(NamedTuple):
    """One photo as a service describes it."""

    names: tuple[str, ...]
    """What its file may be called, with or without suffix."""
    lat: float
    lon: float
    heading: float = NAN
    altitude: float = NAN
    time: str = ""
    group: str = ""
    panorama: bool = False


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return NAN
    return number if np.isfinite(number) else NAN


def _mapillary_tools(told: Any) -> Iterator[Row]:
    """mapillary_tools' descriptions; entries with an `error` are left out."""
    for one in told:
        if "error" in one or "MAPLatitude" not in one:
            continue
        compass = one.get("MAPCompassHeading") or {}
        heading = _number(compass.get("TrueHeading", compass.get("MagneticHeading")))
        yield Row(
            (str(one.get("filename", "")),),
            _number(one["MAPLatitude"]),
            _number(one.get("MAPLongitude")),
            heading,
            _number(one.get("MAPAltitude")),
            _mapillary_time(str(one.get("MAPCaptureTime", ""))),
            str(one.get("MAPSequenceUUID", "")),
        )


def _mapillary_time(text: str) -> str:
    """`2024_05_01_12_30_05_250` (UTC) → ISO 8601."""
    try:
        return datetime.strptime(text, "%Y_%m_%d_%H_%M_%S_%f").replace(tzinfo=UTC).isoformat()
    except ValueError:
        return ""


def _mapillary_api(told: Any) -> Iterator[Row]:
    for one in told["data"] if isinstance(told, dict) else told:
        place = (one.get("computed_geometry") or one.get("geometry") or {}).get("coordinates") or (NAN, NAN)
        angle = one.get("computed_compass_angle", one.get("compass_angle"))
        taken = _number(one.get("captured_at"))
        yield Row(
            (str(one["id"]),),
            _number(place[1]),
            _number(place[0]),
            _number(angle),
            _number(one.get("computed_altitude", one.get("altitude"))),
            "" if np.isnan(taken) else datetime.fromtimestamp(taken / 1000, UTC).isoformat(),
            str(one.get("sequence", one.get("sequence_id", ""))),
            bool(one.get("is_pano")) or one.get("camera_type") in ("spherical", "equirectangular"),
        )


def _kartaview(told: Any) -> Iterator[Row]:
    """`osv.photos` of the first API, `result.data` of the second, or a list of the same."""
    if isinstance(told, dict):
        told = (
            (told.get("osv") or {}).get("photos")
            or (told.get("result") or {}).get("data")
            or told.get("currentPageItems")
        )
    for one in told or []:
        files = [str(one[k]) for k in ("name", "filepath", "fileurl", "imageLthUrl", "fileurlProc") if one.get(k)]
        names = (str(one.get("id", "")), *(file.rsplit("/", 1)[-1] for file in files))
        matched = one.get("matchLat") or one.get("match_lat"), one.get("matchLng") or one.get("match_lng")
        lat, lon = matched if all(matched) else (one.get("lat"), one.get("lng"))
        group = one.get("sequenceId") or one.get("sequence_id") or (one.get("sequence") or {}).get("id", "")
        yield Row(
            tuple(n for n in names if n),
            _number(lat),
            _number(lon),
            _number(one.get("heading")),
            time=str(one.get("shotDate") or one.get("shot_date") or ""),
            group=str(group),
            panorama=str(one.get("projection", "")).upper() == "SPHERE",
        )


def _panoramax(told: Any) -> Iterator[Row]:
    for one in told["features"]:
        facts = one.get("properties") or {}
        place = list((one.get("geometry") or {}).get("coordinates") or (NAN, NAN))
        view = (facts.get("pers:interior_orientation") or {}).get("field_of_view")
        links = (asset.get("href", "").rsplit("/", 1)[-1] for asset in (one.get("assets") or {}).values())
        original = facts.get("original_file:name", "")
        yield Row(
            tuple(n for n in (str(one.get("id", "")), original, *links) if n),
            _number(place[1]),
            _number(place[0]),
            _number(facts.get("view:azimuth")),
            _number(place[2]) if len(place) > 2 else NAN,
            str(facts.get("datetime", "")),
            str(one.get("collection", "")),
            view == 360,
        )


def _first(told: Any) -> Mapping[str, Any]:
    """The first entry of a list, empty where there is none."""
    return told[0] if isinstance(told, list) and told and isinstance(told[0], dict) else {}


def _items(told: Any, *path: str) -> Any:
    for key in path:
        told = told.get(key) if isinstance(told, dict) else None
    return told


SERVICES: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Iterable[Row]]]] = {
    "mapillary_tools": (lambda t: "MAPLatitude" in _first(t) or "error" in _first(t), _mapillary_tools),
    "Mapillary": (
        lambda t: bool({"computed_geometry", "compass_angle"} & set(_first(_items(t, "data") or t))),
        _mapillary_api,
    ),
    "Panoramax": (lambda t: "assets" in _first(_items(t, "features")), _panoramax),
    "KartaView": (
        lambda t: "lng" in _first(_items(t, "osv", "photos") or _items(t, "result", "data") or t),
        _kartaview,
    ),
}
"""Name → (whether a JSON value is theirs, its rows)."""


def service_of(folder: Path) -> tuple[str, list[Path]] | None:
    """The service whose metadata lies in a folder, and the files of it; None for other folders."""
    found: dict[str, list[Path]] = {}
    for file in sorted([*folder.glob("*.json"), *folder.glob("*.geojson")]) if folder.is_dir() else []:
        try:
            told = read_json(file)
        except InputError:
            continue
        name = next((name for name, (is_theirs, _) in SERVICES.items() if is_theirs(told)), None)
        if name is not None:
            found.setdefault(name, []).append(file)
    if len(found) > 1:
        raise InputError(f"{folder} has metadata of {' and '.join(found)}; keep each service in its own folder")
    return next(iter(found.items()), None)


@foreign("photos of a street-level service")
def read_street_level(folder: Path | str) -> ImageSet:
    """The photos of a folder that its service's JSON describes; those without a description are counted and left out."""
    folder = Path(folder)
    found = service_of(folder)
    if found is None:
        raise InputError(f"{folder} has no metadata of {', '.join(SERVICES)}; keep their JSON beside the photos")
    service, files = found
    try:
        rows = [row for file in files for row in SERVICES[service][1](read_json(file))]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{files[0]} is not what {service} writes ({error!r})") from None
    on_disk: dict[str, str] = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in _IMAGES):
        name = path.relative_to(folder).as_posix()
        for key in (path.stem, path.name, name):
            on_disk.setdefault(key, name)
    named = {on_disk[key]: row for row in rows for key in _keys(row) if key in on_disk}
    if not named:
        raise InputError(
            f"{folder}: none of the {len(rows)} photos that {files[0].name} describes is there; download them"
        )
    if len(set(on_disk.values())) > len(named):
        warn(f"{folder}: {len(set(on_disk.values())) - len(named)} photos are not in {files[0].name} and are left out")
    return _image_set(folder, named)


def _keys(row: Row) -> Iterator[str]:
    for name in row.names:
        yield from (name, name.rsplit("/", 1)[-1], Path(name).stem)


def _image_set(folder: Path, named: Mapping[str, Row]) -> ImageSet:
    rows = list(named.values())
    lat, lon = np.array([r.lat for r in rows]), np.array([r.lon for r in rows])
    unknown = (np.abs(lat) > 90) | (np.abs(lon) > 180) | ((lat == 0) & (lon == 0)) | np.isnan(lat) | np.isnan(lon)
    lat, lon = np.where(unknown, np.nan, lat), np.where(unknown, np.nan, lon)
    heading = np.array([r.heading for r in rows])
    heading[heading < 0] = np.nan
    altitude = np.array([r.altitude for r in rows])
    poses = Poses.from_latlon(lat, lon, heading, z=None if np.isnan(altitude).all() else altitude)
    columns = {
        "time": np.array([r.time for r in rows], dtype=str),
        "is_panorama": np.array([r.panorama for r in rows], np.bool_),
    }
    return ImageSet.of(folder, list(named), poses, [r.group for r in rows], columns=columns)
