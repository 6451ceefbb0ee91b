"""The maps of a server under their names: opened once, and reopened when another process has changed them."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.field.coverage import coverage
from covis.geotagging.raw import picture_of
from covis.maps.locating import places_of
from covis.maps.map import Map
from covis.maps.photos import text_of
from covis.maps.pictures import Pictures
from covis.maps.storage.engine import Unavailable
from covis.runtime import Runtime
from covis.web.thumbnails import jpeg_thumbnail

_THUMBNAILS = 64 << 20
"""Bytes of thumbnails that are kept."""
_PATIENCE_S = 5.0
"""How long a request waits for another that asks the same map for its newest state."""


@dataclass(eq=False)
class MapSnapshot:
    """One state of a map, with what the service needs of it."""

    name: str
    map: Map
    network: Runtime

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the map is, as plain values for JSON."""
        images, calibration = self.map.images, self.map.calibration
        return {
            "name": self.name, "version": self.map.version, "photos": len(self.map), "groups": len(np.unique(images.group)),
            "model": self.map.model_fingerprint, "dim": self.map.dim, "index": self.map.index_kind,
            "on_earth": bool(images.poses.frame), "bounds": self.bounds,
            "calibration": None if calibration is None else calibration.summary(),
        }  # fmt: skip

    @cached_property
    def corners(self) -> NDArray[np.float64]:
        """(N, 2) longitude and latitude of each photo, or metres east and north where the map is not on Earth."""
        poses = self.map.images.poses
        return np.asarray(poses.latlon()[:, ::-1] if poses.frame else poses.xy)

    @property
    def bounds(self) -> list[float] | None:
        """West, south, east, north; None for an empty map."""
        if not len(self.corners):
            return None
        return [*self.corners.min(axis=0).tolist(), *self.corners.max(axis=0).tolist()]

    @cached_property
    def places(self) -> dict[str, int]:
        """Photo by name."""
        return {text_of(name): i for i, name in enumerate(self.map.images.names)}

    def inside(self, box: Sequence[float] | None, group: str | None) -> NDArray[np.int64]:
        """Photos within west, south, east, north (across the date line where west is beyond east), of a group."""
        keep = np.ones(len(self.map), bool)
        if box is not None:
            west, south, east, north = box
            x, y = self.corners.T
            across = (x >= west) & (x <= east) if west <= east else (x >= west) | (x <= east)
            keep &= across & (y >= south) & (y <= north)
        if group is not None:
            names = self.map.images.group_names
            keep &= np.isin(self.map.images.group, [i for i, known in enumerate(names) if known == group])
        return np.flatnonzero(keep)

    def photos(self, ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Name, place and group of photos, as plain values for JSON."""
        images = self.map.images
        places = places_of(images.poses.subset(ids))
        return [
            {
                "image": text_of(images.names[i]),
                **place.to_dict(),
                "group": text_of(os.fsencode(images.group_names[images.group[i]])),
            }
            for i, place in zip(ids, places, strict=True)
        ]

    @cached_property
    def gaps(self) -> dict[str, Any]:
        """Where photos are missing: cells with their corners as the page draws them."""
        if not len(self.map):
            return {"cell_m": None, "cells": [], "photograph_next": []}
        cover = coverage(self.map.images)
        steps = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * cover.cell_m
        rings = (cover.corner[:, None] + steps).reshape(-1, 2)
        frame = self.map.images.poses.frame
        if frame:
            from covis.poses import Poses

            rings = Poses(rings, np.full(len(rings), np.nan), frame=frame).latlon()[:, ::-1]
        cells = [
            {"ring": ring, "photos": int(count), "missing": cover.missing_headings(i), "need": round(float(need), 3)}
            for i, (ring, count, need) in enumerate(
                zip(np.round(rings.reshape(-1, 4, 2), 7).tolist(), cover.photos, cover.need, strict=True)
            )
        ]
        return {**cover.summary(), "cells": cells}


class MapCache:
    """Maps by name."""

    def __init__(self, paths: Sequence[Path], pictures: Sequence[Path] = ()) -> None:
        """Opens every map, each byte checked once, and its network; photos in `pictures` may be shown, too."""
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._more = tuple(pictures)
        self._snapshots: dict[str, MapSnapshot] = {}
        self._asking: dict[str, threading.Lock] = {}
        self._thumbnails: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._thumbnail_bytes = 0
        for path in paths:
            name = _address_name(path)
            if name in self._paths:
                raise InputError(f"{path} and {self._paths[name]} have the same name {name!r}; rename one folder")
            self._paths[name] = path
            self._asking[name] = threading.Lock()
            opened = Map.open(path, verify=True)
            self._snapshots[name] = MapSnapshot(name, opened, opened.runtime)

    @property
    def paths(self) -> Mapping[str, Path]:
        """Where each map lies."""
        return self._paths

    @property
    def names(self) -> list[str]:
        """Of all maps, in the order they were given."""
        return list(self._paths)

    def now(self, name: str) -> MapSnapshot:
        """The newest state of a map; raises `KeyError` for an unknown name.

        One thread at a time asks a map, so that an engine that hangs holds one thread and stops no other map; who waits
        too long gets `Unavailable`.
        """
        asking = self._asking[name]
        if not asking.acquire(timeout=_PATIENCE_S):
            raise Unavailable(f"the map {name!r} does not answer; check its engine")
        try:
            snapshot = self._snapshots[name]
            newest = snapshot.map.newest()
            if newest is not snapshot.map:
                same = newest.model_fingerprint == snapshot.map.model_fingerprint
                snapshot = self._snapshots[name] = MapSnapshot(
                    name, newest, snapshot.network if same else newest.runtime
                )
            return snapshot
        finally:
            asking.release()

    def last(self, name: str) -> MapSnapshot:
        """The newest state that was seen of a map, without asking."""
        return self._snapshots[name]

    def thumbnail(self, snapshot: MapSnapshot, image: str, pixels: int) -> bytes:
        """A photo of the map as a small JPEG; raises `KeyError` for an unknown name, `Reject` for a bad file."""
        from covis.reading.decoding import Reject

        file = snapshot.map.file(snapshot.places[image])
        if not file.name:  # the map came without its photos' paths
            raise Reject("missing", image)
        if not Pictures.of(snapshot.map.path, self._more).shows(file):
            raise Reject("not-shown", str(file))
        return self.small(file, pixels)

    def small(self, file: Path, pixels: int) -> bytes:
        """A file as a small JPEG, kept for the next time; raises `Reject` for a bad one."""
        key = (str(file), pixels)
        with self._lock:
            if key in self._thumbnails:
                self._thumbnails.move_to_end(key)
                return self._thumbnails[key]
        content = jpeg_thumbnail(picture_of(file), pixels)
        with self._lock:
            before = self._thumbnails.pop(key, b"")  # another thread may have made it meanwhile
            self._thumbnails[key] = content
            self._thumbnail_bytes += len(content) - len(before)
            while self._thumbnail_bytes > _THUMBNAILS:
                self._thumbnail_bytes -= len(self._thumbnails.popitem(last=False)[1])
        return content


def _address_name(path: Path) -> str:
    """A map's name in addresses: that of its folder without `.map`, letters, digits, `-`, `_` and `.` only."""
    return re.sub(r"[^\w.-]+", "-", path.resolve().name.removesuffix(".map")).strip("-.") or "map"
