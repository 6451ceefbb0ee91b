"""A map of places: photos with poses, their descriptors, an index over them and the model that made them.

A `Map` is one state, as it was when it was opened; `add` and `remove` give the next. Changes are atomic and kept as
versions (see `covis.localise.storage`): any number of processes may read while one writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from covis import artifacts
from covis.datasets.screening import Rejected
from covis.descriptors import DescriptorStore, Matrix, Stacked
from covis.errors import InputError
from covis.images import ImageSet
from covis.localise import storage
from covis.localise.answers import Answer
from covis.localise.calibration import PRECISION, RATE, Calibration
from covis.localise.changing import added, removed
from covis.localise.indexing import opened_index
from covis.localise.storage import State
from covis.models import PlaceModel
from covis.progress import say
from covis.search import Area, LocalIndex, Ranking
from covis.search.kinds import choose


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
        max_ram: int | None = None,
        descriptors: DescriptorStore | None = None,
        rejects: Iterable[Rejected] = (),
        calibrate: bool = True,
    ) -> Map:
        """Makes a map of `images` with known positions; the same call goes on where an earlier one was stopped.

        index: `auto`, `exact` or a kind of approximate search, which may take `max_ram` bytes beside the descriptors.
        descriptors: those of the images, by name, if there are some already.
        """
        path = Path(path)
        choose(index, len(images), model.dim, max_ram)  # what cannot be built is said before the work
        config = {"model": model.fingerprint(), "dim": model.dim, "index": index, "images": images.fingerprint(),
                  "root": os.fsencode(images.root.resolve()).hex(), **({} if max_ram is None else {"max_ram": max_ram})}  # fmt: skip
        with artifacts.claim(path, storage.KIND, config):
            if (path / storage.CURRENT).is_file():
                say(f"{path}: the map is there already")
                return cls.open(path)
            if not (path / storage.MODEL / artifacts.MANIFEST).is_file():
                model.save(path / storage.MODEL, replace=True)
            start = State(0, storage.empty_table(path, images.poses.frame), (), index, max_ram)
            first = cls(path, start, (), model.fingerprint(), model.dim)
            return added(first, images, "", descriptors, rejects, calibrate)

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
        return opened_index(self)

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
            return added(now, images, prefix, descriptors, rejects, calibrate)

    def remove(self, names: Iterable[str | bytes], *, calibrate: bool = True) -> Map:
        """The map without the photos of these names; a name that is not there is an error, and nothing changes."""
        with self._writing() as now:
            return removed(now, names, calibrate)

    @contextmanager
    def _writing(self) -> Iterator[Map]:
        """The newest state, while no one else may change it."""
        with artifacts.lock(self.path):
            yield Map.open(self.path)
