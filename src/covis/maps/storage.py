"""A map on disk: immutable parts, and one small pointer that says which of them are the map now.

    MAP/map.json            what the map was made with
    MAP/model/              the model of every descriptor
    MAP/segments/<key>/     descriptor stores, never changed once they are whole
    MAP/versions/<number>/  one state of the map: its photos, their rows in the segments, its calibration and index
    MAP/CURRENT             the number of the state that counts
    MAP/scene.json          where the points of the photos lie, if there are any (for full poses)

A change writes new parts beside the old ones and then replaces `CURRENT`: a reader sees the state before or the state
after, and a process that dies in between leaves parts that nothing names, which the next change clears away.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, files, machine
from covis.core.arrays import Floats
from covis.core.errors import Damaged, InputError
from covis.core.progress import Meter, say, warn
from covis.core.tables import counted
from covis.descriptors import STORE_KIND, DescriptorStore
from covis.images import ImageSet, concatenate, encode_names
from covis.maps.calibration import gcl_margin, refreshed
from covis.poses import Poses, true_headings, turned_to_true
from covis.reading.cameras import LENS, calibration, camera_table, with_cameras
from covis.reading.decoding import REJECTS, Rejected, write_rejects
from covis.search import LocalIndex
from covis.search.engines import Engine, Pointer, Rows, open_engine

# What a map takes in: images in its own frame, their files, where those may be shown from, and what is left out


def files_of(images: ImageSet) -> NDArray[np.bytes_]:
    """(N,) absolute path of each image as bytes."""
    base = os.fsencode(images.root.resolve())
    return np.array([os.path.normpath(os.path.join(base, bytes(n))) for n in images.names], dtype=bytes)  # noqa: PTH118


def reframed(poses: Poses, frame: str, what: str) -> Poses:
    """The same poses in the frame of a map, headings turned to its north."""
    if poses.frame == frame:
        return poses
    if not poses.frame or not frame:
        have, need = ("metres", "lat and lon") if frame else ("lat and lon", "metres (easting, northing)")
        raise InputError(f"{what} gives positions in {have}, but the map is in {need}; use the same kind")
    degrees = poses.latlon()
    moved = Poses.from_latlon(degrees[:, 0], degrees[:, 1], true_headings(poses), z=poses.z, frame=frame)
    if poses.rotation is None:
        return moved
    return replace(moved, rotation=turned_to_true(moved, turned_to_true(poses, poses.rotation), -1))


@dataclass(frozen=True)
class Pictures:
    """Folders whose photos may be shown: a map that someone else made must not put private files into a page.

    They are those that were given to the map on this machine, noted outside of it (in the cache folder), and those that
    the user names in addition.
    """

    folders: frozenset[str]

    @classmethod
    def of(cls, map_path: Path, more: Iterable[Path] = ()) -> Pictures:
        """The folders of a map, and `more`."""
        given = [map_path, *more]
        return cls(frozenset(os.path.realpath(folder) for folder in given) | _noted(map_path))

    def shows(self, file: Path) -> bool:
        """Whether a file lies in one of the folders."""
        normal = os.path.normpath(file)
        return any(normal.startswith(folder.rstrip(os.sep) + os.sep) for folder in self.folders)


def note_folders(map_path: Path, folders: Iterable[str]) -> None:
    """Remembers on this machine that the photos in these folders were given to a map."""
    known = _noted(map_path)
    wanted = known | {os.path.realpath(folder) for folder in folders}
    if wanted != known:
        with contextlib.suppress(OSError):  # a cache that cannot be written; --pictures does it too
            artifacts.write_json(_note(map_path), {"map": os.path.realpath(map_path), "folders": sorted(wanted)})


def note_images(map_path: Path, images: ImageSet) -> None:
    """Remembers the folders of images that were given to a map: their root, and what a table names outside of it."""
    root = os.path.realpath(images.root)
    inside = os.fsencode(root).rstrip(b"/") + b"/"
    outside = {os.path.dirname(file) for file in files_of(images) if not bytes(file).startswith(inside)}  # noqa: PTH120
    note_folders(map_path, [root, *map(os.fsdecode, outside)])


def _noted(map_path: Path) -> frozenset[str]:
    try:
        note = artifacts.read_json(_note(map_path))
    except InputError:
        return frozenset()
    same = isinstance(note, dict) and note.get("map") == os.path.realpath(map_path)
    return frozenset(map(str, note.get("folders") or ())) if same else frozenset()


def _note(map_path: Path) -> Path:
    key = artifacts.fingerprint(os.fsencode(os.path.realpath(map_path)))
    return machine.cache_folder() / "folders" / f"{key}.json"


_NAMES_COMPARED = 10_000


def kept_columns(images: ImageSet) -> dict[str, NDArray[Any]]:
    """The columns that a map keeps of its photos: where each file lies, which row it has, and its lens."""
    kept = ("file", "row", *(() if images.intrinsics is None else LENS))
    return {name: images.columns[name] for name in kept if name in images.columns}


def join_photos(parts: Sequence[ImageSet]) -> ImageSet:
    """One set after another; height, rotation and camera are unknown (NaN) where only others have them."""
    turned = any(p.poses.rotation is not None for p in parts)
    calibrated = any(p.intrinsics is not None for p in parts)
    return concatenate([_filled(p, turned, calibrated) for p in parts])


def _filled(images: ImageSet, turned: bool, calibrated: bool) -> ImageSet:
    poses, n = images.poses, len(images)
    z = np.full(n, np.nan) if poses.z is None else poses.z
    rotation = np.full((n, 3, 3), np.nan) if turned and poses.rotation is None else poses.rotation
    columns, intrinsics = dict(images.columns), images.intrinsics
    if calibrated:
        unknown = calibration([None] * n)
        intrinsics = unknown.intrinsics if intrinsics is None else intrinsics
        columns = unknown.columns | columns
    return replace(images, poses=replace(poses, z=z, rotation=rotation), intrinsics=intrinsics, columns=columns)


def stamps(files: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """(N, 2) size and time of files, so that a changed photo is embedded again."""
    sizes_and_times = []
    for file in files:
        try:
            status = os.stat(bytes(file))  # noqa: PTH116 - names may be bytes
            sizes_and_times.append((status.st_size, status.st_mtime_ns))
        except OSError:
            sizes_and_times.append((-1, -1))
    return np.array(sizes_and_times, np.int64).reshape(-1, 2)


def listed(store: Path) -> list[Rejected]:
    """The images that were left out of a store, by the list in its folder."""
    listing = store / REJECTS
    if not listing.is_file():
        return []
    with listing.open(newline="", encoding="utf-8", errors="surrogateescape") as handle:
        return [Rejected(*line) for line in list(csv.reader(handle))[1:]]


def list_rejects(path: Path, rejects: list[Rejected]) -> None:
    """Writes what was left out, and says so; nothing where all were taken."""
    if rejects:
        write_rejects(path, rejects)
        say(f"{counted(len(rejects), 'photo')} left out, listed in {path}")


def nearest_name(name: str, images: ImageSet) -> str:
    """A hint for a name that does not exist."""
    names = [images.name(i) for i in range(min(len(images), _NAMES_COMPARED))]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


# The folder of a map


MAP_KIND = "map"
RECORD = "map.json"
CURRENT = "CURRENT"
MODEL = "model"
CALIBRATION = "calibration.json"
SCENE = "scene.json"
INLIERS = "inliers.json"
INDEX = "index"
_PHOTOS = "photos.npz"
SEGMENTS, VERSIONS = "segments", "versions"
_GONE = ".covis-gone"
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


def in_row_order(images: ImageSet) -> ImageSet:
    """The photos of a map in the order of their column `row`."""
    return images.subset(np.argsort(images.columns["row"], kind="stable"))


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
        if all(files.is_passing(file) for file in (path / SEGMENTS).rglob("*") if not file.is_dir()):
            for part in (SEGMENTS, MODEL):
                shutil.rmtree(path / part, ignore_errors=True)
        raise


def check_folders(path: Path) -> None:
    """Refuses a map whose parts are links: nothing outside a map is read, written or deleted."""
    for name in (SEGMENTS, VERSIONS, MODEL, RECORD, CURRENT):
        if (path / name).is_symlink():
            raise InputError(f"{path / name} is a link, and may lead outside the map; put the files themselves there")


def read_state(path: Path, *, verify: bool = False) -> tuple[State, tuple[DescriptorStore, ...]]:
    """The current state with its descriptors, whole, also while another process changes the map."""
    check_folders(path)
    version = current_version(path)
    while True:
        try:
            state = read_version(path, version, verify=verify)
            return state, open_segments(path, state.segments, verify)
        except (InputError, OSError):
            # It may have been replaced and cleared away since its number was read.
            newer = current_version(path)
            if newer == version:
                raise
            version = newer


def read_engine(path: Path) -> dict[str, Any] | None:
    """What the map's record says of the engine that holds its photos; None where the folder holds them."""
    check_folders(path)
    if not (path / RECORD).is_file():
        return None
    hint = f"repair it with: covis map repair {path}"
    config = files.read_record(path / RECORD, {"config": dict}, hint)["config"]
    if "engine" not in config:
        return None
    return dict(
        files.checked(path / RECORD, config, {"engine": str, "table": str, "model": str, "dim": int, "frame": str})
    )


