"""A map as one file to send to others: model, descriptors, positions and calibration, every byte checked on import."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, files
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.foreign import foreign
from covis.descriptors import DescriptorStore
from covis.images import ImageSet, encode_names
from covis.maps.calibration import calibrate, compacted, gcl_margin
from covis.maps.calibration_record import read_calibration
from covis.maps.map import Map
from covis.maps.photos import full_arrays, with_full
from covis.maps.pictures import note_folders
from covis.maps.storage.folder import FolderStorage, State
from covis.maps.storage.layout import ELSEWHERE, MAP_KIND, MODEL, RUNTIME, SEGMENTS
from covis.poses import UNSCALED, Poses, reference_system

_KIND, _SCHEMA = "covis-map", 1
LISTING = "covis.json"
_ARRAYS = ("names", "xy", "heading", "z", "group", "group_names", "file", "descriptors")
_MORE = ("rotation", "camera", "cameras")
"""Arrays that a file has where poses are full (6DOF) or cameras known."""
_TEXTS, _CODES = ("names", "group_names", "file", "cameras"), ("group", "camera")
"""Arrays of bytes and of integers; the others are of floats."""
_NAME = re.compile(
    r"(covis\.json|calibration\.json|arrays/[a-z_]+\.npy|(model|runtime|elsewhere)/[A-Za-z0-9_][A-Za-z0-9_.-]*)"
)
_MAX_LISTING = 1 << 20
_CHUNK = 1 << 20


def export_map(map_: Map, target: Path) -> int:
    """Writes the map as one file, without the paths of its photos; returns its bytes."""
    map_.folder  # noqa: B018 - what lives in an engine is not exported
    map_ = Map.open(map_.path, verify=True)
    poses, images = map_.images.poses, map_.images
    arrays = {
        "names": _portable_names(map_), "xy": poses.xy, "heading": poses.heading, "group": images.group, "file": np.zeros(len(images), "S1"),
        "z": np.full(len(poses), np.nan) if poses.z is None else poses.z,
        "group_names": encode_names(images.group_names), "descriptors": map_.descriptors[map_.state.rows],
        **full_arrays(images),
    }  # fmt: skip
    content: dict[str, bytes | Path] = {f"arrays/{name}.npy": _npy(array) for name, array in arrays.items()}
    content["calibration.json"] = json.dumps(compacted(map_.state.calibration, map_.state.rows)).encode()
    for folder in (MODEL, RUNTIME, ELSEWHERE):
        inside = sorted(p for p in (map_.path / folder).glob("*") if p.is_file() and not p.name.startswith("."))
        content |= {f"{folder}/{file.name}": file for file in inside}
    facts = {"kind": _KIND, "schema": _SCHEMA, "model": map_.model_fingerprint, "dim": map_.dim, "photos": len(map_),
             "frame": poses.frame, "index": map_.state.index_choice}  # fmt: skip
    listing = {name: _entry(data) for name, data in content.items()}
    with replacing(target) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(LISTING, json.dumps({**facts, "files": listing}, indent=1))
        for name, data in content.items():
            if isinstance(data, Path):
                archive.write(data, name)
            else:
                archive.writestr(name, data)
    return target.stat().st_size


def _portable_names(map_: Map) -> NDArray[np.bytes_]:
    """The photos' names as any machine can take them: absolute ones become relative to the folder they share."""
    names = map_.images.names.tolist()
    if names and all(name.startswith(b"/") for name in names):
        shared = os.path.commonpath([os.path.dirname(name) for name in names])  # noqa: PTH120 - names are bytes
        names = [os.path.relpath(name, shared) for name in names]
    if any(map(_leads_outside, names)):
        name = os.fsdecode(next(filter(_leads_outside, names)))
        raise InputError(
            f"{map_.path} names the photo {name!r}, outside of its folder; to export it, index a table with paths inside one folder"
        )
    return encode_names(names)


def _leads_outside(name: bytes) -> bool:
    return name.startswith(b"/") or b".." in name.split(b"/")


