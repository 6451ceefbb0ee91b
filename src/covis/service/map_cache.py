"""The maps of a server under their names: opened once, and reopened when another process has changed them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.geotagging.raw import picture_of
from covis.maps.locating import places_of
from covis.maps.map import Map
from covis.maps.photos import text_of
from covis.maps.pictures import Pictures
from covis.maps.storage.engine import Unavailable
from covis.reading.decoding import Reject
from covis.runtime import Runtime
from covis.web.thumbnails import jpeg_thumbnail

_THUMBNAILS = 2000
"""How many are kept, of about 20 kB each."""
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
            "on_earth": bool(images.poses.frame), "bounds": self._bounds,
            "calibration": None if calibration is None else calibration.summary(),
        }  # fmt: skip

    @property
    def _bounds(self) -> list[float] | None:
        """West, south, east, north in degrees, in metres where the map is not on Earth; None for an empty map."""
        poses = self.map.images.poses
        corners = poses.latlon()[:, ::-1] if poses.frame else poses.xy
        return [*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist()] if len(corners) else None

    @cached_property
    def places(self) -> dict[str, int]:
        """Photo by name."""
        return {text_of(name): i for i, name in enumerate(self.map.images.names)}

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


class MapCache:
    """Maps by name."""

    def __init__(self, paths: Sequence[Path], pictures: Sequence[Path] = ()) -> None:
        """Opens every map, each byte checked once, and its network; photos in `pictures` may be shown, too."""
        self.paths: dict[str, Path] = {}
        self._more = tuple(pictures)
        self._snapshots: dict[str, MapSnapshot] = {}
        self._asking: dict[str, threading.Lock] = {}
        self.small = lru_cache(_THUMBNAILS)(_small)
        for path in paths:
            name = _address_name(path)
            if name in self.paths:
                raise InputError(f"{path} and {self.paths[name]} have the same name {name!r}; rename one folder")
            self.paths[name] = path
            self._asking[name] = threading.Lock()
            opened = Map.open(path, verify=True)
            self._snapshots[name] = MapSnapshot(name, opened, opened.runtime)

    @property
    def names(self) -> list[str]:
        """Of all maps, in the order they were given."""
        return list(self.paths)

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
                snapshot = MapSnapshot(name, newest, snapshot.network if same else newest.runtime)
                self._snapshots[name] = snapshot
            return snapshot
        finally:
            asking.release()

    def last(self, name: str) -> MapSnapshot:
        """The newest state that was seen of a map, without asking."""
        return self._snapshots[name]

    def thumbnail(self, snapshot: MapSnapshot, image: str, pixels: int) -> bytes:
        """A photo of the map as a small JPEG; raises `KeyError` for an unknown name, `Reject` for a bad file."""
        file = snapshot.map.file(snapshot.places[image])
        if not file.name:  # the map came without its photos' paths
            raise Reject("missing", image)
        if not Pictures.of(snapshot.map.path, self._more).shows(file):
            raise Reject("not-shown", str(file))
        return self.small(file, pixels)


def _small(file: Path, pixels: int) -> bytes:
    return jpeg_thumbnail(picture_of(file), pixels)


def _address_name(path: Path) -> str:
    """A map's name in addresses: that of its folder without `.map`, letters, digits, `-`, `_` and `.` only."""
    return re.sub(r"[^\w.-]+", "-", path.resolve().name.removesuffix(".map")).strip("-.") or "map"