def read_facts(path: Path, stores: tuple[DescriptorStore, ...]) -> tuple[str, int]:
    """Fingerprint of the map's model and length of its descriptors; every segment must have the same."""
    record = files.read_record(path / RECORD, {"config": dict}, f"repair it with: covis map repair {path}")
    config = files.checked(path / RECORD, record["config"], {"model": str, "dim": int})
    for store in stores:
        if (store.model, store.dim) != (config["model"], config["dim"]):
            raise Damaged(
                f"{store.path} holds {store.dim} numbers of model {store.model}, the map {config['dim']} of model "
                f"{config['model']}; repair it with: covis map repair {path}"
            )
    return config["model"], config["dim"]


def read_model_manifest(path: Path, *, verify: bool = True) -> dict[str, Any]:
    """The manifest of a map's model folder, its files checked against it (without `verify`, only if they changed)."""
    facts = {"fingerprint": str, "dim": int}
    return artifacts.open_manifest(path / MODEL, "model", facts=facts, verify=verify, links=False)


def open_segments(
    path: Path, keys: tuple[str, ...], verify: bool = False, written: bool = False
) -> tuple[DescriptorStore, ...]:
    """The descriptor stores of a state."""
    return tuple(
        DescriptorStore.open(segment_folder(path, key), verify=verify, links=False, written=written) for key in keys
    )


