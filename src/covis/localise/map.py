"""A map of places: photos with poses, their descriptors, an index over them and the model that made them.

A `Map` is one state, as it was when it was opened; `add` and `remove` give the next. Changes are atomic and kept as
versions (see `covis.localise.storage`): any number of processes may read while one writes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.datasets.screening import Rejected
from covis.descriptors import DescriptorStore, Matrix, Stacked
from covis.embedding import embed
from covis.errors import InputError
from covis.images import ImageSet, concatenate, encode_names
from covis.localise import storage
from covis.localise.answers import Answer
from covis.localise.calibration import PRECISION, RATE, Calibration, refreshed
from covis.localise.intake import list_rejects, listed, nearest_name, plain, stamps
from covis.localise.sources import files_of, reframed
from covis.localise.storage import State
from covis.models import Describer, PlaceModel, load_fast
from covis.progress import say
from covis.search import Area, Exact, LocalIndex, Ranking, build_index, open_index
from covis.search.kinds import choose

_MAX_SEGMENTS = 16
_DEAD_SHARE = 0.5
_MERGE_FROM = 64
"""Rows below which removed ones are not worth winning back."""


@dataclass(frozen=True, eq=False)
class Map:
    """One state of a map on disk."""

    path: Path
    state: State
    stores: tuple[DescriptorStore, ...]
    model: str
    """Fingerprint of the model of every descriptor."""
    dim: int

    # Opening and making

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False) -> Map:
        """The map as it is now; `verify` reads every file once against its checksum."""
        path = Path(path)
        state, stores = storage.read_state(path, verify=verify)
        record = artifacts.read_json(path / storage.RECORD)["config"]
        return cls(path, state, stores, record["model"], int(record["dim"]))

    @classmethod
    def create(
        cls,
        path: Path | str,
        images: ImageSet,
        model: PlaceModel,
        *,
        index: str = "auto",
        descriptors: DescriptorStore | None = None,
        rejects: Iterable[Rejected] = (),
        calibrate: bool = True,
    ) -> Map:
        """Makes a map of `images` with known positions; the same call goes on where an earlier one was stopped.

        index: `auto`, `exact` or a kind of approximate search. descriptors: those of the images, by name, if there
        are some already.
        """
        path = Path(path)
        config = {"model": model.fingerprint(), "dim": model.dim, "index": index, "images": images.fingerprint(),
                  "root": os.fsencode(images.root.resolve()).hex()}  # fmt: skip
        with artifacts.claim(path, storage.KIND, config):
            if (path / storage.CURRENT).is_file():
                say(f"{path}: the map is there already")
                return cls.open(path)
            if not (path / storage.MODEL / artifacts.MANIFEST).is_file():
                model.save(path / storage.MODEL, replace=True)
            start = State(0, storage.empty_table(path, images.poses.frame), (), index)
            first = cls(path, start, (), model.fingerprint(), model.dim)
            return first._added(images, "", descriptors, rejects, calibrate)

    # Looking

    def __len__(self) -> int:
        return len(self.state.images)

    @property
    def images(self) -> ImageSet:
        """The photos; their files are in the column `file`."""
        return self.state.images

    @property
    def version(self) -> int:
        """Number of this state; every change raises it by one."""
        return self.state.version

    def file(self, i: int) -> Path:
        """Where photo i lay when it was added."""
        return Path(os.fsdecode(self.images.columns["file"][i]))

    @cached_property
    def descriptors(self) -> Stacked:
        """All rows of all segments, also removed ones; photo i has the row `state.rows[i]`."""
        return Stacked(self.stores, self.dim)

    @cached_property
    def describer(self) -> PlaceModel:
        """The map's model."""
        loaded = PlaceModel.load(self.path / storage.MODEL)
        if loaded.fingerprint() != self.model:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model}, its model folder {loaded.fingerprint()}"
            )
        return loaded

    @cached_property
    def index(self) -> LocalIndex:
        """The search structure; its ids are rows of `descriptors`."""
        folder = storage.version_folder(self.path, self.version) / storage.INDEX
        if folder.is_dir():
            return open_index(folder, self.descriptors, verify=False)
        return self._fresh_exact()

    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest photos of each query descriptor; ids are positions in `images`."""
        if isinstance(queries, DescriptorStore) and queries.model != self.model:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model}, the queries are of model {queries.model}; use one model"
            )
        if not len(self):
            empty = np.zeros((len(queries), 0))
            return Ranking(empty.astype(np.int64), empty.astype(np.float32))
        found = self.index.search(queries, k, area=area)
        places = np.searchsorted(self.state.rows, np.maximum(found.ids, 0))
        return Ranking(np.where(found.ids >= 0, places, -1), found.distances)

    @cached_property
    def calibration(self) -> Calibration | None:
        """What the map knows of its own answers; None where it was never asked to find out."""
        told = self.state.calibration
        return None if told is None else Calibration.from_dict(told)

    def locate(
        self,
        photos: Sequence[Path | str],
        k: int = 5,
        *,
        area: Area | None = None,
        precision: float = PRECISION,
        rate: float = RATE,
    ) -> list[Answer]:
        """Where photos were taken: one answer each, with up to k matches, best first.

        area: where they may be at most. precision: share of confident answers that shall be right. rate: share of true
        positions that shall lie within the radius.
        """
        from covis.localise.locating import locate

        return locate(self, [Path(p) for p in photos], k, area, precision, rate)

    # Changing

    def add(
        self,
        images: ImageSet,
        *,
        prefix: str = "",
        descriptors: DescriptorStore | None = None,
        rejects: Iterable[Rejected] = (),
        calibrate: bool = True,
    ) -> Map:
        """The map with `images` added under `prefix` + name; a photo of the same name and file is replaced."""
        with self._writing() as now:
            return now._added(images, prefix, descriptors, rejects, calibrate)

    def remove(self, names: Iterable[str | bytes], *, calibrate: bool = True) -> Map:
        """The map without the photos of these names; a name that is not there is an error, and nothing changes."""
        wanted = np.unique(encode_names(names))
        with self._writing() as now:
            there = np.isin(wanted, now.images.names)
            if not there.all():
                name = os.fsdecode(wanted[~there][0])
                raise InputError(
                    f"{self.path} has no photo {name!r}{nearest_name(name, now.images)}; nothing was removed"
                )
            keep = ~np.isin(now.images.names, wanted)
            return now._next(
                replace(now.state, images=now.images.subset(keep)), now.stores, len(wanted) if calibrate else None
            )

    @contextmanager
    def _writing(self) -> Iterator[Map]:
        """The newest state, while no one else may change it."""
        with artifacts.lock(self.path):
            yield Map.open(self.path)

    def _added(
        self, images: ImageSet, prefix: str, given: DescriptorStore | None, rejects: Iterable[Rejected], calibrate: bool
    ) -> Map:
        table = replace(
            images, poses=reframed(images.poses, self.images.poses.frame, str(images.root)), intrinsics=None,
            columns={"file": files_of(images)}, root=self.path,
            names=encode_names([os.fsencode(prefix) + bytes(n) for n in images.names]),
        )  # fmt: skip
        replaced = self._check_names(table)
        key = artifacts.fingerprint(self.model, table.names, table.columns["file"], stamps(table.columns["file"]))
        store = self._segment(key, images, given)
        rows = store.rows(images.names)
        lost = [Rejected(images.name(int(i)), "no-descriptor", "see the segment") for i in np.flatnonzero(rows < 0)]
        list_rejects(self.path / storage.REJECTS, [*rejects, *listed(store, lost)])
        table = table.subset(rows >= 0)
        stores, first = self.stores, len(self.descriptors)
        if key in self.state.segments:  # the same files again: their rows are there
            at = self.state.segments.index(key)
            first = sum(len(s) for s in stores[:at])
            segments = self.state.segments
        else:
            stores, segments = (*stores, store), (*self.state.segments, key)
        table = replace(table, columns={**table.columns, "row": first + rows[rows >= 0]})
        kept = self.images.subset(~replaced)
        joined = concatenate([plain(kept), plain(table)])
        joined = storage.image_table(joined, joined.columns["row"], joined.columns["file"])
        return self._next(
            replace(self.state, images=joined, segments=segments), stores, len(table) if calibrate else None
        )

    def _check_names(self, table: ImageSet) -> NDArray[np.bool_]:
        """(N,) which photos of the map are replaced by those of `table`."""
        unique, counts = np.unique(table.names, return_counts=True)
        if len(unique) < len(table):
            raise InputError(f"{os.fsdecode(unique[counts > 1][0])!r} is given twice; give each photo once")
        same = np.isin(self.images.names, unique)
        order = np.argsort(table.names)
        at = order[np.searchsorted(table.names, self.images.names[same], sorter=order)]
        other = table.columns["file"][at] != self.images.columns["file"][same]
        if other.any():
            name, file = (os.fsdecode(a[same][other][0]) for a in (self.images.names, self.images.columns["file"]))
            raise InputError(
                f"the map has another photo {name!r} ({file}); add these under --prefix NAME/, or remove it first"
            )
        return same

    def _segment(self, key: str, images: ImageSet, given: DescriptorStore | None) -> DescriptorStore:
        """The descriptors of `images` as a segment of this map, computed or taken from a store of the same model."""
        folder = self.path / "segments" / key
        if key in self.state.segments:
            return DescriptorStore.open(folder, verify=False)
        if given is None:
            return embed(self._describer_for(len(images)), images, folder)
        if given.model != self.model:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model}, {given.path} of model {given.model}; embed with one model"
            )
        rows = given.rows(images.names)
        if (rows < 0).any():
            lacking = images.name(int(np.flatnonzero(rows < 0)[0]))
            raise InputError(f"{given.path} has no descriptor of {lacking!r}; embed the photos that you add")
        shutil.rmtree(folder, ignore_errors=True)
        store = DescriptorStore.create(folder, given.model, given.dim)
        return store.append(images.names, np.asarray(given[rows], np.float32), model=given.model)

    def _describer_for(self, count: int) -> Describer:
        loaded = load_fast(self.path / storage.MODEL, count)
        if loaded.fingerprint() != self.model:
            raise InputError(f"{self.path / storage.MODEL} is not the model {self.model} of this map; restore it")
        return loaded

    def _next(self, state: State, stores: tuple[DescriptorStore, ...], changes: int | None) -> Map:
        """Writes `state` as the next version; `changes` photos came or went (None: leave the calibration as it is)."""
        state = replace(state, version=self.version + 1)
        total = sum(map(len, stores))
        dead = total - len(state.images)
        merged = total and (len(stores) > _MAX_SEGMENTS or (total >= _MERGE_FROM and dead > _DEAD_SHARE * total))
        if merged:
            state = storage.merge_segments(self.path, state, stores, f"merged-{state.version:08d}")
            stores = storage.open_segments(self.path, state.segments)
        draft = Map(self.path, state, stores, self.model, self.dim)
        if changes is not None:
            state = replace(state, calibration=refreshed(draft, changes))
        index = draft._updated_index(None if merged else self)
        storage.write_state(self.path, state, None if isinstance(index, Exact) else index)
        after = replace(draft, state=state)
        after.__dict__["index"] = index  # it is there already; the property need not build it again
        return after

    def _updated_index(self, before: Map | None) -> LocalIndex:
        """The index of this state: grown from the one before where that takes time to build."""
        kind = choose(self.state.index, len(self), self.dim, None)
        if kind == Exact.kind:
            return self._fresh_exact()
        total, old = len(self.descriptors), 0 if before is None else len(before.descriptors)
        dead = np.setdiff1d(np.arange(total), self.state.rows)
        if before is not None and before.index.kind == kind and old:
            index = before.index
            for rows, store in self._parts():
                if rows[0] >= old:
                    index.add(rows, store, self._xy(rows))
        else:
            index, _ = build_index(self.descriptors, kind, ids=np.arange(total), xy=self._xy(np.arange(total)))
        index.remove(dead)
        return index

    def _fresh_exact(self) -> LocalIndex:
        index = Exact(self.dim, self.model)
        for rows, store in self._parts():
            index.add(rows, store, self._xy(rows))
        index.remove(np.setdiff1d(np.arange(len(self.descriptors)), self.state.rows))
        return index

    def _parts(self) -> Iterator[tuple[NDArray[np.int64], DescriptorStore]]:
        start = 0
        for store in self.stores:
            if len(store):
                yield np.arange(start, start + len(store)), store
            start += len(store)

    def _xy(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n, 2) positions of rows; NaN for removed ones."""
        places = np.full((len(self.descriptors), 2), np.nan)
        places[self.state.rows] = self.images.poses.xy
        return places[rows]
