"""Photos that JSON or lists describe: nerfstudio, kapture, nuScenes, hloc's query lists, street-level services."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import foreign, open_regular, read_foreign_text, write_text
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import UNSCALED, Poses, quaternion_matrices
from covis.reading.cameras import MODELS, Camera, calibration, camera, pinhole
from covis.reading.trajectories import cells_of, compose, image_size

# Street-level services: images beside the service's JSON, as its own tools leave them
# Mapillary (`mapillary_image_description.json` of mapillary_tools, answers of the API v4), KartaView (answers of its API,
# first and second version), Panoramax (STAC items). Where a service gives a corrected position, that is taken.


_IMAGES = (".jpg", ".jpeg", ".png", ".webp")


class ServicePhoto(NamedTuple):
    """One photo as a service describes it."""

    names: tuple[str, ...]
    """What its file may be called, with or without suffix."""
    lat: float
    lon: float
    heading: float = math.nan
    altitude: float = math.nan
    time: str = ""
    group: str = ""
    panorama: bool = False


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if np.isfinite(number) else math.nan


def _mapillary_tools(entries: Any) -> Iterator[ServicePhoto]:
    """mapillary_tools' descriptions; entries with an `error` are left out."""
    for one in entries:
        if "error" in one or "MAPLatitude" not in one:
            continue
        compass = one.get("MAPCompassHeading") or {}
        heading = _number(compass.get("TrueHeading", compass.get("MagneticHeading")))
        yield ServicePhoto(
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


def _mapillary_api(answer: Any) -> Iterator[ServicePhoto]:
    for one in answer["data"] if isinstance(answer, dict) else answer:
        place = (one.get("computed_geometry") or one.get("geometry") or {}).get("coordinates") or (math.nan, math.nan)
        angle = one.get("computed_compass_angle", one.get("compass_angle"))
        taken = _number(one.get("captured_at"))
        yield ServicePhoto(
            (str(one["id"]),),
            _number(place[1]),
            _number(place[0]),
            _number(angle),
            _number(one.get("computed_altitude", one.get("altitude"))),
            "" if np.isnan(taken) else datetime.fromtimestamp(taken / 1000, UTC).isoformat(),
            str(one.get("sequence", one.get("sequence_id", ""))),
            bool(one.get("is_pano")) or one.get("camera_type") in ("spherical", "equirectangular"),
        )


def _kartaview(answer: Any) -> Iterator[ServicePhoto]:
    """`osv.photos` of the first API, `result.data` of the second, or a list of the same."""
    if isinstance(answer, dict):
        answer = (
            (answer.get("osv") or {}).get("photos")
            or (answer.get("result") or {}).get("data")
            or answer.get("currentPageItems")
        )
    for one in answer or []:
        files = [str(one[k]) for k in ("name", "filepath", "fileurl", "imageLthUrl", "fileurlProc") if one.get(k)]
        names = (str(one.get("id", "")), *(file.rsplit("/", 1)[-1] for file in files))
        matched = one.get("matchLat") or one.get("match_lat"), one.get("matchLng") or one.get("match_lng")
        lat, lon = matched if all(matched) else (one.get("lat"), one.get("lng"))
        group = one.get("sequenceId") or one.get("sequence_id") or (one.get("sequence") or {}).get("id", "")
        yield ServicePhoto(
            tuple(n for n in names if n),
            _number(lat),
            _number(lon),
            _number(one.get("heading")),
            time=str(one.get("shotDate") or one.get("shot_date") or ""),
            group=str(group),
            panorama=str(one.get("projection", "")).upper() == "SPHERE",
        )


def _panoramax(document: Any) -> Iterator[ServicePhoto]:
    for one in document["features"]:
        facts = one.get("properties") or {}
        place = list((one.get("geometry") or {}).get("coordinates") or (math.nan, math.nan))
        view = (facts.get("pers:interior_orientation") or {}).get("field_of_view")
        links = (asset.get("href", "").rsplit("/", 1)[-1] for asset in (one.get("assets") or {}).values())
        original = facts.get("original_file:name", "")
        yield ServicePhoto(
            tuple(n for n in (str(one.get("id", "")), original, *links) if n),
            _number(place[1]),
            _number(place[0]),
            _number(facts.get("view:azimuth")),
            _number(place[2]) if len(place) > 2 else math.nan,
            str(facts.get("datetime", "")),
            str(one.get("collection", "")),
            view == 360,
        )


def _first(value: Any) -> Mapping[str, Any]:
    """The first entry of a list, empty where there is none."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}


def _items(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


SERVICES: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Iterable[ServicePhoto]]]] = {
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
"""Name → (whether a JSON value is the service's, the photos that it describes)."""


def service_of(folder: Path) -> tuple[str, list[Path]] | None:
    """The service whose metadata lies in a folder, and its files; None for other folders."""
    files: dict[str, list[Path]] = {}
    for file in sorted([*folder.glob("*.json"), *folder.glob("*.geojson")]) if folder.is_dir() else []:
        try:
            document = read_foreign_json(file)
        except InputError:
            continue
        name = next((name for name, (is_theirs, _) in SERVICES.items() if is_theirs(document)), None)
        if name is not None:
            files.setdefault(name, []).append(file)
    if len(files) > 1:
        raise InputError(f"{folder} has metadata of {' and '.join(files)}; keep each service in its own folder")
    return next(iter(files.items()), None)


@foreign("photos of a street-level service")
def read_street_level(folder: Path | str) -> ImageSet:
    """The photos of a folder that its service's JSON describes; those without a description are counted and left out."""
    folder = Path(folder)
    service_files = service_of(folder)
    if service_files is None:
        raise InputError(f"{folder} has no metadata of {', '.join(SERVICES)}; keep their JSON beside the photos")
    service, files = service_files
    try:
        rows = [row for file in files for row in SERVICES[service][1](read_foreign_json(file))]
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


def _keys(row: ServicePhoto) -> Iterator[str]:
    for name in row.names:
        yield from (name, name.rsplit("/", 1)[-1], Path(name).stem)


def _image_set(folder: Path, named: Mapping[str, ServicePhoto]) -> ImageSet:
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


# Scenes


OPENGL = np.diag([1.0, -1.0, -1.0])
"""nerfstudio's camera axes (x right, y up, z back) from those of covis (x right, y down, z forward)."""
NERF_LENS = {
    "PINHOLE": "PINHOLE",
    "SIMPLE_PINHOLE": "PINHOLE",
    "OPENCV": "OPENCV",
    "OPENCV_FISHEYE": "OPENCV_FISHEYE",
    "SIMPLE_RADIAL": "OPENCV",
    "RADIAL": "OPENCV",
    "EQUIRECTANGULAR": "EQUIRECTANGULAR",
}
_SUFFIXES = ("", ".png", ".jpg", ".jpeg")


def read_foreign_json(path: Path) -> Any:
    """Any JSON value."""
    text = read_foreign_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error})") from None