def version_folder(path: Path, version: int) -> Path:
    """Where a state lies."""
    return path / VERSIONS / f"{version:08d}"


def segment_folder(path: Path, key: str) -> Path:
    """Where a segment lies; a key that would lead outside the map is refused."""
    if not _KEY.fullmatch(key):
        raise InputError(f"{path} names a segment {key!r}, which is outside it; do not trust where it came from")
    return path / SEGMENTS / key


def write_state(path: Path, state: State, index: LocalIndex | None) -> None:
    """Makes `state` the current state of the map, atomically; `index` is kept with it if it takes time to build."""
    folder = version_folder(path, state.version)
    poses = state.images.poses
    more: dict[str, Any] = full_arrays(state.images)
    facts = {"segments": list(state.segments), "index": state.index, "max_ram": state.max_ram,
             "frame": poses.frame, "photos": len(state.images), "full": sorted(more)}  # fmt: skip
    with artifacts.create(folder, MAP_KIND, facts, replace=True) as draft:
        height = np.full(len(poses), np.nan) if poses.z is None else poses.z
        np.savez(
            draft.path / _PHOTOS, names=state.images.names, path=state.images.columns["file"], row=state.rows,
            xy=poses.xy, heading=poses.heading, z=height, group=state.images.group, group_names=encode_names(state.images.group_names),
            **more,
        )  # fmt: skip
        artifacts.write_json(draft.path / CALIBRATION, state.calibration)
        if index is not None:
            index.save(draft.path / INDEX, with_vectors=False)
    artifacts.write_json(path / CURRENT, {"version": state.version})
    tidy(path, state.version)


