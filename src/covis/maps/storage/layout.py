"""Where the parts of a map lie in its folder, and which of them count.

    MAP/map.json            what the map was made with
    MAP/model/              the model of every descriptor
    MAP/runtime/            an ONNX file of that model
    MAP/elsewhere/          descriptors of pictures that are not of its places
    MAP/segments/<key>/     descriptor stores, never changed once they are whole
    MAP/versions/<number>/  one state of the map: its photos, their rows in the segments, its calibration and index
    MAP/CURRENT             the number of the state that counts
    MAP/fitted.json         how a model was fitted to its photos, if it was, once all is finished
    MAP/scene.json          where the points of the photos lie, if there are any (for full poses)

Where an engine holds the photos, there are no versions: CURRENT says that the map is whole, MAP/calibration.json what
it knows of its own answers, and map.json the engine's address (without a password) and table.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from covis.core import artifacts, files
from covis.core.errors import InputError
from covis.descriptors import STORE_KIND

MAP_KIND = "map"
RECORD = "map.json"
CURRENT = "CURRENT"
MODEL = "model"
RUNTIME = "runtime"
ELSEWHERE = "elsewhere"
CALIBRATION = "calibration.json"
SCENE = "scene.json"
FITTED = "fitted.json"
INLIERS = "inliers.json"
SEGMENTS, VERSIONS = "segments", "versions"
GONE = ".covis-gone"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def current_version(path: Path) -> int:
    """The number of the state that counts."""
    if not (path / CURRENT).is_file():
        if (path / RECORD).is_file():
            raise InputError(f"{path} is unfinished; run the same covis index command again to finish it")
        raise InputError(f"{path} is not a covis map (no {CURRENT}); make one with: covis index PHOTOS -o MAP")
    version = files.read_record(path / CURRENT, {"version": int}, f"repair it with: covis map repair {path}")["version"]
    return int(version)


def require_photos(path: Path, config: Mapping[str, Any]) -> None:
    """Refuses to make a map where there is one of other photos, finished or not."""
    if not (path / RECORD).is_file() or not any((path / part).exists() for part in (MODEL, CURRENT)):
        return
    record = files.read_record(path / RECORD, {"config": dict}, f"choose another output folder or remove {path}")
    earlier = record["config"]
    if all(earlier.get(key) == config[key] for key in ("images", "root")):
        return
    try:
        of = f" of {os.fsdecode(bytes.fromhex(earlier['root']))}"
    except (KeyError, TypeError, ValueError):
        of = ""
    remedy = f"choose another output or remove {path}"
    if (path / CURRENT).is_file():
        remedy = f"choose another output, or add photos to it with: covis add {path} PHOTOS"
    raise InputError(f"{path} is a map of other photos or positions{of}; {remedy}")


@contextlib.contextmanager
def founding(path: Path) -> Iterator[None]:
    """While a map is made: input that is refused before a photo is described leaves nothing behind."""
    try:
        yield
    except InputError:
        if all(files.is_transient(file) for file in (path / SEGMENTS).rglob("*") if not file.is_dir()):
            for part in (SEGMENTS, MODEL, ELSEWHERE):
                shutil.rmtree(path / part, ignore_errors=True)
        raise


def check_folders(path: Path) -> None:
    """Refuses a map whose parts are links: nothing outside a map is read, written or deleted."""
    for name in (SEGMENTS, VERSIONS, MODEL, ELSEWHERE, RECORD, CURRENT):
        if (path / name).is_symlink():
            raise InputError(f"{path / name} is a link, and may lead outside the map; put the files themselves there")


def read_config(path: Path) -> dict[str, Any]:
    """What a map was made with: its model's fingerprint and dimensions, the address and table of its engine, if any."""
    check_folders(path)
    hint = f"repair it with: covis map repair {path}"
    config = files.read_record(path / RECORD, {"config": dict}, hint)["config"]
    kinds = {"model": str, "dim": int} | ({"engine": str, "table": str, "frame": str} if "engine" in config else {})
    return dict(files.checked(path / RECORD, config, kinds, hint))


def read_model_manifest(path: Path, *, verify: bool = True) -> dict[str, Any]:
    """The manifest of a map's model folder, its files checked against it (without `verify`, only if they changed)."""
    facts = {"fingerprint": str, "dim": int}
    return artifacts.open_manifest(path / MODEL, "model", facts=facts, verify=verify, links=False)


def read_runtime(path: Path, *, verify: bool = False) -> dict[str, Any]:
    """The manifest of the map's ONNX file, which is compared with its checksum if it changed, or with `verify`."""
    return artifacts.open_manifest(path / RUNTIME, RUNTIME, facts={"model": str}, verify=verify, links=False)


def segment_folder(path: Path, key: str) -> Path:
    """Where a segment lies; a key that would lead outside the map is refused."""
    if not _KEY.fullmatch(key):
        raise InputError(f"{path} names a segment {key!r}, which is outside it; do not trust where it came from")
    return path / SEGMENTS / key


def clear_segment(path: Path, key: str) -> Path:
    """The folder of a segment that is going to be written, cleared of what an earlier attempt left."""
    folder = segment_folder(path, key)
    check_folders(path)
    if folder.is_symlink():
        raise InputError(f"{folder} is a link, and may lead outside the map; put the files themselves there")
    if is_part(folder, STORE_KIND):
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def is_part(folder: Path, kind: str) -> bool:
    """Whether a folder of a map is a part of it: it has a manifest of `kind`, or is an unfinished embedding."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if (
        kind == STORE_KIND
        and re.fullmatch("[0-9a-f]{16}", folder.name)
        and all(map(files.is_transient, folder.iterdir()))
    ):
        return True  # killed at the start, before it was claimed: it holds nothing
    if (folder / "embedding.json").is_file() or folder.name.endswith(GONE):
        return kind == STORE_KIND or folder.name.endswith(GONE)
    try:
        return bool(files.read_record(folder / artifacts.MANIFEST, {"kind": str})["kind"] == kind)
    except InputError:
        return False
