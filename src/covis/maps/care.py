"""Care of maps: checks against every checksum, and repair of a map that lost parts (`Map` itself never handles damage)."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covis.core import artifacts, files
from covis.core.arrays import Bools
from covis.core.errors import Damaged, InputError
from covis.core.progress import say
from covis.descriptors import DescriptorStore
from covis.maps.map import Map
from covis.maps.photos import text_of
from covis.maps.storage.folder import FolderStorage, State, open_segments, read_version, version_folder
from covis.maps.storage.layout import (
    CURRENT,
    ELSEWHERE,
    MAP_KIND,
    MODEL,
    RECORD,
    RUNTIME,
    SEGMENTS,
    VERSIONS,
    check_folders,
    current_version,
    read_config,
    read_model_manifest,
    read_runtime,
)
from covis.reading.columns import write_columns

DROPPED = "dropped.csv"


@dataclass(frozen=True)
class Damage:
    """A damaged part of a map."""

    part: str
    """Relative to the map."""
    cause: str


def check_map(path: Path | str) -> list[Damage]:
    """What is wrong with a map, part by part, every byte read; empty if nothing is."""
    path = _existing(path)
    problems: list[Damage] = []
    _try(problems, path / RECORD, lambda: read_config(path))
    _try(problems, path / MODEL, lambda: read_model_manifest(path))
    if (path / RUNTIME).exists():
        _try(problems, path / RUNTIME, lambda: read_runtime(path, verify=True))
    if (path / ELSEWHERE).exists():
        _try(problems, path / ELSEWHERE, lambda: DescriptorStore.open(path / ELSEWHERE, links=False))
    version: int | None = _try(problems, path / CURRENT, lambda: current_version(path))
    if version is None:
        return problems
    folder = version_folder(path, version)
    state: State | None = _try(problems, folder, lambda: read_version(path, version, verify=True))
    for key in () if state is None else state.segments:
        segment = path / SEGMENTS / key
        _try(problems, segment, lambda key=key: open_segments(path, (key,), verify=True))
    if not problems:
        _try(problems, folder, lambda: Map.open(path, verify=True).index_kind)
    if not problems:
        _try(problems, path / ELSEWHERE, lambda: Map.open(path).bank)
    return problems


def repair_map(path: Path | str) -> dict[str, Any]:
    """Makes the map whole again from what is not damaged, and says what was dropped.

    The newest whole state counts; photos of damaged segments are dropped and listed in `MAP/dropped.csv`, so that they
    can be added again; the index is built anew, and the ONNX file is made again. A damaged model cannot be made again:
    that is an error.
    """
    path = _existing(path)
    check_folders(path)
    with artifacts.lock(path):
        problems = check_map(path)
        parts = {problem.part for problem in problems}
        outcome = _rebuilt(path) if parts - {RUNTIME, ELSEWHERE} else {"version": current_version(path), "dropped": []}
        if RUNTIME in parts:
            _cleared(path / RUNTIME)
        if ELSEWHERE in parts:
            _cleared(path / ELSEWHERE)
    if RUNTIME in parts:
        Map.open(path).network.carry_runtime()
    if ELSEWHERE in parts:
        Map.open(path).describe_elsewhere()
    damage = [{"part": p.part, "cause": p.cause} for p in problems]
    photos = len(Map.open(path, verify=True))
    return {"map": str(path), "repaired": bool(problems), "photos": photos, **outcome, "problems": damage}


def _cleared(folder: Path) -> None:
    """Removes a folder, or the link that stands for it."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _rebuilt(path: Path) -> dict[str, Any]:
    """Writes a new state of the parts that are whole; returns its number, and the names of dropped photos."""
    fingerprint, dim = _facts(path)
    state = _newest_state(path)
    kept, stores, rows = _whole_segments(path, state, fingerprint)
    names = [text_of(bytes(n)) for n in state.images.names[~kept]]
    images = state.images.subset(kept)
    images = replace(images, columns={**images.columns, "row": rows[kept]})
    number = 1 + max([state.version, *_versions(path)])
    segments = tuple(store.path.name for store in stores)
    repaired = replace(state, version=number, images=images, segments=segments)
    _write_dropped(path / DROPPED, state, kept)
    FolderStorage.of(repaired, path, stores, fingerprint, dim).write()
    return {"version": number, "dropped": names}


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.is_dir() or not any((path / name).exists() for name in (RECORD, VERSIONS)):
        raise InputError(f"{path} is not a covis map; check the path")
    return path