def read_version(path: Path, version: int, *, verify: bool = False, index: bool = True) -> State:
    """A state of the map; without `index`, damage of its index does not matter."""
    folder = version_folder(path, version)
    skip = () if index else (INDEX,)
    manifest = artifacts.open_manifest(folder, MAP_KIND, facts=_FACTS, verify=verify, links=False, skip=skip)
    remedy = f"repair it with: covis map repair {path}"
    kinds = _photo_arrays(manifest["photos"])
    arrays = files.load_arrays(
        folder / _PHOTOS,
        kinds | {k: v for k, v in full_kinds(manifest["photos"]).items() if k in manifest["full"]},
        remedy,
    )
    poses = Poses(arrays["xy"], arrays["heading"], arrays["z"], arrays.get("rotation"), frame=manifest["frame"])
    columns = {"row": arrays["row"], "file": arrays["path"]}
    groups = tuple(os.fsdecode(g) for g in arrays["group_names"])  # folders, whose names may be any bytes
    images = with_full(
        ImageSet(path, arrays["names"], poses, arrays["group"], groups, None, columns), arrays, str(folder / _PHOTOS)
    )
    calibration = files.read_json(folder / CALIBRATION, remedy)
    if not isinstance(calibration, dict | None):
        raise Damaged(f"{folder / CALIBRATION} is damaged; {remedy}")
    segments = tuple(
        files.checked(folder / artifacts.MANIFEST, {"key": k}, {"key": str}, remedy)["key"]
        for k in manifest["segments"]
    )
    return State(version, images, segments, manifest["index"], manifest["max_ram"], calibration)


_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_FACTS = {"segments": list, "index": str, "max_ram": (int, type(None)), "frame": str, "photos": int,
          "full": list}  # fmt: skip


def _photo_arrays(count: int) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Kinds and shapes of what `photos.npz` holds."""
    texts, floats = ("S", (count,)), ("f", (count,))
    return {
        "names": texts, "path": texts, "row": ("i", (count,)), "xy": ("f", (count, 2)), "heading": floats, "z": floats,
        "group": ("i", (count,)), "group_names": ("S", (None,)),
    }  # fmt: skip


def full_arrays(images: ImageSet) -> dict[str, NDArray[Any]]:
    """Rotations, and cameras (each once), as arrays; only those that are known."""
    arrays: dict[str, NDArray[Any]] = {}
    rotation = images.poses.rotation
    if rotation is not None and not np.isnan(rotation).all():
        arrays["rotation"] = rotation
    codes, texts = camera_table(images)
    if texts:
        arrays |= {"camera": codes, "cameras": encode_names(texts)}
    return arrays


def full_kinds(count: int) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Kinds and shapes of those arrays."""
    return {"rotation": ("f", (count, 3, 3)), "camera": ("i", (count,)), "cameras": ("S", (None,))}


def with_full(images: ImageSet, arrays: Mapping[str, NDArray[Any]], where: str) -> ImageSet:
    """Images with the cameras of these arrays; rotations belong to their poses."""
    if "camera" not in arrays or "cameras" not in arrays:
        return images
    return with_cameras(images, arrays["camera"], [os.fsdecode(text) for text in arrays["cameras"].tolist()], where)


def merge_segments(path: Path, state: State, stores: tuple[DescriptorStore, ...], key: str) -> State:
    """The same photos over one new segment without gaps: reclaims removed rows and replaces many small files."""
    from covis.descriptors import Stacked

    first = stores[0]
    folder = clear_segment(path, key)
    precision = "float16" if first.dtype == np.float16 else "float32"
    merged = DescriptorStore.create(folder, first.model, first.dim, precision)  # type: ignore[arg-type]
    matrix = Stacked(stores, first.dim)
    for start in range(0, len(state.images), _MERGE_ROWS):
        rows = state.rows[start : start + _MERGE_ROWS]
        merged = merged.append(state.images.names[start : start + _MERGE_ROWS], matrix[rows], model=first.model)
    columns = {**state.images.columns, "row": np.arange(len(state.images))}
    return replace(state, segments=(key,), images=replace(state.images, columns=columns))


def tidy(path: Path, version: int) -> None:
    """Clears away what no recent state names. Only the process that holds the map's lock may do this.

    Only folders that covis made are cleared: states, segments and temporary ones. Whatever else lies there stays.
    """
    check_folders(path)
    recent = {version_folder(path, v) for v in range(version - _KEPT_VERSIONS + 1, version + 1)}
    for folder in _inside(path / VERSIONS):
        if folder not in recent and _is_ours(folder, MAP_KIND):
            _discard(folder)
    manifests = [folder / artifacts.MANIFEST for folder in recent if (folder / artifacts.MANIFEST).is_file()]
    named = {key for file in manifests for key in files.read_record(file, {"segments": list})["segments"]}
    for folder in _inside(path / SEGMENTS):
        if folder.name not in named and _is_ours(folder, STORE_KIND):
            _discard(folder)
    kept = [path / SEGMENTS / str(key) for key in named]
    for place in (path, path / VERSIONS, path / SEGMENTS, *(k for k in kept if k.is_dir() and not k.is_symlink())):
        for leftover in place.iterdir() if place.is_dir() else ():
            if files.is_partial(leftover):
                files.clear_partial(leftover)


