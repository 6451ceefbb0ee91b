"""The photos and descriptors of a map in its folder: immutable parts, and one small pointer that says which count now.

A change writes new parts beside the old ones and then replaces `CURRENT`: a reader sees the state before or the state
after, and a process that dies in between leaves parts that nothing names, which the next change clears away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, files
from covis.core.arrays import Bools, Floats, Ids
from covis.core.errors import Damaged, InputError
from covis.descriptors import STORE_KIND, DescriptorStore, Matrix, Stacked
from covis.images import ImageSet, encode_names
from covis.maps.calibration import Recalibration, compacted
from covis.maps.photos import full_arrays, full_kinds, join_photos, nearest_name, with_full
from covis.maps.storage.layout import (
    CALIBRATION,
    CURRENT,
    GONE,
    MAP_KIND,
    SEGMENTS,
    VERSIONS,
    check_folders,
    clear_segment,
    current_version,
    is_part,
    read_config,
    segment_folder,
)
from covis.poses import Poses
from covis.ranking import Ranking
from covis.search import Area, Index, build_index, open_index
from covis.search.kinds import EXACT, choose

INDEX = "index"
_MERGED_AT_ONCE = 4096
_MAX_SEGMENTS = 16
_DEAD_SHARE = 0.5
_MERGE_FROM = 64
"""Rows below which it is not worth reclaiming removed ones."""
_PHOTOS = "photos.npz"
_KEPT_VERSIONS = 2
"""The current state, and the one that a reader may just be opening."""


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """One version of a map."""

    version: int
    images: ImageSet
    """Photos with poses. Columns: `file` where each lies, `row` where its descriptor is in the stacked segments."""
    segments: tuple[str, ...]
    """Keys of the descriptor stores, stacked in this order."""
    index_choice: str = "exact"
    """`auto` or a kind of index."""
    calibration: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def rows(self) -> Ids:
        """(N,) ascending rows of the photos' descriptors."""
        return np.asarray(self.images.columns["row"], np.int64)

    @property
    def frame(self) -> str:
        """The frame of positions."""
        return self.images.poses.frame


