"""A map on disk: immutable parts, and one small pointer that says which of them are the map now.

    MAP/map.json            what the map was made with
    MAP/model/              the model of every descriptor
    MAP/segments/<key>/     descriptor stores, never changed once they are whole
    MAP/versions/<number>/  one state of the map: its photos, their rows in the segments, its calibration and index
    MAP/CURRENT             the number of the state that counts

A change writes new parts beside the old ones and then replaces `CURRENT`: a reader sees the state before or the state
after, and a process that dies in between leaves parts that nothing names, which the next change clears away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.descriptors import DescriptorStore
from covis.errors import InputError
from covis.images import ImageSet, encode_names
from covis.poses import Poses
from covis.search import LocalIndex

KIND = "map"
RECORD = "map.json"
CURRENT = "CURRENT"
MODEL = "model"
REJECTS = "rejects.csv"
CALIBRATION = "calibration.json"
INDEX = "index"
_KEPT_VERSIONS = 2
"""The current state, and the one that a reader may just be opening."""
_MERGE_ROWS = 4096


@dataclass(frozen=True, eq=False)
class State:
    """One version of a map."""

    version: int
    images: ImageSet
    """Photos with poses. Columns: `file` where each lies, `row` where its descriptor is in the stacked segments."""
    segments: tuple[str, ...]
    """Keys of the descriptor stores, stacked in this order."""
    index: str = "exact"
    max_ram: int | None = None
    """Bytes that the index may take beside the descriptors; None: any."""
    calibration: Mapping[str, Any] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """(N,) ascending rows of the photos' descriptors."""
        return np.asarray(self.images.columns["row"], np.int64)


def image_table(images: ImageSet, rows: NDArray[np.int64], files: NDArray[np.bytes_]) -> ImageSet:
    """The photos of a map: `images` in the order of their rows, with rows and files as columns."""
    order = np.argsort(rows, kind="stable")
    return replace(images, intrinsics=None, columns={"row": rows, "file": files}).subset(order)


def empty_table(path: Path, frame: str) -> ImageSet:
    """The photos of a map without any."""
    poses = Poses(np.zeros((0, 2)), np.zeros(0), frame=frame)
    columns = {"row": np.zeros(0, np.int64), "file": np.zeros(0, "S1")}
    return ImageSet.of(path, np.zeros(0, "S1"), poses, columns=columns)


def current_version(path: Path) -> int:
    """The number of the state that counts."""
    if not (path / CURRENT).is_file():
        if (path / RECORD).is_file():
            raise InputError(f"{path} is unfinished; run the same covis index command again to finish it")
        raise InputError(f"{path} is not a covis map (no {CURRENT}); make one with: covis index PHOTOS -o {path}")
    return int(artifacts.read_json(path / CURRENT)["version"])


def read_state(path: Path, *, verify: bool = False) -> tuple[State, tuple[DescriptorStore, ...]]:
    """The current state with its descriptors, whole, also while another process changes the map."""
    version = current_version(path)
    while True:
        try:
            state = _read_version(path, version, verify)
            return state, open_segments(path, state.segments, verify)
        except (InputError, OSError):
            # It may have been replaced and cleared away since its number was read.
            newer = current_version(path)
            if newer == version:
                raise
            version = newer


def open_segments(path: Path, keys: tuple[str, ...], verify: bool = False) -> tuple[DescriptorStore, ...]:
    """The descriptor stores of a state."""
    return tuple(DescriptorStore.open(path / "segments" / key, verify=verify) for key in keys)


def version_folder(path: Path, version: int) -> Path:
    """Where a state lies."""
    return path / "versions" / f"{version:08d}"


def write_state(path: Path, state: State, index: LocalIndex | None) -> None:
    """Makes `state` the map, in one stroke. `index` is kept with it where it takes time to build."""
    folder = version_folder(path, state.version)
    facts = {"segments": list(state.segments), "index": state.index, "max_ram": state.max_ram,
             "frame": state.images.poses.frame, "photos": len(state.images)}  # fmt: skip
    with artifacts.create(folder, KIND, facts, replace=True) as draft:
        poses = state.images.poses
        height = np.full(len(poses), np.nan) if poses.z is None else poses.z
        np.savez(
            draft.path / "photos.npz", names=state.images.names, path=state.images.columns["file"], row=state.rows,
            xy=poses.xy, heading=poses.heading, z=height, group=state.images.group, group_names=encode_names(state.images.group_names),
        )  # fmt: skip
        artifacts.write_json(draft.path / CALIBRATION, state.calibration)
        if index is not None:
            index.save(draft.path / INDEX, with_vectors=False)
    artifacts.write_json(path / CURRENT, {"version": state.version})
    tidy(path, state.version)


def _read_version(path: Path, version: int, verify: bool) -> State:
    folder = version_folder(path, version)
    manifest = artifacts.open_manifest(folder, KIND, verify=verify)
    with np.load(folder / "photos.npz") as found:
        poses = Poses(found["xy"], found["heading"], found["z"], frame=manifest["frame"])
        columns = {"row": found["row"], "file": found["path"]}
        groups = tuple(os.fsdecode(g) for g in found["group_names"])  # folders, whose names may be any bytes
        images = ImageSet(path, found["names"], poses, found["group"], groups, None, columns)
    calibration = artifacts.read_json(folder / CALIBRATION)
    limit = manifest.get("max_ram")
    return State(version, images, tuple(manifest["segments"]), manifest["index"], limit, calibration)


def merge_segments(path: Path, state: State, stores: tuple[DescriptorStore, ...], key: str) -> State:
    """The same photos over one new segment without gaps: it wins back removed rows and many small files."""
    from covis.descriptors import Stacked

    first = stores[0]
    folder = path / "segments" / key
    shutil.rmtree(folder, ignore_errors=True)
    precision = "float16" if first.dtype == np.float16 else "float32"
    merged = DescriptorStore.create(folder, first.model, first.dim, precision)  # type: ignore[arg-type]
    matrix = Stacked(stores, first.dim)
    for start in range(0, len(state.images), _MERGE_ROWS):
        rows = state.rows[start : start + _MERGE_ROWS]
        merged = merged.append(state.images.names[start : start + _MERGE_ROWS], matrix[rows], model=first.model)
    columns = {**state.images.columns, "row": np.arange(len(state.images))}
    return replace(state, segments=(key,), images=replace(state.images, columns=columns))


def tidy(path: Path, version: int) -> None:
    """Clears away what no recent state names. Only the process that holds the map's lock may do this."""
    recent = {version_folder(path, v) for v in range(version - _KEPT_VERSIONS + 1, version + 1)}
    for folder in _inside(path / "versions"):
        if folder not in recent:
            _discard(folder)
    manifests = [folder / artifacts.MANIFEST for folder in recent if (folder / artifacts.MANIFEST).is_file()]
    named = {key for file in manifests for key in artifacts.read_json(file)["segments"]}
    for folder in _inside(path / "segments"):
        if folder.name not in named:
            _discard(folder)
    for leftover in (*path.glob(".*.partial"), *path.glob("segments/*/.*.partial")):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _discard(folder: Path) -> None:
    """Takes a folder's name away first, so that a part of it is never taken for the whole."""
    gone = folder if folder.name.startswith(".") else folder.with_name(f".{folder.name}.gone")
    if gone != folder:
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _inside(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()) if folder.is_dir() else [])


def text_of(name: bytes) -> str:
    """A file name for people and JSON; bytes that are no UTF-8 are spelt out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