def clear_segment(path: Path, key: str) -> Path:
    """The folder of a segment that is going to be written, cleared of what an earlier attempt left."""
    folder = segment_folder(path, key)
    check_folders(path)
    if folder.is_symlink():
        raise InputError(f"{folder} is a link, and may lead outside the map; put the files themselves there")
    if _is_ours(folder, STORE_KIND):
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def _is_ours(folder: Path, kind: str) -> bool:
    """Whether a folder of a map is a part of it: it has a manifest of `kind`, or is an unfinished embedding."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if (
        kind == STORE_KIND
        and re.fullmatch("[0-9a-f]{16}", folder.name)
        and all(map(files.is_passing, folder.iterdir()))
    ):
        return True  # killed at the start, before it was claimed: it holds nothing
    if (folder / "embedding.json").is_file() or folder.name.endswith(_GONE):
        return kind == STORE_KIND or folder.name.endswith(_GONE)
    try:
        return bool(files.read_record(folder / artifacts.MANIFEST, {"kind": str})["kind"] == kind)
    except InputError:
        return False


def _discard(folder: Path) -> None:
    """Deletes a folder; renames it first, so that a partly deleted one is never taken for a whole one."""
    gone = folder if folder.name.endswith(_GONE) else folder.with_name(f".{folder.name}{_GONE}")
    if gone != folder:
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _inside(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()) if folder.is_dir() else [])


def text_of(name: bytes) -> str:
    """A file name for people and JSON; bytes that are no UTF-8 are spelt out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# A map whose photos live in an engine: what its folder says of the engine, and rows ↔ images.
#
#     MAP/map.json          what the map was made with, the engine's address and table among it
#     MAP/model/            the model of every descriptor
#     MAP/calibration.json  what the map knows of its own answers
#     MAP/CURRENT           that it is whole; the version that counts is the engine's
#
# COVIS_ENGINE, where it is set, replaces the address in the folder, which carries no password.


ENGINE = "COVIS_ENGINE"
CALIBRATED_UP_TO = 50_000
"""Photos up to which a change fetches all descriptors to calibrate anew; beyond, the calibration stays as it was made."""
_FIRST_LOAD = 20_000
"""Photos that go into one change while a map is made; a load that was stopped resumes after the last of them."""


