"""Photos that come over HTTP: multipart forms within the limits, descriptors in batches, photos that go into a map."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from covis.core.errors import InputError
from covis.core.machine import cpu_count
from covis.descriptors import NORM_TOLERANCE, DescriptorStore
from covis.images import ImageSet
from covis.maps.map import Map
from covis.poses import Poses
from covis.reading.decoding import REASONS, Pixels, Reject, Size, decode_bytes
from covis.reading.exif import photo_of
from covis.runtime import Runtime
from covis.service.limits import MEGABYTE, Budget, Limits, TooBusy

BATCH = 8
"""Most photos through the network at once: on a processor, larger batches are no faster per photo."""


@dataclass(frozen=True, eq=False)
class Unusable:
    """Why a photo has no descriptor."""

    reason: str
    """One of `covis.reading.decoding.REASONS`, or `blank`."""
    detail: str


Descriptor = NDArray[np.float32]


@dataclass(eq=False)
class _Job:
    network: Runtime
    pixels: Pixels
    answer: Future[Descriptor] = field(default_factory=Future)


class Batcher:
    """One thread that feeds the network, and a bounded number of photos before it."""

    def __init__(self, most: int, answer_s: float, seen: Callable[[int], None] = lambda count: None) -> None:
        """most: photos that may wait. seen: called with the size of each batch."""
        self.slots = Budget(most, "too many photos are waiting")
        self.answer_s, self._seen = answer_s, seen
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(cpu_count(), "decode")
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    async def describe(self, network: Runtime, photos: Sequence[bytes]) -> list[Descriptor | Unusable]:
        """One descriptor for each photo; raises 503 where too many wait, or the answer takes too long."""
        self.slots.take(len(photos))
        try:
            async with asyncio.timeout(self.answer_s):
                return list(await asyncio.gather(*(self._one(network, photo) for photo in photos)))
        except TimeoutError:
            raise TooBusy("the answer took too long", 10) from None
        finally:
            self.slots.give(len(photos))

    async def _one(self, network: Runtime, photo: bytes) -> Descriptor | Unusable:
        decoded = await asyncio.wrap_future(self._decoders.submit(_decode, photo, network.image_size))
        if isinstance(decoded, Unusable):
            return decoded
        job = _Job(network, decoded)
        self._jobs.put(job)
        vector = await asyncio.wrap_future(job.answer)
        if not abs(float(np.linalg.norm(vector.astype(np.float64))) - 1) <= NORM_TOLERANCE:
            return Unusable("blank", "it has no descriptor (is it blank?)")
        return vector

    def close(self) -> None:
        """Ends the threads."""
        self._jobs.put(None)
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        waiting: list[_Job] = []
        while True:
            if not waiting:
                job = self._jobs.get()
                if job is None:
                    return
                waiting.append(job)
            while True:  # whatever has come in since
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    return
                waiting.append(more)
            network = waiting[0].network
            batch = [job for job in waiting if job.network is network][:BATCH]
            chosen = set(map(id, batch))
            waiting = [job for job in waiting if id(job) not in chosen]
            self._describe(network, [job for job in batch if job.answer.set_running_or_notify_cancel()])

    def _describe(self, network: Runtime, batch: list[_Job]) -> None:
        if not batch:
            return
        self._seen(len(batch))
        try:
            vectors = network.describe(np.stack([job.pixels for job in batch]).transpose(0, 3, 1, 2))
        except BaseException as error:
            for job in batch:
                job.answer.set_exception(error)
            return
        for job, vector in zip(batch, vectors, strict=True):
            job.answer.set_result(np.asarray(vector, np.float32))


def _decode(photo: bytes, size: Size) -> Pixels | Unusable:
    try:
        return decode_bytes(photo, size).pixels
    except Reject as reject:
        return Unusable(reject.reason, reject.detail or REASONS[reject.reason])


# Multipart forms


FIELD = "photo"
_FIELDS = 32
_FIELD_BYTES = 256 * 1024


@dataclass(frozen=True, eq=False)
class Upload:
    """A photo as it was sent."""

    name: str
    """The client's file name without folders, for answers only: nothing is opened or written by it."""
    data: bytes


@dataclass(frozen=True, eq=False)
class Form:
    """What a request held."""

    photos: tuple[Upload, ...]
    fields: dict[str, str]


class _FormParser(MultiPartParser):
    """Starlette's parser, which also notes whether the form came to its end."""

    ended = False

    def on_end(self) -> None:
        """The last boundary was read."""
        self.ended = True


