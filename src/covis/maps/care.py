"""Care of maps: check and repair, export to a file and import from one, merge two, and what differs between two."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, files
from covis.core.arrays import Bools, Ids
from covis.core.errors import Damaged, InputError
from covis.core.files import foreign, replacing
from covis.core.progress import say
from covis.descriptors import DescriptorStore
from covis.images import ImageSet, encode_names
from covis.maps import storage
from covis.maps.calibration import compacted, gcl_margin, refreshed
from covis.maps.map import RUNTIME, Map, next_index, read_runtime
from covis.maps.storage import Pictures, State, join_photos, kept_columns, note_folders, reframed
from covis.poses import Poses
from covis.search import Exact

# Checking a map against every checksum, and repairing one that lost parts; kept apart from `map`, which never handles
# damage.


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
    _try(problems, path / storage.RECORD, lambda: storage.read_facts(path, ()))
    _try(problems, path / storage.MODEL, lambda: storage.read_model_manifest(path))
    if (path / RUNTIME).exists():
        _try(problems, path / RUNTIME, lambda: read_runtime(path, verify=True))
    version: int | None = _try(problems, path / storage.CURRENT, lambda: storage.current_version(path))
    if version is None:
        return problems
    folder = storage.version_folder(path, version)
    state: State | None = _try(problems, folder, lambda: storage.read_version(path, version, verify=True))
    for key in () if state is None else state.segments:
        segment = path / storage.SEGMENTS / key
        _try(problems, segment, lambda key=key: storage.open_segments(path, (key,), verify=True))
    if not problems:
        _try(problems, folder, lambda: Map.open(path, verify=True).index)
    return problems


def repair_map(path: Path | str) -> dict[str, Any]:
    """Makes the map whole again from what is not damaged, and says what was dropped.

    The newest whole state counts; photos of damaged segments are dropped and listed in `MAP/dropped.csv`, so that they
    can be added again; the index is built anew, and the ONNX file is made again. A damaged model cannot be made again:
    that is an error.
    """
    path = _existing(path)
    storage.check_folders(path)
    with artifacts.lock(path):
        problems = check_map(path)
        parts = {problem.part for problem in problems}
        outcome = _rebuilt(path) if parts - {RUNTIME} else {"version": storage.current_version(path), "dropped": []}
        if RUNTIME in parts:
            _cleared(path / RUNTIME)
    if RUNTIME in parts:
        Map.open(path).carry_runtime()
    damage = [{"part": p.part, "cause": p.cause} for p in problems]
    photos = len(Map.open(path, verify=True))
    return {"map": str(path), "repaired": bool(problems), "photos": photos, **outcome, "problems": damage}


def _cleared(folder: Path) -> None:
    """Removes a folder, or the link that stands for it."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def _rebuilt(path: Path) -> dict[str, Any]:
    """Writes a new state of the parts that are whole; returns its number, and the names of dropped photos."""
    fingerprint, dim = _facts(path)
    state = _newest_state(path)
    kept, stores, rows = _whole_segments(path, state, fingerprint)
    names = [storage.text_of(bytes(n)) for n in state.images.names[~kept]]
    images = state.images.subset(kept)
    images = replace(images, columns={**images.columns, "row": rows[kept]})
    number = 1 + max([state.version, *_versions(path)])
    segments = tuple(store.path.name for store in stores)
    repaired = replace(state, version=number, images=images, segments=segments)
    now = Map(path, repaired, stores, fingerprint, dim)
    index = next_index(now, None)
    _write_dropped(path / DROPPED, state, kept)
    storage.write_state(path, repaired, None if isinstance(index, Exact) else index)
    return {"version": number, "dropped": names}


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.is_dir() or not any((path / name).exists() for name in (storage.RECORD, storage.VERSIONS)):
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


_GROUPED = (storage.SEGMENTS, storage.VERSIONS)


def _facts(path: Path) -> tuple[str, int]:
    """Fingerprint and length of the map's descriptors; from its model where `map.json` is damaged, then rewritten."""
    try:
        manifest = storage.read_model_manifest(path)
    except InputError as error:
        raise InputError(f"{error}: a map needs its model; copy {path / storage.MODEL} from a backup") from None
    try:
        return storage.read_facts(path, ())
    except InputError:
        say(f"{path / storage.RECORD} was damaged and is rewritten")
    config = {"model": manifest["fingerprint"], "dim": manifest["dim"]}
    files.write_json(
        path / storage.RECORD, {"kind": storage.MAP_KIND, "config": config, "versions": artifacts.versions()}
    )
    return manifest["fingerprint"], manifest["dim"]