# nerfstudio


@foreign("nerfstudio's transforms")
def read_nerfstudio(path: Path) -> ImageSet:
    """A `transforms.json` (nerfstudio, instant-ngp): camera-to-world in OpenGL axes, z up.

    Depth beside images (`depth_file_path`) is metric and fixes the unit; without it the unit is unknown.
    """
    document = read_foreign_json(path)
    frames = document.get("frames") if isinstance(document, dict) else None
    if not isinstance(frames, list) or not frames:
        raise InputError(f"{path} has no frames; expected nerfstudio's transforms.json")
    names = [_nerf_file(path, i, frame) for i, frame in enumerate(frames)]
    matrices = np.array([_nerf_matrix(path, i, frame) for i, frame in enumerate(frames)])
    matrices[:, :3, :3] = matrices[:, :3, :3] @ OPENGL
    depth = [frame.get("depth_file_path", "") for frame in frames]
    cameras = [_nerf_camera(path, {**document, **frame}, name) for frame, name in zip(frames, names, strict=True)]
    intrinsics, columns = calibration(cameras)
    if any(depth):
        matrices[:, :3, 3] /= float(document.get("applied_scale", 1.0))  # depth is in metres, positions in scaled ones
        columns["depth"] = np.array([d.encode() for d in depth])
        columns["depth_scale_m"] = np.full(len(frames), float(document.get("depth_unit_scale_factor", 1e-3)))
    poses = Poses.from_matrices(matrices, frame="" if any(depth) else UNSCALED)
    group = [name.rpartition("/")[0] for name in names]
    return ImageSet.of(path.parent, names, poses, group, intrinsics=intrinsics, columns=columns)


def _nerf_file(path: Path, at: int, frame: Any) -> str:
    """The image's name; Blender scenes leave out its suffix."""
    if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str):
        raise InputError(f"{path}: frame {at} has no file_path")
    name: str = frame["file_path"].removeprefix("./")
    suffix = next((s for s in _SUFFIXES if (path.parent / f"{name}{s}").is_file()), "")
    return f"{name}{suffix}"