@dataclass(frozen=True, eq=False, kw_only=True)
class FolderStorage(State):
    """One version of a map in its folder, with its descriptors."""

    path: Path
    stores: tuple[DescriptorStore, ...]
    model: str
    """Fingerprint of the model of every descriptor."""
    dim: int
    built: Index | None = None
    """The index, where it was just built."""

    @classmethod
    def of(cls, state: State, path: Path, stores: tuple[DescriptorStore, ...], model: str, dim: int) -> FolderStorage:
        """A version with its descriptors."""
        known = {field.name: getattr(state, field.name) for field in fields(State)}
        return cls(**known, path=path, stores=stores, model=model, dim=dim)

    @classmethod
    def open(cls, path: Path, *, verify: bool = False) -> FolderStorage:
        """The state that counts now; every segment must be of the map's model."""
        state, stores = read_state(path, verify=verify)
        config = read_config(path)
        for store in stores:
            if (store.model, store.dim) != (config["model"], config["dim"]):
                raise Damaged(
                    f"{store.path} holds {store.dim} dimensions of model {store.model}, the map {config['dim']} of model "
                    f"{config['model']}; repair it with: covis map repair {path}"
                )
        return cls.of(state, path, stores, config["model"], config["dim"])

    @classmethod
    def empty(cls, path: Path, frame: str, model: str, dim: int, index: str) -> FolderStorage:
        """The state before the first photos of a map, which is not written."""
        poses = Poses(np.zeros((0, 2)), np.zeros(0), frame=frame)
        columns = {"row": np.zeros(0, np.int64), "file": np.zeros(0, "S1")}
        images = ImageSet.of(path, np.zeros(0, "S1"), poses, columns=columns)
        return cls(
            version=0, images=images, segments=(), index_choice=index, path=path, stores=(), model=model, dim=dim
        )

    @cached_property
    def descriptors(self) -> Stacked:
        """All rows of all segments, also removed ones; photo i has the row `rows[i]`."""
        return Stacked(self.stores, self.dim)

    @cached_property
    def index(self) -> Index:
        """The search structure, as it was written with this state or, where that takes no time, made now."""
        if self.built is not None:
            return self.built
        folder = version_folder(self.path, self.version) / INDEX
        return open_index(folder, self.descriptors, verify=False) if folder.is_dir() else self._exact()

    @property
    def kind(self) -> str:
        """The kind of search."""
        return self.index.kind

    def newest(self) -> FolderStorage:
        """The state that counts now: this one where nothing changed since."""
        return self if current_version(self.path) == self.version else FolderStorage.open(self.path)

    def search(self, queries: Matrix, k: int, area: Area | None = None) -> Ranking:
        """The k nearest photos of each query; ids are positions in `images`."""
        if not len(self):
            return Ranking(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32))
        ranking = self.index.search(queries, k, area=area)
        places = np.searchsorted(self.rows, np.maximum(ranking.ids, 0))
        return Ranking(np.where(ranking.ids >= 0, places, -1), ranking.distances)

    def nearest(
        self, queries: NDArray[np.float32], k: int, area: Area | None = None
    ) -> tuple[ImageSet, Ranking, Matrix]:
        """All photos, the k nearest of each query among them, and all descriptors."""
        return self.images, self.search(queries, k, area), self.descriptors

    def check_new(self, table: ImageSet) -> None:
        """Refuses photos that are given twice, or whose name the map has for another file."""
        unique, counts = np.unique(table.names, return_counts=True)
        if len(unique) < len(table):
            raise InputError(f"{os.fsdecode(unique[counts > 1][0])!r} is given twice; give each photo once")
        held = dict(zip(self.images.names.tolist(), self.images.columns["file"].tolist(), strict=True))
        for name, file in zip(table.names.tolist(), table.columns["file"].tolist(), strict=True):
            if held.get(name, file) != file:
                raise InputError(
                    f"the map has another photo {os.fsdecode(name)!r} ({os.fsdecode(held[name])}); add these under "
                    "--prefix NAME/, or remove it first"
                )

    def add(self, table: ImageSet, store: DescriptorStore, rows: Ids, recalibration: Recalibration) -> FolderStorage:
        """The state with the photos of `table`, whose descriptors are the `rows` of a segment; same names are replaced."""
        stores, segments, first = self.stores, self.segments, len(self.descriptors)
        key = store.path.name
        if key in segments:  # the same files again: their rows are there
            first = sum(len(s) for s in stores[: segments.index(key)])
        else:
            stores, segments = (*stores, store), (*segments, key)
        table = replace(table, columns={**table.columns, "row": first + rows})
        kept = self.images.subset(~np.isin(self.images.names, table.names))
        photos = in_row_order(join_photos([kept, table]))
        if segments == self.segments and photos.fingerprint() == self.images.fingerprint():
            return self  # the same photos at the same places
        return replace(self, images=photos, segments=segments, stores=stores)._write_next(
            self, recalibration, len(table)
        )

    def remove(self, names: Sequence[bytes], recalibration: Recalibration) -> FolderStorage:
        """The state without these photos; a name that does not exist is an error."""
        wanted = encode_names(names)
        known = np.isin(wanted, self.images.names)
        if not known.all():
            name = os.fsdecode(wanted[~known][0])
            raise InputError(f"{self.path} has no photo {name!r}{nearest_name(name, self.images)}; nothing was removed")
        kept = self.images.subset(~np.isin(self.images.names, wanted))
        return replace(self, images=kept)._write_next(self, recalibration, len(wanted))

    def recalibrate(self, recalibration: Recalibration) -> FolderStorage:
        """The state with its calibration learned again."""
        return replace(self, calibration=None)._write_next(self, recalibration, len(self))

    def _write_next(self, before: FolderStorage, recalibration: Recalibration, changes: int) -> FolderStorage:
        """Writes this as the version after `before`, of which `changes` photos came or went."""
        draft = replace(self, version=before.version + 1, built=None)
        total = len(draft.descriptors)
        many_dead = total >= _MERGE_FROM and total - len(self) > _DEAD_SHARE * total
        merged = total > 0 and (len(self.stores) > _MAX_SEGMENTS or many_dead)
        if merged:
            draft = draft._merge()
        calibration = recalibration(draft.calibration, changes, draft.images, draft.descriptors)
        return replace(draft, calibration=calibration).write(None if merged else before)

    def _merge(self) -> FolderStorage:
        """The same photos over one new segment without gaps: reclaims removed rows and replaces many small files."""
        key = f"merged-{self.version:08d}"
        precision = "float16" if self.stores[0].dtype == np.float16 else "float32"
        merged = DescriptorStore.create(clear_segment(self.path, key), self.model, self.dim, precision)  # type: ignore[arg-type]
        for start in range(0, len(self), _MERGED_AT_ONCE):
            part = slice(start, start + _MERGED_AT_ONCE)
            merged = merged.append(self.images.names[part], self.descriptors[self.rows[part]], model=self.model)
        return replace(
            self,
            images=replace(self.images, columns={**self.images.columns, "row": np.arange(len(self))}),
            segments=(key,),
            stores=open_segments(self.path, (key,), written=True),
            calibration=compacted(self.calibration, self.rows),
        )

    def write(self, before: FolderStorage | None = None) -> FolderStorage:
        """Makes this the state that counts, with an index grown from that of `before` where it takes time to build."""
        index = self._next_index(before)
        write_state(self.path, self, None if index.kind == EXACT else index)
        return replace(self, built=index)

    def _next_index(self, before: FolderStorage | None) -> Index:
        kind = choose(self.index_choice, len(self))
        if kind == EXACT:
            return self._exact()
        if before is not None and len(before.descriptors) and before.index.kind == kind:
            index = before.index
            self._add_parts(index, len(before.descriptors))
        else:
            index, _ = build_index(self.descriptors, kind, xy=self._positions)
        index.remove(np.flatnonzero(self._dead))
        return index

    def _exact(self) -> Index:
        index = Index(self.dim, model=self.model)
        self._add_parts(index, 0)
        index.remove(np.flatnonzero(self._dead))
        return index

    def _add_parts(self, index: Index, first: int) -> None:
        """Appends the segments from row `first` on to an index."""
        start = 0
        for store in self.stores:
            if len(store) and start >= first:
                index.add(store, self._positions[start : start + len(store)])
            start += len(store)

    @property
    def _dead(self) -> Bools:
        """Which rows are of photos that were removed."""
        dead = np.ones(len(self.descriptors), bool)
        dead[self.rows] = False
        return dead

    @cached_property
    def _positions(self) -> Floats:
        """(rows, 2) positions of all rows; NaN for removed ones."""
        places = np.full((len(self.descriptors), 2), np.nan)
        places[self.rows] = self.images.poses.xy
        return places