def _versions(path: Path) -> list[int]:
    """Numbers of the states that are there, newest first."""
    folders = (path / storage.VERSIONS).iterdir() if (path / storage.VERSIONS).is_dir() else ()
    return sorted((int(f.name) for f in folders if f.name.isdigit() and f.is_dir()), reverse=True)


def _newest_state(path: Path) -> State:
    """The state that counts, or the newest one that can be read."""
    numbers = _versions(path)
    try:
        current = storage.current_version(path)
        numbers = [current, *(n for n in numbers if n != current)]
    except InputError:
        pass
    causes = []
    for number in numbers:
        try:
            return storage.read_version(path, number, verify=True, index=False)
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
            (store,) = storage.open_segments(path, (key,), verify=True)
            if store.model != model:
                raise Damaged(f"{store.path} is of another model")
        except (InputError, OSError) as error:
            say(f"dropped: {error}")
            length = _rows_of(path / storage.SEGMENTS / key)
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
    if not len(lost):
        return
    with (
        files.replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle,
    ):
        writer = csv.writer(handle)
        writer.writerow(["image", "file", "easting", "northing", "heading"])
        for i in range(len(lost)):
            x, y = lost.poses.xy[i]
            place = lost.columns["file"][i].decode("utf-8", "surrogateescape")
            writer.writerow([lost.name(i), place, repr(float(x)), repr(float(y)), repr(float(lost.poses.heading[i]))])


# Export, import, merge, diff


_KIND, _SCHEMA = "covis-map", 1
LISTING = "covis.json"
_ARRAYS = ("names", "xy", "heading", "z", "group", "group_names", "file", "descriptors")
_MORE = ("rotation", "camera", "cameras")
"""Arrays that a file has where poses are full (6DOF) or cameras known."""
_NAME = re.compile(r"(covis\.json|calibration\.json|arrays/[a-z_]+\.npy|(model|runtime)/[A-Za-z0-9_][A-Za-z0-9_.-]*)")
_MAX_LISTING = 1 << 20
_CHUNK = 1 << 20
_ALIKE = 1e-3
"""Largest difference in any entry of a descriptor that half precision and another runtime cause."""


def export_map(map_: Map, target: Path, *, with_paths: bool = False) -> int:
    """Writes the map as one file, without the paths of its photos unless `with_paths`; returns its bytes."""
    map_ = _whole(map_)
    poses, images = map_.images.poses, map_.images
    files = images.columns["file"] if with_paths else np.zeros(len(images), "S1")
    arrays = {
        "names": images.names, "xy": poses.xy, "heading": poses.heading, "group": images.group, "file": files,
        "z": np.full(len(poses), np.nan) if poses.z is None else poses.z,
        "group_names": encode_names(images.group_names), "descriptors": map_.descriptors[map_.state.rows],
        **storage.full_arrays(images),
    }  # fmt: skip
    content: dict[str, bytes | Path] = {f"arrays/{name}.npy": _npy(array) for name, array in arrays.items()}
    content["calibration.json"] = json.dumps(compacted(map_.state.calibration, map_.state.rows)).encode()
    for folder in (storage.MODEL, RUNTIME):
        inside = sorted(p for p in (map_.path / folder).glob("*") if p.is_file() and not p.name.startswith("."))
        content |= {f"{folder}/{file.name}": file for file in inside}
    facts = {"kind": _KIND, "schema": _SCHEMA, "model": map_.model_fingerprint, "dim": map_.dim, "photos": len(map_),
             "frame": poses.frame, "index": map_.state.index, "max_ram": map_.state.max_ram}  # fmt: skip
    listing = {name: _entry(data) for name, data in content.items()}
    with replacing(target) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(LISTING, json.dumps({**facts, "files": listing}, indent=1))
        for name, data in content.items():
            if isinstance(data, Path):
                archive.write(data, name)
            else:
                archive.writestr(name, data)
    return target.stat().st_size