def _nerf_matrix(path: Path, at: int, frame: Mapping[str, Any]) -> Floats:
    try:
        return np.array(frame["transform_matrix"], np.float64).reshape(-1, 4)[:3]
    except (KeyError, ValueError, TypeError):
        raise InputError(f"{path}: frame {at} has no 4×4 transform_matrix") from None


def _nerf_camera(path: Path, properties: Mapping[str, Any], name: str) -> Camera | None:
    """From fl_x, … of the frame or of all frames, or from camera_angle_x and the image's size."""
    try:
        width, height = (float(properties[k]) if k in properties else np.nan for k in ("w", "h"))
        if np.isnan(width) and (path.parent / name).is_file():
            width, height = image_size(path.parent / name)
        if np.isnan(width):
            return None
        if "fl_x" in properties:
            fx = float(properties["fl_x"])
        elif "camera_angle_x" in properties:
            fx = 0.5 * width / float(np.tan(0.5 * float(properties["camera_angle_x"])))
        else:
            return None
        centre = float(properties.get("cx", width / 2)), float(properties.get("cy", height / 2))
        lens = [float(properties.get(k, 0.0)) for k in ("k1", "k2", "p1", "p2", "k3", "k4")]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: intrinsics of {name}: {error}") from None
    kind = NERF_LENS.get(str(properties.get("camera_model", "PINHOLE")))
    if kind is None:
        return None  # a stereo panorama or an orthophoto, for which COLMAP has no camera model
    if kind == "EQUIRECTANGULAR":
        return Camera(kind, int(width), int(height), (width, height))
    if kind == "PINHOLE" and any(lens):
        kind = "OPENCV"  # nerfstudio distorts by k1, … whatever the name says
    if kind == "OPENCV" and any(lens[4:]):
        kind, lens = "FULL_OPENCV", [*lens[:5], 0.0, 0.0, 0.0]  # COLMAP's model has no equivalent of its k4
    tail = {"OPENCV": lens[:4], "OPENCV_FISHEYE": [*lens[:2], *lens[4:]], "FULL_OPENCV": lens}.get(kind, [])
    return Camera(kind, int(width), int(height), (fx, float(properties.get("fl_y", fx)), *centre, *tail))


# kapture


@foreign("a kapture folder")
def read_kapture(folder: Path) -> ImageSet:
    """A kapture folder: `sensors/{sensors,records_camera,trajectories,rigs}.txt`; trajectories are world-to-device.

    Columns: `time` (the timestamp as kapture has it), `device`, and `depth` where depth maps are recorded.
    """
    base = folder / "sensors"
    sensors = {cells[0]: cells[1:] for _, cells in cells_of(base / "sensors.txt", ",")}
    records = [cells for _, cells in cells_of(base / "records_camera.txt", ",")]
    if not records:
        raise InputError(f"{base / 'records_camera.txt'} lists no image")
    trajectory = _kapture_trajectory(base)
    matrices = np.array([trajectory.get((int(r[0]), r[1]), _UNKNOWN) for r in records])
    cameras = {name: _kapture_camera(base, name, sensor) for name, sensor in sensors.items() if sensor[1] == "camera"}
    lost = next((r[1] for r in records if r[1] not in cameras), None)
    if lost is not None:
        raise InputError(f"{base / 'sensors.txt'} has no camera {lost!r}, which records_camera.txt names")
    intrinsics, columns = calibration([cameras[r[1]] for r in records])
    columns["time"] = np.array([int(r[0]) for r in records], np.int64)
    columns["device"] = np.array([r[1] for r in records], dtype=str)
    columns |= _kapture_depth(base, records)
    poses = Poses.from_matrices(matrices, world_to_camera=True)
    names = [r[2] for r in records]
    if not poses.known.all():
        warn(f"{folder}: {int((~poses.known).sum())} of {len(names)} images have no pose in trajectories.txt")
    group = [name.rpartition("/")[0] for name in names]
    return ImageSet.of(base / "records_data", names, poses, group, intrinsics=intrinsics, columns=columns)


_UNKNOWN = np.full((3, 4), np.nan)


def _kapture_pose(cells: list[str]) -> Floats:
    """(3, 4) from qw qx qy qz tx ty tz; NaN where the rotation is left empty."""
    if len(cells) < 7 or not all(cells[:7]):
        return _UNKNOWN
    values = np.array(cells[:7], np.float64)
    return np.column_stack([quaternion_matrices(values[None, :4], "wxyz")[0], values[4:]])


