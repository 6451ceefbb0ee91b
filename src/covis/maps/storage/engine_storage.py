"""A map whose photos live in an external engine.

The folder of such a map keeps its model and its calibration. COVIS_ENGINE, where it is set, replaces the address in
the folder, which carries no password.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.addresses import is_ambiguous, printed, without_password
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import Meter, warn
from covis.descriptors import DescriptorStore, Matrix
from covis.images import ImageSet
from covis.maps.calibration import Recalibration
from covis.maps.photos import facts_of, images_of
from covis.maps.settings import EVIDENCE
from covis.maps.storage.engine import Engine, Pointer, Rows
from covis.maps.storage.layout import CALIBRATION, CURRENT, clear_segment
from covis.ranking import Ranking
from covis.search.area import Area
from covis.search.exact import as_queries

ENGINE = "COVIS_ENGINE"
FORMS = "milvus:http://HOST:19530, milvus:FILE.db or postgresql://USER@HOST/DATABASE"
CALIBRATED_UP_TO = 50_000
"""Photos up to which a change fetches all descriptors to calibrate anew; beyond, the calibration stays as it was made."""
_FIRST_LOAD = 20_000
"""Photos that go into one change while a map is made; a load that was stopped resumes after the last of them."""


def open_engine(url: str, table: str, dim: int) -> Engine:
    """The engine at `url` with its table `table`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,50}", table):
        raise InputError(f"{table!r} is not a valid table name")
    if is_ambiguous(url):
        raise InputError(
            f"the password for {printed(url)} has characters that an address cannot hold; give it in PGPASSWORD or "
            "COVIS_MILVUS_TOKEN, or percent-encode it"
        )
    kind, _, rest = url.partition(":")
    if kind == "milvus" and rest:
        from covis.maps.storage.milvus import Milvus

        return Milvus(rest, table, dim)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        from covis.maps.storage.postgres import Postgres

        return Postgres(url, table, dim)
    raise InputError(f"--engine is {FORMS}, not {printed(url)!r}")