async def read_form(request: Request, limits: Limits) -> Form:
    """The form of a request; raises 400, 413, 415 or 422."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise HTTPException(415, f"send photos as multipart/form-data, in fields named {FIELD!r}")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "send the form as it is, without Content-Encoding", {"Accept-Encoding": "identity"})
    parser = _FormParser(
        request.headers,
        request.stream(),
        max_files=limits.photos,
        max_fields=_FIELDS,
        max_part_size=_FIELD_BYTES,
    )
    parser.spool_max_size = 2 * limits.request_bytes  # beyond it Starlette would write a file
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, LookupError) as error:
        if "Too many files" in str(error):
            raise HTTPException(413, f"a request may have {limits.photos} photos; send the others in another") from None
        raise HTTPException(400, f"the form cannot be read ({str(error) or type(error).__name__})") from None
    photos: list[Upload] = []
    fields: dict[str, str] = {}
    if not parser.ended:
        await form.close()
        raise HTTPException(400, "the form ends before its last boundary; send it whole")
    try:
        for key, value in form.multi_items():
            if isinstance(value, UploadFile):
                if key != FIELD:
                    raise HTTPException(422, f"the form has a file {key[:40]!r}; photos are fields named {FIELD!r}")
                photos.append(Upload(_plain(value.filename, len(photos)), await value.read()))
            else:
                fields[key] = value
    finally:
        await form.close()
    for photo in photos:
        if len(photo.data) > limits.photo_bytes:
            raise HTTPException(413, f"{photo.name}: a photo may have {limits.photo_bytes // MEGABYTE} MB")
    if not photos:
        raise HTTPException(422, f"the form has no photo; send at least one file in a field named {FIELD!r}")
    return Form(tuple(photos), fields)


def _plain(name: str | None, number: int) -> str:
    """A file name without folders and control characters."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in last)[:200].strip()
    kept = kept.encode("utf-8", "replace").decode()
    return kept or f"photo-{number + 1}"


# Photos that go into a map: their positions, and descriptors that were made in memory.


_UPLOADS = "uploads"
"""Where a photo that came over HTTP would lie: a name for it only, nothing is written there."""


@dataclass(frozen=True)
class Spot:
    """Where a photo was taken: degrees, or metres where the map is not on Earth."""

    first: float
    second: float
    heading: float = math.nan
    group: str = ""


@dataclass(frozen=True, eq=False)
class Addition:
    """What goes into the map."""

    images: ImageSet
    store: DescriptorStore
    names: list[str]
    rejected: dict[str, str]


def read_positions(form: Form, frame: str) -> list[Spot]:
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
        raise HTTPException(422, "positions: a JSON list, one object per photo") from None
    if not isinstance(rows, list) or len(rows) != len(form.photos):
        raise HTTPException(422, f"positions: a JSON list of {len(form.photos)} objects, one per photo")
    return [_from_row(row, photo, frame) for row, photo in zip(rows, form.photos, strict=True)]


def _from_row(row: Any, photo: Upload, frame: str) -> Spot:
    keys = ("lat", "lon") if frame else ("easting", "northing")
    fields = row if isinstance(row, dict) else {}
    first, second = (_number(fields.get(key)) for key in keys)
    limits = (90.0, 180.0) if frame else (1e8, 1e8)
    if not (abs(first) <= limits[0] and abs(second) <= limits[1]):
        raise HTTPException(422, f"positions: {photo.name} needs {keys[0]} and {keys[1]}")
    heading = _number(fields.get("heading"))
    return Spot(first, second, heading % 360.0, str(fields.get("group") or "")[:200])


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return number if math.isfinite(number) else math.nan


def _from_exif(photo: Upload, frame: str) -> Spot:
    """The position in the photo's EXIF; a photo that cannot be read has none, and is rejected later with its reason."""
    if not frame:
        raise HTTPException(422, "the map is not on Earth; give positions with easting and northing")
    try:
        decoded = photo_of(photo.data, photo.name)
    except Reject:
        return Spot(math.nan, math.nan)
    if math.isnan(decoded.lat):
        raise HTTPException(422, f"{photo.name} has no GPS position in its EXIF; give positions")
    return Spot(decoded.lat, decoded.lon, decoded.heading)


def added_images(map_: Map, form: Form, spots: Sequence[Spot], described: Sequence[Any]) -> Addition:
    """The photos that can be used, with their descriptors."""
    rejected = {p.name: d.detail for p, d in zip(form.photos, described, strict=True) if isinstance(d, Unusable)}
    rows = [
        (photo, spot, vector)
        for photo, spot, vector in zip(form.photos, spots, described, strict=True)
        if photo.name not in rejected
    ]
    names = [photo.name for photo, _, _ in rows]
    content = hashlib.sha256(b"".join(hashlib.sha256(photo.data).digest() for photo, _, _ in rows)).hexdigest()
    first, second, heading = (np.array([getattr(s, k) for _, s, _ in rows]) for k in ("first", "second", "heading"))
    frame = map_.images.poses.frame
    poses = (
        Poses.from_latlon(first, second, heading, frame=frame)
        if frame
        else Poses(np.column_stack([first, second]), heading)
    )
    if not np.isfinite(poses.xy).all():
        raise HTTPException(422, "a position lies too far from the map")
    images = ImageSet.of(map_.path / _UPLOADS / content[:16], names, poses, [spot.group for _, spot, _ in rows])
    try:
        store = DescriptorStore.in_memory(names, np.stack([v for _, _, v in rows]), map_.model_fingerprint)
    except InputError as error:
        raise HTTPException(415, str(error)) from None
    prefix = form.fields.get("prefix", "")
    return Addition(images, store, [prefix + name for name in names], rejected)