@foreign("a map file")
def import_map(source: Path, target: Path, *, photos: Path | None = None) -> Map:
    """The map of a file that `export_map` wrote, every byte checked; `photos` is the folder of its photos, if any.

    It is built beside `target` and renamed when it is whole; the next import clears what an interrupted one left.
    """
    if target.exists():
        raise InputError(f"{target} already exists; choose another output or remove it")
    with files.draft_folder(target) as draft:
        facts = _unpacked(source, draft / "file")
        _build(source, draft / "file", facts, photos, draft / "map")
        (draft / "map").rename(target)
    if photos is not None:
        note_folders(target, [str(photos)])
    return Map.open(target)


def _build(source: Path, unpacked: Path, facts: Mapping[str, Any], photos: Path | None, target: Path) -> None:
    """Writes the map of an unpacked file."""
    arrays = _arrays(source, unpacked)
    images, descriptors = _images(source, facts, arrays, photos), arrays["descriptors"]
    count, dim = descriptors.shape
    model, calibration = facts["model"], _calibration(source, unpacked)
    config = {
        "model": model,
        "dim": dim,
        "index": facts["index"],
        "images": images.fingerprint(),
        "imported": source.name,
    }
    with artifacts.claim(target, MAP_KIND, config):
        for name in (MODEL, RUNTIME, ELSEWHERE):
            if (unpacked / name).is_dir():
                shutil.copytree(unpacked / name, target / name)
        if artifacts.open_manifest(target / MODEL, "model").get("fingerprint") != model:
            raise InputError(f"the model in {source} is not {model}, whose descriptors it holds; export it again")
        key = artifacts.fingerprint(model, images.fingerprint(), count)
        precision: Any = "float16" if descriptors.dtype == np.float16 else "float32"
        store = DescriptorStore.create(target / SEGMENTS / key, model, dim, precision)
        store = store.append(images.names, descriptors, model=model)
        table = replace(images, root=target, columns={**images.columns, "row": np.arange(count)})
        if calibration is None:
            calibration = calibrate(table, descriptors, gcl_margin(target / MODEL)).to_dict()
        state = State(version=1, images=table, segments=(key,), index_choice=facts["index"], calibration=calibration)
        FolderStorage.of(state, target, (store,), model, dim).write()


def _calibration(source: Path, unpacked: Path) -> dict[str, Any] | None:
    """The calibration record of a file, after checking that it can be read."""
    record: dict[str, Any] | None = artifacts.read_json(unpacked / "calibration.json")
    if record is not None:
        read_calibration(record, source)
    return record


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _entry(data: bytes | Path) -> dict[str, Any]:
    if isinstance(data, Path):
        return artifacts.file_entry(data)
    return {"sha256": sha256(data).hexdigest(), "bytes": len(data)}


