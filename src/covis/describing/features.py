"""Where the trained part's input comes from: images decoded on the fly, or the frozen part's output from a cache."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.files import load_array, sha256
from covis.core.progress import Meter
from covis.describing.decoded import WORTH_WORKERS, BadFile
from covis.describing.loading import Transform, image_batches, joint_batches
from covis.images import ImageSet
from covis.models import PlaceModel

Request = tuple[Ids, ...]
"""One array of image ids for each image set."""
_CHUNK = 256
_FREE_SHARE = 0.9


class Fetched(NamedTuple):
    """The answer to a request."""

    ids: Request
    """As requested, except where a bad file was replaced."""
    features: Tensor
    """(images, …) of all sets, one after another: what `PlaceModel.suffix` takes."""


class Features(Protocol):
    """Features for a stream of requests."""

    precision: str
    """What networks compute in."""

    def fetch(self, requests: Iterable[Request], first: int = 0) -> Iterator[Fetched]:
        """Answers each request, in order; `first` numbers them, for images that are changed at random."""


class Streamed:
    """Decodes the images of each request in worker processes and runs the frozen part on them."""

    def __init__(
        self,
        model: PlaceModel,
        sets: Sequence[ImageSet],
        seed: int,
        workers: int,
        device: torch.device,
        precision: str = "float32",
        transform: Transform | None = None,
    ) -> None:
        self.model, self.sets, self.seed, self.workers, self.device = model, sets, seed, workers, device
        self.precision, self.transform = precision, transform
        self.rejects: list[BadFile] = []

    def fetch(self, requests: Iterable[Request], first: int = 0) -> Iterator[Fetched]:
        """Answers each request, in order; a bad file is always replaced by the same other one of its set."""
        size = self.model.config.image_size
        batches = joint_batches(
            self.sets, requests, size, self.workers, seed=self.seed, rejects=self.rejects,
            transform=self.transform, first=first,
        )  # fmt: skip
        for parts in batches:
            pixels = torch.cat([_moved(part.images, self.device) for part in parts])
            features = frozen_features(self.model, pixels, self.device, self.precision)
            yield Fetched(tuple(part.ids for part in parts), features)


class Cached:
    """Reads features that were computed once; images beyond the cache's bound are computed each time."""

    def __init__(
        self,
        rows: Sequence[NDArray[Any]],
        replaced: Sequence[Ids],
        model: PlaceModel,
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.rows, self.replaced, self.model, self.device, self.precision = rows, replaced, model, device, precision

    def fetch(self, requests: Iterable[Request], first: int = 0) -> Iterator[Fetched]:
        """Answers each request, in order; the next one is read from disk meanwhile."""
        reading: deque[Future[tuple[Request, NDArray[Any]]]] = deque()
        with ThreadPoolExecutor(1) as pool:
            for request in requests:
                reading.append(pool.submit(self._read, request))
                if len(reading) > 1:
                    yield self._answer(*reading.popleft().result())
            while reading:
                yield self._answer(*reading.popleft().result())

    def _read(self, request: Request) -> tuple[Request, NDArray[Any]]:
        ids = tuple(self.replaced[which][part] for which, part in enumerate(request))
        return ids, np.concatenate([self.rows[which][part] for which, part in enumerate(ids)])

    def _answer(self, ids: Request, rows: NDArray[Any]) -> Fetched:
        kept = torch.from_numpy(rows)
        if rows.dtype == np.uint8:
            return Fetched(ids, frozen_features(self.model, _channels_first(kept), self.device, self.precision))
        return Fetched(ids, _channels_first(_moved(kept, self.device)).float())


def open_features(
    model: PlaceModel,
    sets: Sequence[ImageSet],
    *,
    seed: int,
    workers: int,
    cache: Path | None,
    cache_bytes: int,
    device: torch.device,
    half: bool = False,
    precision: str = "float32",
    transform: Transform | None = None,
) -> Features:
    """A cached source where everything fits into `cache_bytes`, else a streamed one; `half`: features in half precision."""
    streamed = Streamed(model, sets, seed, workers, device, precision, transform)
    if cache is None or transform is not None or not cache_bytes or not all(len(s) for s in sets):
        return streamed
    alone = Streamed(model, sets, seed, 0, device, precision)  # one image is not worth a worker process
    probe = next(iter(alone.fetch([tuple(np.arange(1 if k == 0 else 0) for k in range(len(sets)))])))
    row_shape, kind = _row(model, probe.features, half)
    needed = sum(len(s) for s in sets) * int(np.prod(row_shape)) * np.dtype(kind).itemsize
    if needed > cache_bytes:
        return streamed
    files = [_fill(model, s, cache, row_shape, kind, workers, device, precision) for s in sets]
    return Cached([rows for rows, _ in files], [replaced for _, replaced in files], model, device, precision)


def low_precision(device: torch.device, precision: str) -> torch.autocast:
    """While entered, networks compute in this precision; `float32` changes nothing."""
    return torch.autocast(device.type, getattr(torch, precision), enabled=precision != "float32")


def frozen_features(model: PlaceModel, pixels: Tensor, device: torch.device, precision: str = "float32") -> Tensor:
    """(B, 3, H, W) uint8 → the frozen part's output, without gradient."""
    with torch.no_grad(), low_precision(device, precision):
        features: Tensor = model.prefix(model.normalise(_moved(pixels, device)))
    return features


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """On the device; to a GPU it is copied from pinned memory (as loaders give it), beside what the GPU is doing."""
    pinned = values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values
    return pinned.to(device, non_blocking=True)


def _row(model: PlaceModel, features: Tensor, half: bool) -> tuple[tuple[int, ...], str]:
    """Shape and type of one cached row: pixels where nothing is frozen, features otherwise."""
    if model.config.trainable == "all":
        return (*model.config.image_size, 3), "uint8"
    return tuple(_channels_last(features).shape[1:]), "float16" if half else "float32"


def _channels_last(maps: Tensor) -> Tensor:
    """(B, C, H, W) → (B, H, W, C), the layout in which convolutions and the cache store maps; tokens are unchanged."""
    return maps.permute(0, 2, 3, 1) if maps.ndim == 4 else maps


def _channels_first(rows: Tensor) -> Tensor:
    """The inverse of `_channels_last`, in the same memory."""
    return rows.permute(0, 3, 1, 2) if rows.ndim == 4 else rows


def _fill(
    model: PlaceModel,
    images: ImageSet,
    cache: Path,
    row_shape: tuple[int, ...],
    kind: str,
    workers: int,
    device: torch.device,
    precision: str,
) -> tuple[NDArray[Any], Ids]:
    """The features of a set, computed unless the cache has them for the same content and frozen weights."""
    folder = _folder(model, images, cache, row_shape, kind, precision)
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        wanted = len(images) * int(np.prod(row_shape)) * np.dtype(kind).itemsize
        if wanted > _FREE_SHARE * shutil.disk_usage(cache).free:
            raise InputError(f"{cache} has no room for {wanted / 1e9:.1f} GB of features; free some or set cache_gb=0")
        with artifacts.create(folder, "feature-cache", {"images": len(images)}) as draft:
            decoding = workers if len(images) >= WORTH_WORKERS else 0
            _compute(model, images, draft.path, row_shape, kind, decoding, device, precision)
    remedy = "remove it, it is made again"
    artifacts.open_manifest(folder, "feature-cache", facts={"images": int}, verify=False)
    rows = load_array(folder / "rows.npy", shape=(len(images), *row_shape), mapped=True, remedy=remedy)
    return rows, load_array(folder / "replaced.npy", "i", (None,), remedy=remedy)


def _folder(
    model: PlaceModel, images: ImageSet, cache: Path, row_shape: tuple[int, ...], kind: str, precision: str
) -> Path:
    """Where the features of a set are kept."""
    frozen = "pixels" if kind == "uint8" else model.prefix_fingerprint()
    if kind != "uint8" and precision != "float32":
        frozen += precision
    return cache / artifacts.fingerprint(frozen, content(images), list(row_shape), kind, "channels last")


def share_features(source: Cached, images: ImageSet, ids: ArrayLike, cache: Path) -> None:
    """Caches the features of images[ids], taken from the first set of `source`, as a set of their own."""
    rows, chosen, part = source.rows[0], np.asarray(ids, np.int64), images.subset(ids)
    folder = _folder(source.model, part, cache, rows.shape[1:], rows.dtype.name, source.precision)
    if folder.exists():
        return
    with artifacts.create(folder, "feature-cache", {"images": len(part)}) as draft:
        shape = (len(chosen), *rows.shape[1:])
        copied = np.lib.format.open_memmap(draft.path / "rows.npy", mode="w+", dtype=rows.dtype, shape=shape)
        for start in range(0, len(chosen), _CHUNK):
            copied[start : start + _CHUNK] = rows[chosen[start : start + _CHUNK]]
        copied.flush()
        np.save(draft.path / "replaced.npy", np.arange(len(chosen)))


def _compute(
    model: PlaceModel,
    images: ImageSet,
    folder: Path,
    row_shape: tuple[int, ...],
    kind: str,
    workers: int,
    device: torch.device,
    precision: str,
) -> None:
    shape = (len(images), *row_shape)
    rows = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=kind, shape=shape)
    replaced = np.arange(len(images))
    label = "decoding" if kind == "uint8" else "frozen features"
    with Meter(label, len(images), "images") as meter:
        batches = image_batches(images, None, model.config.image_size, _CHUNK, workers, on_reject="replace", seed=0)
        for start, (ids, pixels) in zip(range(0, len(images), _CHUNK), batches, strict=True):
            part = slice(start, start + len(ids))
            features = pixels if kind == "uint8" else frozen_features(model, pixels, device, precision)
            if kind == "float16" and not features.abs().amax() <= np.finfo(np.float16).max:
                raise InputError(f"features of {model.config.backbone} exceed half precision; set cache_half=false")
            rows[part] = _channels_last(features if kind == "uint8" else features.float()).cpu().numpy()
            replaced[part] = ids
            meter.advance(len(ids))
    rows.flush()
    np.save(folder / "replaced.npy", replaced)


def content(images: ImageSet) -> str:
    """A fingerprint of the files' bytes, in order."""
    return artifacts.fingerprint([sha256(p) if p.is_file() else "" for p in map(images.path, range(len(images)))])