def _kapture_trajectory(base: Path) -> dict[tuple[int, str], Floats]:
    """(timestamp, device) → world-to-device, also for the cameras of rigs."""
    if not (base / "trajectories.txt").is_file():
        return {}
    poses = {(int(c[0]), c[1]): _kapture_pose(c[2:]) for _, c in cells_of(base / "trajectories.txt", ",")}
    if not (base / "rigs.txt").is_file():
        return poses
    rigs: dict[str, list[tuple[str, Floats]]] = {}
    for _, cells in cells_of(base / "rigs.txt", ","):
        rigs.setdefault(cells[0], []).append((cells[1], _kapture_pose(cells[2:])))
    for _ in range(4):  # a rig may carry rigs
        level = {
            (when, sensor): compose(sensor_from_rig, pose)
            for (when, device), pose in poses.items()
            for sensor, sensor_from_rig in rigs.get(device, [])
            if (when, sensor) not in poses
        }
        if not level:
            break
        poses |= level
    return poses


def _kapture_camera(base: Path, name: str, sensor: list[str]) -> Camera | None:
    """The camera of `name, camera, MODEL, width, height, parameters…`."""
    model, *rest = sensor[2:]
    if model == "UNKNOWN_CAMERA" or model not in MODELS or len(rest) < 2:
        return None
    return camera(model, rest[0], rest[1], rest[2:], f"{base / 'sensors.txt'}: {name}")


def _kapture_depth(base: Path, records: list[list[str]]) -> dict[str, NDArray[Any]]:
    """Depth maps (float32 metres, row by row) of the same time and device, or of the device's `_depth` twin."""
    file = base / "records_depth.txt"
    if not file.is_file():
        return {}
    listed = {(c[0], c[1]): c[2] for _, c in cells_of(file, ",")}
    names = [listed.get((r[0], r[1]), listed.get((r[0], f"{r[1]}_depth"), "")) for r in records]
    if not any(names):
        by_time = {when: name for (when, _), name in listed.items()}
        names = [by_time.get(r[0], "") for r in records]
    return {"depth": np.array([n.encode() for n in names]), "depth_scale_m": np.ones(len(records))}


# nuScenes


@foreign("nuScenes tables")
def read_nuscenes(folder: Path, channel: str = "CAM_FRONT", *, sweeps: bool = False) -> ImageSet:
    """The images of one camera of a nuScenes-style folder: tables in `v1.0-*`, images in `samples/CHANNEL`.

    Global pose = ego pose · calibrated sensor; z up. Groups are scenes. `sweeps` takes the frames between key frames.
    `channel` may name the place too (`CAM_FRONT@boston-seaport`): each has an origin of its own.
    """
    channel, _, place = channel.partition("@")
    versions = sorted(p.parent for p in folder.glob("*/sample_data.json")) or [
        p.parent for p in folder.glob("sample_data.json")
    ]
    if len(versions) != 1:
        available = ", ".join(v.name for v in versions) or "none"
        raise InputError(
            f"{folder} has {len(versions)} folders with sample_data.json ({available}); give the one to read"
        )
    base = versions[0]
    root = base if (base / "samples").is_dir() else base.parent
    tables = {
        n: {r["token"]: r for r in read_foreign_json(base / f"{n}.json")}
        for n in ("calibrated_sensor", "ego_pose", "sensor")
    }
    wanted = [s["token"] for s in tables["sensor"].values() if s["channel"] == channel]
    if not wanted:
        known = ", ".join(sorted(s["channel"] for s in tables["sensor"].values()))
        raise InputError(f"{base / 'sensor.json'} has no channel {channel!r}; known: {known}")
    mine = {t for t, c in tables["calibrated_sensor"].items() if c["sensor_token"] in wanted}
    data = [d for d in read_foreign_json(base / "sample_data.json") if d["calibrated_sensor_token"] in mine]
    data = sorted((d for d in data if sweeps or d.get("is_key_frame", True)), key=lambda d: d["timestamp"])
    data = _of_place(base, data, channel, place)
    if not data:
        raise InputError(f"{base / 'sample_data.json'} lists no image of {channel}")
    sensors = [tables["calibrated_sensor"][d["calibrated_sensor_token"]] for d in data]
    egos = [tables["ego_pose"][d["ego_pose_token"]] for d in data]
    poses = Poses.from_matrices(compose(_rigid(egos), _rigid(sensors)))
    cameras = [
        pinhole(d["width"], d["height"], np.array(s["camera_intrinsic"])) for d, s in zip(data, sensors, strict=True)
    ]
    intrinsics, columns = calibration(cameras)
    columns["time"] = np.array([d["timestamp"] for d in data], np.float64) * 1e-6
    names = [d["filename"] for d in data]
    return ImageSet.of(root, names, poses, _scenes_of(base, data), intrinsics=intrinsics, columns=columns)