@foreign("a map file")
def import_map(source: Path, target: Path, *, photos: Path | None = None) -> Map:
    """The map of a file that `export_map` wrote, every byte checked; `photos` is the folder of its photos, if any."""
    if target.exists():
        raise InputError(f"{target} already exists; choose another output or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        facts = _unpacked(source, Path(folder))
        arrays = _arrays(source, Path(folder))
        images = _images(source, facts, arrays, photos)
        calibration = artifacts.read_json(Path(folder) / "calibration.json")
        parts = Parts(images, arrays["descriptors"], Path(folder), facts["index"], facts["max_ram"])
        made = _made(target, parts, facts["model"], calibration, {"imported": source.name})
    if photos is not None:
        note_folders(target, [str(photos)])
    return made


def merge_maps(first: Map, second: Map, target: Path, *, prefix: str = "") -> Map:
    """One map of the photos of two maps of the same model; `prefix` goes before the names of the second."""
    first, second = _whole(first), _whole(second)
    if first.model_fingerprint != second.model_fingerprint:
        raise InputError(
            f"{first.path} holds descriptors of model {first.model_fingerprint}, {second.path} of model "
            f"{second.model_fingerprint}; maps of one model can be merged, index the photos of one again"
        )
    names = encode_names([os.fsencode(prefix) + bytes(n) for n in second.images.names])
    new = ~np.isin(names, first.images.names)
    order = np.argsort(first.images.names)
    same = _same_photos(first, second, order[np.searchsorted(first.images.names, names[~new], sorter=order)], ~new)
    if not same.all():
        name = os.fsdecode(names[~new][~same][0])
        raise InputError(f"both maps have a photo {name!r}, of different files; give --prefix NAME/ for the second")
    frame = first.images.poses.frame
    moved = replace(second.images, names=names, poses=reframed(second.images.poses, frame, str(second.path)))
    halves = [(_bare(first.images), first.descriptors[first.state.rows])]
    halves.append((_bare(moved.subset(new)), second.descriptors[second.state.rows[new]]))
    learned = next((m for m in (first, second) if (m.state.calibration or {}).get("seen")), None)
    calibration = (
        None
        if learned is None
        else compacted(learned.state.calibration, learned.state.rows[new if learned is second else slice(None)])
    )
    if learned is second:  # photos that the model learned from stand first
        halves.reverse()
    photos, rows = join_photos([images for images, _ in halves]), np.concatenate([vectors for _, vectors in halves])
    parts = Parts(photos, rows, first.path, first.state.index, first.state.max_ram)
    origin = {"merged": [first.path.name, second.path.name]}
    note_folders(target, Pictures.of(first.path).folders | Pictures.of(second.path).folders)
    return _made(target, parts, first.model_fingerprint, calibration, origin, changes=len(halves[1][0]))


def _same_photos(first: Map, second: Map, mine: Ids, others: Bools) -> Bools:
    """Whether photos of one name are the same: the same file or, where an export left paths out, described alike."""
    files = first.images.columns["file"][mine], second.images.columns["file"][others]
    unknown = (files[0] == b"") | (files[1] == b"")
    same = files[0] == files[1]
    if unknown.any():
        same = np.where(unknown, _described_alike(first, second, mine, np.flatnonzero(others)), same)
    return np.asarray(same)


def _described_alike(first: Map, second: Map, a: Ids, b: Ids) -> Bools:
    """Whether photos at positions a of one map and b of another of the same model have the same descriptor."""
    vectors = [m.descriptors[m.state.rows[ids]].astype(np.float32) for m, ids in ((first, a), (second, b))]
    return np.asarray(np.abs(vectors[0] - vectors[1]).max(axis=1) <= _ALIKE)


def diff_maps(first: Map, second: Map, tolerance_m: float = 0.1) -> dict[str, Any]:
    """What differs between two maps: photos of one alone, moved by more than `tolerance_m`, or described otherwise."""
    names = [_texts(m.images) for m in (first, second)]
    both = sorted(names[0].keys() & names[1].keys())
    a, b = (np.array([part[name] for name in both], np.int64) for part in names)
    poses = reframed(second.images.poses, first.images.poses.frame, str(second.path))
    apart = np.hypot(*(first.images.poses.xy[a] - poses.xy[b]).T) if both else np.zeros(0)
    same_model = first.model_fingerprint == second.model_fingerprint
    other = np.zeros(len(both), bool)
    if same_model and both:
        other = ~_described_alike(first, second, a, b)
    return {
        "first": str(first.path), "second": str(second.path), "photos": [len(first), len(second)],
        "same_model": same_model, "models": [first.model_fingerprint, second.model_fingerprint],
        "only_first": sorted(names[0].keys() - names[1].keys()), "only_second": sorted(names[1].keys() - names[0].keys()),
        "moved": {name: round(float(m), 2) for name, m in zip(both, apart, strict=True) if m > tolerance_m},
        "described_otherwise": [name for name, changed in zip(both, other, strict=True) if changed],
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Parts:
    """What a map is made of."""

    images: ImageSet
    """With their files in the column `file`."""
    descriptors: NDArray[Any]
    """(N, dim) of each image."""
    folder: Path
    """Where `model/` and perhaps `runtime/` lie."""
    index: str
    max_ram: int | None


def _made(target: Path, parts: Parts, model: str, calibration: Any, origin: Mapping[str, Any], changes: int = 0) -> Map:
    """A new map of these parts; calibrated anew where `calibration` is None or `changes` are too many for it."""
    count, dim = parts.descriptors.shape
    config = {"model": model, "dim": dim, "index": parts.index, "images": parts.images.fingerprint(), **origin}
    with artifacts.claim(target, storage.MAP_KIND, config):
        for name in (storage.MODEL, RUNTIME):
            if (parts.folder / name).is_dir():
                shutil.copytree(parts.folder / name, target / name, ignore=shutil.ignore_patterns(".*"))
        if artifacts.open_manifest(target / storage.MODEL, "model").get("fingerprint") != model:
            raise InputError(f"the model in {parts.folder} is not {model}, whose descriptors the map holds")
        key = artifacts.fingerprint(model, parts.images.fingerprint(), count)
        precision: Any = "float16" if parts.descriptors.dtype == np.float16 else "float32"
        store = DescriptorStore.create(target / storage.SEGMENTS / key, model, dim, precision)
        store = store.append(parts.images.names, parts.descriptors, model=model)
        table = replace(parts.images, root=target, columns={**parts.images.columns, "row": np.arange(count)})
        state = State(1, table, (key,), parts.index, parts.max_ram, calibration)
        draft = Map(target, state, (store,), model, dim)
        if calibration is None or changes:
            margin = gcl_margin(target / storage.MODEL)
            renewed = refreshed(calibration, changes or count, state.images, draft.descriptors, margin)
            state = replace(state, calibration=renewed)
        index = next_index(replace(draft, state=state), None)
        storage.write_state(target, state, None if isinstance(index, Exact) else index)
    return Map.open(target)


def _whole(map_: Map) -> Map:
    """The map with every byte checked, unless its photos live in an engine."""
    if storage.read_engine(map_.path) is not None:
        raise InputError(
            f"the photos of {map_.path} live in an engine; to send them, index the photos again "
            f"without --engine: covis index PHOTOS --model {map_.path}/model -o ANOTHER_MAP"
        )
    return Map.open(map_.path, verify=True)


def _bare(images: ImageSet) -> ImageSet:
    """The photos without rows and under one root, so that those of two maps can be joined."""
    return replace(images, root=Path(), columns={k: v for k, v in kept_columns(images).items() if k != "row"})


def _texts(images: ImageSet) -> dict[str, int]:
    return {storage.text_of(name): i for i, name in enumerate(images.names)}


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
        sound &= isinstance(facts["max_ram"], int | None)
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
    if any(name.startswith((b"/", b"../")) or b"/../" in name for name in arrays["names"].tolist()):
        raise InputError(f"{source} names photos outside of a folder; export the map again")
    files = arrays["file"]
    if photos is not None:
        files = encode_names([os.fsencode(photos.resolve()) + b"/" + bytes(n) for n in arrays["names"]])
    poses = Poses(arrays["xy"], arrays["heading"], arrays["z"], arrays.get("rotation"), frame=facts["frame"])
    groups = tuple(os.fsdecode(g) for g in arrays["group_names"].tolist())
    images = ImageSet(Path(), arrays["names"], poses, arrays["group"], groups or ("",), None, {"file": files})
    return storage.with_full(images, arrays, str(source))
