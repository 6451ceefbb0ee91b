"""Photos that go into a map: their positions, and descriptors that were made in memory."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.images import ImageSet
from covis.maps.map import Map
from covis.poses import Poses
from covis.reading.decoding import Reject
from covis.reading.exif import photo_of
from covis.service.batching import Unusable
from covis.service.uploads import Form, Upload

_UPLOADS = "uploads"
"""Where a photo that came over HTTP would lie: a name for it only, nothing is written there."""


@dataclass(frozen=True)
class PhotoPosition:
    """Where a photo was taken: degrees, or metres where the map is not on Earth."""

    first: float = math.nan
    second: float = math.nan
    heading: float = math.nan
    group: str = ""


@dataclass(frozen=True, eq=False)
class Addition:
    """What goes into the map."""

    images: ImageSet
    store: DescriptorStore
    prefix: str
    rejected: dict[str, str]

    def add_to(self, map_: Map) -> Map:
        """The map with the photos."""
        return map_.add(self.images, prefix=self.prefix, descriptors=self.store)


def read_positions(form: Form, frame: str) -> list[PhotoPosition]:
    """One for each photo, from the field `positions` or from EXIF; raises 422 where one is missing."""
    names = [photo.name for photo in form.photos]
    if len(set(names)) < len(names):
        raise HTTPException(422, "two photos have the same file name; give each its own")
    unknown = form.fields.keys() - {"positions", "prefix"}
    if unknown:
        raise HTTPException(422, f"unknown parameter {sorted(unknown)[0][:40]!r}; known: positions, prefix")
    prefix = form.fields.get("prefix", "")
    if prefix.startswith("/") or ".." in prefix.split("/") or not prefix.isprintable() or len(prefix) > 200:
        raise HTTPException(422, "prefix: a folder's name such as autumn/, without .. and control characters")
    if "positions" not in form.fields:
        return [_from_exif(photo, frame) for photo in form.photos]
    try:
        rows = json.loads(form.fields["positions"])
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list) or len(rows) != len(form.photos):
        raise HTTPException(422, f"positions: a JSON list of {len(form.photos)} objects, one per photo")
    return [_from_row(row, photo, frame) for row, photo in zip(rows, form.photos, strict=True)]


def _from_row(row: Any, photo: Upload, frame: str) -> PhotoPosition:
    keys, most = (("lat", "lon"), (90.0, 180.0)) if frame else (("easting", "northing"), (1e8, 1e8))
    fields = row if isinstance(row, dict) else {}
    first, second = (_number(fields.get(key)) for key in keys)
    if not (abs(first) <= most[0] and abs(second) <= most[1]):
        raise HTTPException(422, f"positions: {photo.name} needs {keys[0]} and {keys[1]}")
    heading, group = _number(fields.get("heading")), str(fields.get("group") or "")[:200]
    if not group.isprintable():  # half of a surrogate pair, which no file can hold, is not printable either
        raise HTTPException(422, f"positions: the group of {photo.name} has characters that cannot be shown")
    return PhotoPosition(first, second, heading % 360.0, group)


def _number(value: Any) -> float:
    plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if plain else math.nan


def _from_exif(photo: Upload, frame: str) -> PhotoPosition:
    """The position in the photo's EXIF; a photo that cannot be read has none, and is rejected later with its reason."""
    if not frame:
        raise HTTPException(422, "the map is not on Earth; give positions with easting and northing")
    try:
        decoded = photo_of(photo.data, photo.name)
    except Reject:
        return PhotoPosition()
    if math.isnan(decoded.lat):
        raise HTTPException(422, f"{photo.name} has no GPS position in its EXIF; give positions")
    return PhotoPosition(decoded.lat, decoded.lon, decoded.heading)


def addition(map_: Map, form: Form, spots: Sequence[PhotoPosition], described: Sequence[Any]) -> Addition:
    """The photos that can be used, with their descriptors."""
    every = list(zip(form.photos, spots, described, strict=True))
    rejected = {photo.name: d.detail for photo, _, d in every if isinstance(d, Unusable)}
    photos, places, vectors = zip(*(row for row in every if row[0].name not in rejected), strict=True)
    names = [photo.name for photo in photos]
    content = hashlib.sha256(b"".join(hashlib.sha256(photo.data).digest() for photo in photos)).hexdigest()
    first, second, heading = np.array([(spot.first, spot.second, spot.heading) for spot in places]).T
    frame = map_.images.poses.frame
    if frame:
        poses = Poses.from_latlon(first, second, heading, frame=frame)
    else:
        poses = Poses(np.column_stack([first, second]), heading)
    if not np.isfinite(poses.xy).all():
        raise HTTPException(422, "a position lies too far from the map")
    images = ImageSet.of(map_.path / _UPLOADS / content[:16], names, poses, [spot.group for spot in places])
    try:
        store = DescriptorStore.in_memory(names, np.stack(vectors), map_.model_fingerprint)
    except InputError as error:
        raise HTTPException(415, str(error)) from None
    return Addition(images, store, form.fields.get("prefix", ""), rejected)
