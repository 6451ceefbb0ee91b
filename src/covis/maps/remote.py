"""A map whose photos live in an engine: what its folder says of the engine, and rows ↔ images.

    MAP/map.json          what the map was made with, the engine's address and table among it
    MAP/model/            the model of every descriptor
    MAP/calibration.json  what the map knows of its own answers
    MAP/CURRENT           that it is whole; the version that counts is the engine's

COVIS_ENGINE, where it is set, is asked instead of the address in the folder, which carries no password.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.errors import InputError
from covis.images import ImageSet
from covis.maps import storage
from covis.maps.calibration import gcl_margin, refreshed
from covis.poses import Poses
from covis.progress import Meter
from covis.search.engines import Engine, Pointer, Rows, open_engine

ENGINE = "COVIS_ENGINE"
CALIBRATED_UP_TO = 50_000
"""Photos up to which a change fetches all descriptors to calibrate anew; beyond, the calibration stays as it was made."""
_FIRST_LOAD = 20_000
"""Photos that go into one change while a map is made; a load that was stopped goes on behind the last of them."""


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
        poses = Poses(rows.xy.reshape(-1, 2), rows.heading, rows.height, frame=self.frame)
        columns = {"row": np.arange(len(rows)), "file": np.array(rows.files or [b""], dtype=bytes)[: len(rows)]}
        return ImageSet.of(self.path, np.array(rows.names, dtype=bytes), poses, rows.group or "", columns=columns)

    def add(self, table: ImageSet, vectors: NDArray[np.float32]) -> Remote:
        """The engine with the photos of `table`; those of the same name and file are replaced."""
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
            np.arange(first, first + len(table)), names, files, poses.xy, poses.heading, height, groups, vectors
        )
        gone = np.array([i for i, _ in held.values()], np.int64)
        return replace(self, pointer=self.engine.change(self.pointer, rows, gone))

    def load(self, table: ImageSet, vectors: NDArray[np.float32]) -> Remote:
        """The first photos of a map, in random order (graphs built along a drive lose recall); resumed behind the last."""
        order = np.random.default_rng(0).permutation(len(table))
        now = self
        with Meter(f"load {self.engine.kind}", len(table), "photos") as meter:
            meter.advance(now.pointer.photos)
            while now.pointer.photos < len(table):
                part = order[now.pointer.photos : now.pointer.photos + _FIRST_LOAD]
                now = now.add(table.subset(part), vectors[part])
                meter.advance(len(part))
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
        """As the folder tells it."""
        file = self.path / storage.CALIBRATION
        return artifacts.read_json(file) if file.is_file() else None

    def recalibrate(self, old: Any, changes: int) -> Any:
        """Writes and gives the calibration after `changes` photos came or went."""
        if old is not None and (self.pointer.photos > CALIBRATED_UP_TO or old.get("seen")):
            told = dict(old) | {"changes": old["changes"] + changes}
        else:
            rows = self.engine.all_rows(vectors=True)
            assert rows.vectors is not None
            told = refreshed(old, changes, self.image_set(rows), rows.vectors, gcl_margin(self.path / storage.MODEL))
        artifacts.write_json(self.path / storage.CALIBRATION, told)
        return told