@dataclass(frozen=True, eq=False)
class EngineStorage:
    """The photos of a map in an engine, at one version."""

    path: Path
    engine: Engine
    pointer: Pointer
    frame: str
    calibration: Mapping[str, Any] | None = None

    @classmethod
    def create(cls, path: Path, address: str, table: str, dim: int, frame: str) -> EngineStorage:
        """The engine of a map that is being made, which may hold some photos of an interrupted load."""
        if without_password(address) != address:
            warn("other users of this machine can see the password (ps); give it in PGPASSWORD or COVIS_MILVUS_TOKEN")
        engine = open_engine(address, table, dim)
        engine.create()
        return cls(path, engine, engine.pointer(), frame)

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any]) -> EngineStorage:
        """The engine that a map's folder names."""
        engine = open_engine(os.environ.get(ENGINE) or config["engine"], config["table"], config["dim"])
        return cls(path, engine, engine.pointer(), config["frame"], _read_calibration(path))

    def __len__(self) -> int:
        return self.pointer.photos

    @property
    def version(self) -> int:
        """Number of this state."""
        return self.pointer.version

    @property
    def kind(self) -> str:
        """The engine's name."""
        return self.engine.kind

    @property
    def segments(self) -> tuple[str, ...]:
        """None: descriptors are in the engine."""
        return ()

    @cached_property
    def images(self) -> ImageSet:
        """Every photo, in the order of ids."""
        return self._image_set(self.engine.all_rows())

    def _image_set(self, rows: Rows) -> ImageSet:
        return images_of(self.path, rows.names, rows.xy, rows.facts, self.frame)

    def newest(self) -> EngineStorage:
        """The state that counts now: this one where nothing changed since."""
        pointer = self.engine.pointer()
        if pointer == self.pointer:
            return self
        return replace(self, pointer=pointer, calibration=_read_calibration(self.path))

    def search(self, queries: Matrix, k: int, area: Area | None = None) -> Ranking:
        """The k nearest photos of each query; ids are positions in `images`."""
        if not len(self):
            return Ranking(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32))
        rows, ranking = self.engine.search(as_queries(queries, np.empty((0, self.engine.dim), np.float32), k), k, area)
        order = np.argsort(self.images.names)
        at = order[np.searchsorted(self.images.names, np.array(rows.names, dtype=bytes), sorter=order) % len(order)]
        return Ranking(np.where(ranking.ids >= 0, at[np.maximum(ranking.ids, 0)], -1), ranking.distances)

    def nearest(
        self, queries: NDArray[np.float32], k: int, area: Area | None = None
    ) -> tuple[ImageSet, Ranking, Matrix]:
        """The photos that are found, and no others; the k nearest of each query among them; descriptors of those
        that count as evidence."""
        if not len(queries):
            none = Ranking(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))
            return self._image_set(self.engine.page(-1, 0)), none, np.zeros((0, self.engine.dim), np.float32)
        rows, ranking = self.engine.search(queries, k, area)
        first = np.unique(ranking.ids[:, : EVIDENCE.context])
        vectors, first = np.zeros((len(rows), self.engine.dim), np.float32), first[first >= 0]
        vectors[first] = self.engine.vectors(rows.ids[first])
        return self._image_set(rows), ranking, vectors

    def check_new(self, table: ImageSet) -> None:
        """Refuses photos that are given twice, or whose name the map has for another file."""
        names = [bytes(name) for name in table.names]
        if len(set(names)) < len(names):
            raise InputError("a photo is given twice; give each photo once")
        held = self.engine.named(names)
        for name, file in zip(names, table.columns["file"].tolist(), strict=True):
            there = json.loads(held[name][1])["file"] if name in held else os.fsdecode(file)
            if there != os.fsdecode(file):
                raise InputError(
                    f"the map has another photo {os.fsdecode(name)!r} ({there}); add these under --prefix NAME/, or "
                    "remove it first"
                )

    def add(self, table: ImageSet, store: DescriptorStore, rows: Ids, recalibration: Recalibration) -> EngineStorage:
        """With the photos of `table`; the first photos of a map are loaded in parts, which can be resumed."""
        vectors = np.asarray(store[rows], np.float32)
        first = not (self.path / CURRENT).is_file()
        after = self._load(table, vectors) if first else self._insert(table, vectors)
        after.engine.settle()
        given = replace(table, columns={**table.columns, "row": np.arange(len(table))}), vectors
        after = after._calibrate(recalibration, len(table), given)
        if first:
            artifacts.write_json(self.path / CURRENT, {"version": after.version})
        clear_segment(self.path, store.path.name)
        return after

    def _load(self, table: ImageSet, vectors: NDArray[np.float32]) -> EngineStorage:
        """The first photos of a map, in random order: graphs built along a drive lose recall."""
        order = np.random.default_rng(0).permutation(len(table))
        now = self
        with Meter(f"load {self.kind}", len(table), "photos") as meter:
            meter.advance(len(now))
            while len(now) < len(table):
                part = order[len(now) : len(now) + _FIRST_LOAD]
                now = now._insert(table.subset(part), vectors[part])
                meter.advance(len(part))
        return now

    def _insert(self, table: ImageSet, vectors: NDArray[np.float32]) -> EngineStorage:
        names, first = [bytes(n) for n in table.names], self.pointer.next_id
        rows = Rows(np.arange(first, first + len(table)), names, table.poses.xy, facts_of(table), vectors)
        return self._change(rows, [i for i, _ in self.engine.named(names).values()])

    def _change(self, rows: Rows | None, gone: Sequence[int]) -> EngineStorage:
        return replace(self, pointer=self.engine.change(self.pointer, rows, np.array(gone, np.int64)))

    def remove(self, names: Sequence[bytes], recalibration: Recalibration) -> EngineStorage:
        """Without these photos."""
        held = self.engine.named(names)
        missing = [name for name in names if name not in held]
        if missing:
            raise InputError(f"{self.path} has no photo {os.fsdecode(missing[0])!r}; nothing was removed")
        return self._change(None, [i for i, _ in held.values()])._calibrate(recalibration, len(held))

    def recalibrate(self, recalibration: Recalibration) -> EngineStorage:
        """With the calibration learned again."""
        return replace(self, calibration=None)._calibrate(recalibration, len(self))

    def _calibrate(
        self, recalibration: Recalibration, changes: int, given: tuple[ImageSet, NDArray[np.float32]] | None = None
    ) -> EngineStorage:
        """With the calibration after `changes` photos came or went, written to the folder; `given`: the new photos."""
        old = self.calibration
        if not recalibration.wanted and recalibration.held is None:
            record = old
        elif recalibration.held is not None and given is not None:
            record = recalibration(old, changes, *given)
        elif old is not None and (len(self) > CALIBRATED_UP_TO or old.get("seen")):
            record = {**old, "changes": old["changes"] + changes}
        else:
            rows = self.engine.all_rows(vectors=True)
            assert rows.vectors is not None
            record = recalibration(old, changes, self._image_set(rows), rows.vectors)
        artifacts.write_json(self.path / CALIBRATION, record)
        return replace(self, calibration=record)


def _read_calibration(path: Path) -> Any:
    """The folder's calibration record, which may be None; warns where there is no such file."""
    file = path / CALIBRATION
    if file.is_file():
        return artifacts.read_json(file, f"delete it, then run: covis map calibrate {path}")
    warn(f"{file} is missing, so answers have no probability; make it with: covis map calibrate {path}")
    return None