def _rigid(records: list[Any]) -> Floats:
    """(N, 3, 4) from nuScenes' rotation (w first) and translation."""
    rotation = quaternion_matrices(np.array([r["rotation"] for r in records], np.float64), "wxyz")
    place = np.array([r["translation"] for r in records], np.float64)
    return np.concatenate([rotation, place[:, :, None]], axis=2)


def _of_place(base: Path, data: list[Any], channel: str, place: str) -> list[Any]:
    """Those recorded at `place`; without one, all, which must be of one place, since each has its own origin."""
    if not all((base / f"{name}.json").is_file() for name in ("sample", "scene", "log")):
        if place:
            raise InputError(f"{base} has no log.json, so the place of an image is unknown; leave @{place} out")
        return data
    logs = {r["token"]: str(r.get("location", "")) for r in read_foreign_json(base / "log.json")}
    scenes = {r["token"]: logs.get(r.get("log_token", ""), "") for r in read_foreign_json(base / "scene.json")}
    samples = {r["token"]: scenes.get(r["scene_token"], "") for r in read_foreign_json(base / "sample.json")}
    places = [samples.get(d["sample_token"], "") for d in data]
    known = sorted(set(places))
    if (place and place not in known) or (not place and len(known) > 1):
        raise InputError(
            f"{base} has images of {', '.join(known)}, each with its own origin; choose one: covis data import "
            f"{base.parent} -o set.csv --topic {channel}@{known[0]}"
        )
    return [d for d, where in zip(data, places, strict=True) if not place or where == place]


def _scenes_of(base: Path, data: list[Any]) -> list[str]:
    """The scene name of each image, where the tables give it."""
    if not (base / "sample.json").is_file() or not (base / "scene.json").is_file():
        return [""] * len(data)
    samples = {r["token"]: r["scene_token"] for r in read_foreign_json(base / "sample.json")}
    scenes = {r["token"]: r["name"] for r in read_foreign_json(base / "scene.json")}
    return [scenes.get(samples.get(d["sample_token"], ""), "") for d in data]


# hloc

_HEAD_BYTES = 1 << 16
_LIST_LINE = re.compile(rf"^\S+ ({'|'.join(MODELS)}) \d+ \d+( \S+)+$")


def is_query_list(path: Path) -> bool:
    """Whether a text file lists `name MODEL width height parameters…`."""
    try:
        with open_regular(path) as handle:
            head = handle.read(_HEAD_BYTES).decode("utf-8", "surrogateescape").split("\n")
    except (OSError, ValueError):
        return False
    first = next((line.strip() for line in head if line.strip() and not line.startswith("#")), "")
    return bool(_LIST_LINE.match(first))


@foreign("a list of queries")
def read_query_list(path: Path, root: Path | None = None) -> ImageSet:
    """hloc's list of queries with intrinsics; poses are unknown. `root`: folder of the images. [default: the list's]"""
    listed = cells_of(path)
    where = [f"{path}: line {number}" for number, _ in listed]
    short = next((w for w, (_, cells) in zip(where, listed, strict=True) if len(cells) < 5), None)
    if short or not listed:
        raise InputError(f"{short or path}: expected `name MODEL width height parameters…` on each line")
    cameras = [camera(c[1], c[2], c[3], c[4:], w) for w, (_, c) in zip(where, listed, strict=True)]
    intrinsics, columns = calibration(cameras)
    nowhere = Poses(np.full((len(listed), 2), np.nan), np.full(len(listed), np.nan))
    names = [cells[0] for _, cells in listed]
    return ImageSet.of(root or path.parent, names, nowhere, intrinsics=intrinsics, columns=columns)


def write_query_list(path: Path, images: ImageSet) -> None:
    """The same list, which hloc and covis read back exactly."""
    from covis.reading.cameras import camera_of

    lines = []
    for i in range(len(images)):
        one = camera_of(images, i)
        if one is None:
            raise InputError(f"{images.name(i)} has no intrinsics; a query list needs them")
        lines.append(" ".join([images.name(i), one.model, str(one.width), str(one.height), *map(repr, one.params)]))
    write_text(path, "".join(f"{line}\n" for line in lines))