def _unpacked(source: Path, folder: Path) -> dict[str, Any]:
    """The file's list of contents, after these were written into `folder` and compared with it."""
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise InputError(f"{source} {what}; give a file, written with: covis map export MAP FILE")
    try:
        with zipfile.ZipFile(source) as archive:
            facts = _listing(source, archive)
            for name, entry in facts["files"].items():
                _extract(source, archive, name, entry, folder / name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # such as a full disk
            raise
        raise InputError(f"{source} is not a covis map file, or is damaged ({error}); export it again") from None
    return facts


def _arrays(source: Path, folder: Path) -> dict[str, Any]:
    try:
        places = {name: folder / "arrays" / f"{name}.npy" for name in (*_ARRAYS, *_MORE)}
        return {
            name: np.load(place, allow_pickle=False)
            for name, place in places.items()
            if name in _ARRAYS or place.is_file()
        }
    except ValueError as error:  # an array that would need a pickle, or no array
        raise InputError(f"{source} is damaged, or not a covis map file ({error}); export it again") from None


def _listing(source: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    """The list of contents, checked: nothing else is in the archive, and nothing leads outside."""
    names = archive.namelist()
    if LISTING not in names or archive.getinfo(LISTING).file_size > _MAX_LISTING:
        raise InputError(
            f"{source} is not a covis map file (no {LISTING}); write one with: covis map export MAP {source}"
        )
    try:
        facts = json.loads(archive.read(LISTING))
        kinds = {"kind": str, "schema": int, "model": str, "dim": int, "photos": int, "frame": str, "index": str}
        sound = all(isinstance(facts[key], kind) for key, kind in kinds.items()) and isinstance(facts["files"], dict)
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound or (facts["kind"], facts["schema"]) != (_KIND, _SCHEMA):
        raise InputError(f"{source} is not a covis map file that this version reads; export it again")
    listed = {LISTING, *facts["files"]}
    if sorted(names) != sorted(listed) or not all(_NAME.fullmatch(name) for name in listed):
        raise InputError(f"{source} holds other files than its list says; export it again")
    if any(f"arrays/{name}.npy" not in listed for name in _ARRAYS) or "calibration.json" not in listed:
        raise InputError(f"{source} lacks a part of a map; export it again")
    return dict(facts)


def _extract(source: Path, archive: zipfile.ZipFile, name: str, entry: Any, target: Path) -> None:
    """One file, no more bytes of it than its list says, compared with its SHA-256."""
    info = archive.getinfo(name)
    wanted = entry.get("bytes") if isinstance(entry, dict) else None
    if info.file_size != wanted or info.compress_type != zipfile.ZIP_STORED:
        raise InputError(f"{source}: {name} is damaged (its size differs from the list); export the map again")
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = sha256()
    with archive.open(info) as incoming, target.open("wb") as outgoing:
        while chunk := incoming.read(_CHUNK):
            digest.update(chunk)
            outgoing.write(chunk)
    if digest.hexdigest() != entry.get("sha256"):
        raise InputError(f"{source}: {name} is damaged (SHA-256 differs from the list); export the map again")


def _images(source: Path, facts: Mapping[str, Any], arrays: Mapping[str, Any], photos: Path | None) -> ImageSet:
    """The photos of a map file, after checking that its arrays belong together."""
    count = facts["photos"]
    shapes = {"xy": (count, 2), "descriptors": (count, facts["dim"]), "group_names": arrays["group_names"].shape[:1]}
    shapes |= {"rotation": (count, 3, 3), "cameras": arrays.get("cameras", arrays["group_names"]).shape[:1]}
    for name in arrays:
        if arrays[name].shape != shapes.get(name, (count,)):
            raise InputError(f"{source}: {name} has shape {arrays[name].shape}; export the map again")
        if arrays[name].dtype.kind != ("S" if name in _TEXTS else "i" if name in _CODES else "f"):
            raise InputError(f"{source}: {name} is of kind {arrays[name].dtype}; export the map again")
    if any(b"\0" in text for name in _TEXTS if name in arrays for text in arrays[name].tolist()):
        raise InputError(f"{source} has NUL in a name, which no file can have; export the map again")
    if any(map(_leads_outside, arrays["names"].tolist())):
        raise InputError(f"{source} names photos outside of a folder; export the map again")
    names = set(arrays["names"].tolist())
    if len(names) < count or b"" in names or not np.isfinite(arrays["xy"]).all() or np.isinf(arrays["z"]).any():
        raise InputError(f"{source} has photos of one name, or one without name or position; export the map again")
    if facts["frame"] not in ("", UNSCALED):
        reference_system(facts["frame"])
    paths = arrays["file"]
    if photos is not None:
        paths = encode_names([os.fsencode(photos.resolve()) + b"/" + bytes(n) for n in arrays["names"]])
    poses = Poses(arrays["xy"], arrays["heading"], arrays["z"], arrays.get("rotation"), frame=facts["frame"])
    groups = tuple(os.fsdecode(g) for g in arrays["group_names"].tolist())
    images = ImageSet(Path(), arrays["names"], poses, arrays["group"], groups or ("",), None, {"file": paths})
    return with_full(images, arrays, str(source))