@dataclass(frozen=True, eq=False)
class Remote:
    """The engine of a map, at one version."""

    path: Path
    engine: Engine
    pointer: Pointer
    frame: str

    @classmethod
    def open(cls, path: Path, config: dict[str, Any]) -> Remote:
        """The engine that a map's folder names."""
        engine = open_engine(os.environ.get(ENGINE) or config["engine"], config["table"], config["dim"])
        return cls(path, engine, engine.pointer(), config["frame"])

    def images(self) -> ImageSet:
        """Every photo, in the order of ids."""
        return self.image_set(self.engine.all_rows())

    def image_set(self, rows: Rows) -> ImageSet:
        """Rows as images; columns `file` and `row`, which is the place among them."""
        rotation, codes, texts = _views_read(rows.views, str(self.path))
        poses = Poses(rows.xy.reshape(-1, 2), rows.heading, rows.height, rotation, frame=self.frame)
        columns = {"row": np.arange(len(rows)), "file": np.array(rows.files or [b""], dtype=bytes)[: len(rows)]}
        images = ImageSet.of(self.path, np.array(rows.names, dtype=bytes), poses, rows.group or "", columns=columns)
        return with_cameras(images, codes, texts, str(self.path))

    def add(self, table: ImageSet, vectors: NDArray[np.float32]) -> Remote:
        """The engine with the photos of `table`; those of the same name and file are replaced."""
        after = self._added(table, vectors)
        after.engine.settle()
        return after

    def _added(self, table: ImageSet, vectors: NDArray[np.float32]) -> Remote:
        names, files = [bytes(n) for n in table.names], [bytes(f) for f in table.columns["file"]]
        if len(set(names)) < len(names):
            raise InputError("a photo is given twice; give each photo once")
        held = self.engine.named(names)
        for name, file in zip(names, files, strict=True):
            if name in held and held[name][1] != file:
                raise InputError(
                    f"the map has another photo {os.fsdecode(name)!r} ({os.fsdecode(held[name][1])}); add these under "
                    "--prefix NAME/, or remove it first"
                )
        poses, first = table.poses, self.pointer.next_id
        height = np.full(len(table), np.nan) if poses.z is None else poses.z
        groups = [table.group_names[g] for g in table.group]
        rows = Rows(
            np.arange(first, first + len(table)),
            names,
            files,
            poses.xy,
            poses.heading,
            height,
            groups,
            views_of(table),
            vectors,
        )
        gone = np.array([i for i, _ in held.values()], np.int64)
        return replace(self, pointer=self.engine.change(self.pointer, rows, gone))

    def load(self, table: ImageSet, vectors: NDArray[np.float32]) -> Remote:
        """The first photos of a map, in random order (graphs built along a drive lose recall); it can be resumed."""
        order = np.random.default_rng(0).permutation(len(table))
        now = self
        with Meter(f"load {self.engine.kind}", len(table), "photos") as meter:
            meter.advance(now.pointer.photos)
            while now.pointer.photos < len(table):
                part = order[now.pointer.photos : now.pointer.photos + _FIRST_LOAD]
                now = now._added(table.subset(part), vectors[part])
                meter.advance(len(part))
        now.engine.settle()
        return now

    def remove(self, names: list[bytes]) -> Remote:
        """The engine without these photos."""
        held = self.engine.named(names)
        missing = [name for name in names if name not in held]
        if missing:
            raise InputError(f"{self.path} has no photo {os.fsdecode(missing[0])!r}; nothing was removed")
        gone = np.array([i for i, _ in held.values()], np.int64)
        return replace(self, pointer=self.engine.change(self.pointer, None, gone))

    def calibration(self) -> Any:
        """The folder's calibration record, which may be None; warns where a finished map has no such file."""
        file = self.path / CALIBRATION
        if file.is_file():
            return artifacts.read_json(file, f"delete it, then run: covis map calibrate {self.path}")
        if (self.path / CURRENT).is_file():
            warn(f"{file} is missing, so answers have no probability; make it with: covis map calibrate {self.path}")
        return None

    def recalibrate(self, old: Any, changes: int) -> Any:
        """Writes and returns the calibration after `changes` photos came or went."""
        if old is not None and (self.pointer.photos > CALIBRATED_UP_TO or old.get("seen")):
            record = dict(old) | {"changes": old["changes"] + changes}
        else:
            rows = self.engine.all_rows(vectors=True)
            assert rows.vectors is not None
            record = refreshed(old, changes, self.image_set(rows), rows.vectors, gcl_margin(self.path / MODEL))
        artifacts.write_json(self.path / CALIBRATION, record)
        return record


def views_of(images: ImageSet) -> list[str]:
    """What an engine keeps of each photo as text: nine numbers of its rotation and its camera; empty where both are unknown."""
    codes, texts = camera_table(images)
    rotation = images.poses.rotation
    turns: list[Any] = [None] * len(images) if rotation is None else rotation.reshape(-1, 9).tolist()
    cameras = [texts[code] if code >= 0 else "" for code in codes.tolist()]
    known = [turn is not None and turn[0] == turn[0] for turn in turns]
    return [
        json.dumps({"rotation": turn if ok else None, "camera": camera}) if ok or camera else ""
        for turn, ok, camera in zip(turns, known, cameras, strict=True)
    ]


def _views_read(views: list[str], where: str) -> tuple[Floats | None, NDArray[np.int32], list[str]]:
    """(N, 3, 3) rotations or None, (N,) cameras and the texts of these."""
    rotation, codes = np.full((len(views), 9), np.nan), np.full(len(views), -1, np.int32)
    texts: dict[str, int] = {}
    for i, view in enumerate(views):
        if not view:
            continue
        try:
            parsed = json.loads(view)
            if parsed["rotation"] is not None:
                rotation[i] = parsed["rotation"]
            if parsed["camera"]:
                codes[i] = texts.setdefault(str(parsed["camera"]), len(texts))
        except (ValueError, KeyError, TypeError):
            raise Damaged(
                f"{where}: the engine's row {i} has a view that cannot be read; index the photos again"
            ) from None
    known = not np.isnan(rotation).all()
    return (rotation.reshape(-1, 3, 3) if known else None), codes, list(texts)