def in_row_order(images: ImageSet) -> ImageSet:
    """The photos of a map in the order of their column `row`."""
    return images.subset(np.argsort(images.columns["row"], kind="stable"))


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


def write_state(path: Path, state: State, index: Index | None) -> None:
    """Makes `state` the current state of the map, atomically; `index` is kept with it if it takes time to build."""
    folder = version_folder(path, state.version)
    poses = state.images.poses
    more: dict[str, Any] = full_arrays(state.images)
    facts = {"segments": list(state.segments), "index": state.index_choice,
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
            index.save(draft.path / INDEX)
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
    return State(
        version=version, images=images, segments=segments, index_choice=manifest["index"], calibration=calibration
    )


_FACTS = {"segments": list, "index": str, "frame": str, "photos": int,
          "full": list}  # fmt: skip


def _photo_arrays(count: int) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Kinds and shapes of what `photos.npz` holds."""
    texts, floats = ("S", (count,)), ("f", (count,))
    return {
        "names": texts, "path": texts, "row": ("i", (count,)), "xy": ("f", (count, 2)), "heading": floats, "z": floats,
        "group": ("i", (count,)), "group_names": ("S", (None,)),
    }  # fmt: skip


def tidy(path: Path, version: int) -> None:
    """Clears away what no recent state names. Only the process that holds the map's lock may do this.

    Only folders that covis made are cleared: states, segments and temporary ones. Whatever else lies there stays.
    """
    check_folders(path)
    recent = {version_folder(path, v) for v in range(version - _KEPT_VERSIONS + 1, version + 1)}
    for folder in _inside(path / VERSIONS):
        if folder not in recent and is_part(folder, MAP_KIND):
            _discard(folder)
    manifests = [folder / artifacts.MANIFEST for folder in recent if (folder / artifacts.MANIFEST).is_file()]
    named = {key for file in manifests for key in files.read_record(file, {"segments": list})["segments"]}
    for folder in _inside(path / SEGMENTS):
        if folder.name not in named and is_part(folder, STORE_KIND):
            _discard(folder)
    kept = [path / SEGMENTS / str(key) for key in named]
    for place in (path, path / VERSIONS, path / SEGMENTS, *(k for k in kept if k.is_dir() and not k.is_symlink())):
        files.clear_partials(place)


def _discard(folder: Path) -> None:
    """Deletes a folder; renames it first, so that a partly deleted one is never taken for a whole one."""
    gone = folder if folder.name.endswith(GONE) else folder.with_name(f".{folder.name}{GONE}")
    if gone != folder:
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _inside(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()) if folder.is_dir() else [])