def _try(problems: list[Damage], part: Path, call: Any) -> Any:
    """The result of `call`; None where the part is damaged, which is added to `problems`."""
    try:
        return call()
    except (InputError, OSError) as error:
        problems.append(
            Damage(part.name if part.parent.name not in _GROUPED else f"{part.parent.name}/{part.name}", str(error))
        )
        return None


_GROUPED = (SEGMENTS, VERSIONS)


def _facts(path: Path) -> tuple[str, int]:
    """Fingerprint and length of the map's descriptors; from its model where `map.json` is damaged, then rewritten."""
    try:
        manifest = read_model_manifest(path)
    except InputError as error:
        raise InputError(f"{error}: a map needs its model; copy {path / MODEL} from a backup") from None
    try:
        config = read_config(path)
        return config["model"], config["dim"]
    except InputError:
        say(f"{path / RECORD} was damaged and is rewritten")
    config = {"model": manifest["fingerprint"], "dim": manifest["dim"]}
    files.write_json(path / RECORD, {"kind": MAP_KIND, "config": config, "versions": artifacts.versions()})
    return manifest["fingerprint"], manifest["dim"]


def _versions(path: Path) -> list[int]:
    """Numbers of the states that are there, newest first."""
    folders = (path / VERSIONS).iterdir() if (path / VERSIONS).is_dir() else ()
    return sorted((int(f.name) for f in folders if f.name.isdigit() and f.is_dir()), reverse=True)


def _newest_state(path: Path) -> State:
    """The state that counts, or the newest one that can be read."""
    numbers = _versions(path)
    try:
        current = current_version(path)
        numbers = [current, *(n for n in numbers if n != current)]
    except InputError:
        pass
    causes = []
    for number in numbers:
        try:
            return read_version(path, number, verify=True, index=False)
        except InputError as error:
            causes.append(str(error))
    raise InputError(
        f"{path} has no state that can be read ({causes[0] if causes else 'none is there'}); index the photos again"
    )


def _whole_segments(path: Path, state: State, model: str) -> tuple[Bools, tuple[DescriptorStore, ...], Any]:
    """(N,) the photos whose descriptors are whole, the whole segments, and (N,) the photos' rows in them."""
    rows, kept = state.rows.copy(), np.zeros(len(state.images), bool)
    stores: list[DescriptorStore] = []
    start = new_start = 0
    for key in state.segments:
        try:
            (store,) = open_segments(path, (key,), verify=True)
            if store.model != model:
                raise Damaged(f"{store.path} is of another model")
        except (InputError, OSError) as error:
            say(f"dropped: {error}")
            length = _rows_of(path / SEGMENTS / key)
            if length is None:
                break  # where the next segment's rows begin is not known any more
            start += length
            continue
        inside = (state.rows >= start) & (state.rows < start + len(store))
        kept |= inside
        rows[inside] += new_start - start
        stores.append(store)
        start, new_start = start + len(store), new_start + len(store)
    return kept, tuple(stores), rows


def _rows_of(segment: Path) -> int | None:
    """How many rows a damaged segment had, by its manifest or by its files; None if neither can be read."""
    try:
        return int(json.loads((segment / artifacts.MANIFEST).read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return (
            sum(len(files.load_array(f, "f", (None, None), mapped=True)) for f in sorted(segment.glob("shard-*.npy")))
            or None
        )
    except (InputError, OSError):
        return None


def _write_dropped(path: Path, state: State, kept: Bools) -> None:
    lost = state.images.subset(~kept)
    if len(lost):
        columns: dict[str, Any] = {"image": list(map(os.fsdecode, lost.names.tolist()))}
        columns["file"] = list(map(os.fsdecode, lost.columns["file"].tolist()))
        columns["easting"], columns["northing"] = lost.poses.xy.T
        write_columns(columns | {"heading": lost.poses.heading}, path)
