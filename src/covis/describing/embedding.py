"""Images → descriptors: any number of them, in bounded memory, resumed at the shard, on every rank of `torchrun`.

Shard s always holds the images s·rows … (s+1)·rows − 1 in batches cut from its own beginning, so that its content
depends neither on where an earlier run stopped nor on how many ranks share the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import Meter, say, warn
from covis.describing.decoded import BadFile, decoders
from covis.describing.onnx_runtime import OnnxRuntime
from covis.descriptors import (
    NORM_TOLERANCE,
    DescriptorStore,
    Precision,
    clear_parts,
    norms,
    part_name,
    read_part,
    seal,
    write_part,
)
from covis.images import ImageSet, trimmed
from covis.models.onnx_model import OnnxPlaceModel
from covis.reading.decoding import REJECTS, Rejected, write_rejects
from covis.reading.inputs import Photo, expand_photos
from covis.reading.screening import screen

if TYPE_CHECKING:
    from covis.describing.torch_runtime import TorchRuntime
    from covis.models import Embedder

_KIND = "embedding"
BATCH_SIZE = 32
SHARD_ROWS = 4096


class EmbedOptions(TypedDict, total=False):
    """How images are embedded; see `embed`."""

    batch_size: int
    workers: int | None
    device: str | None
    half: bool | None


@overload
def embed(
    model: Embedder,
    images: ImageSet | Any,
    path: None = None,
    *,
    ids: ArrayLike | None = None,
    **options: Unpack[EmbedOptions],
) -> NDArray[np.float32]: ...
@overload
def embed(
    model: Embedder,
    images: ImageSet,
    path: Path | str,
    *,
    dtype: Precision = "float32",
    shard_rows: int = SHARD_ROWS,
    **options: Unpack[EmbedOptions],
) -> DescriptorStore: ...
def embed(
    model: Embedder,
    images: ImageSet | Any,
    path: Path | str | None = None,
    *,
    ids: ArrayLike | None = None,
    dtype: Precision = "float32",
    shard_rows: int = SHARD_ROWS,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    device: str | None = None,
    half: bool | None = None,
) -> NDArray[np.float32] | DescriptorStore:
    """Descriptors of `images`: an array in memory, or a store at `path` that the same call resumes.

    images: a set or, for an array, photos of any form (paths, folders, Pillow images, arrays, tensors, bytes, files).
    In memory: (N, dim) float32, one row per image (those at `ids` if given); a file that cannot be used is an error.
    At `path`: bad files are left out and listed in `rejects.csv`; more than 5 % of them stop the work at its start.
    workers: decoding processes; None takes one per core, at most 8. half: half precision, by default on a GPU.

    >>> import covis
    >>> queries, photos = covis.datasets.load("town", None, "val")
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> covis.embed(model, photos, ids=[0, 1, 2], workers=0).shape
    (3, 256)
    """
    runtime = _runtime(model, device, half)
    if not isinstance(images, ImageSet):
        if path is not None or ids is not None:
            raise ValueError("a store, or ids, need a set of images; make one with covis.open_images")
        return _of_photos(runtime, expand_photos(images), batch_size)
    if path is None:
        chosen = np.arange(len(images)) if ids is None else np.asarray(ids, np.int64)
        return _in_memory(runtime, images, chosen, batch_size, decoders(workers, len(chosen)))
    if ids is not None:
        raise ValueError("a store takes whole sets; give images.subset(ids)")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    plan = _Plan(runtime, images, Path(path), dtype, max(1, shard_rows), batch_size, rank, world)
    return plan.run(decoders(workers, len(images)))


def _runtime(model: Embedder, device: str | None, half: bool | None) -> Any:
    """What runs the model: an `OnnxRuntime`, which needs no torch, or a `TorchRuntime`; both have the same methods."""
    if isinstance(model, OnnxPlaceModel):
        return OnnxRuntime(model, device)
    from covis.describing.torch_runtime import TorchRuntime

    return TorchRuntime(model, device, half)


def _in_memory(
    runtime: OnnxRuntime | TorchRuntime, images: ImageSet, ids: Ids, batch_size: int, workers: int
) -> NDArray[np.float32]:
    requests = (ids[start : start + batch_size] for start in range(0, len(ids), batch_size))
    parts: list[Any] = []
    with Meter("embed", len(ids), "images") as meter:
        for loaded in runtime.batches(images, requests, workers, None):
            parts.append(runtime.vectors(loaded.images))  # type: ignore[arg-type]  # each takes what its batches give
            meter.advance(len(loaded.ids))
    return runtime.join(parts)


def _of_photos(runtime: OnnxRuntime | TorchRuntime, photos: Sequence[Photo], batch_size: int) -> NDArray[np.float32]:
    rows = [np.zeros((0, runtime.dim), np.float32)]
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(photos), batch_size):
            pixels = pool.map(lambda photo: photo.pixels(runtime.image_size), photos[start : start + batch_size])
            rows.append(runtime.describe(np.stack(list(pixels)).transpose(0, 3, 1, 2)))
    return np.concatenate(rows)


@dataclass(frozen=True, eq=False)
class _Plan:
    """One store to be made: what decides its content, and which part of it this rank does."""

    runtime: OnnxRuntime | TorchRuntime
    images: ImageSet
    path: Path
    dtype: Precision
    shard_rows: int
    batch_size: int
    rank: int
    world: int

    @property
    def shards(self) -> int:
        return -(-len(self.images) // self.shard_rows)

    def config(self) -> dict[str, Any]:
        """All that decides the store's content, as JSON."""
        return {
            "model": self.runtime.model.fingerprint(),
            "images": artifacts.fingerprint(trimmed(self.images.names)),
            "count": len(self.images),
            "dim": self.runtime.dim,
            "dtype": self.dtype,
            "image_size": list(self.runtime.image_size),
            "half": self.runtime.half,
            "shard_rows": self.shard_rows,
            "batch_size": self.batch_size,
        }

    def run(self, workers: int) -> DescriptorStore:
        """Embeds this rank's missing shards; the first rank claims the folder, and finishes it when all exist."""
        if not len(self.images):
            raise InputError(f"no images under {self.images.root}; give a folder or table with some")
        config = self.config()
        if self.rank:
            return self._join(config, workers)
        with artifacts.claim(self.path, _KIND, config):
            if (self.path / artifacts.MANIFEST).is_file():
                say(f"{self.path}: {len(self.images)} images are already embedded")
                clear_parts(self.path)
                return DescriptorStore.open(self.path)
            if not (self.path / part_name(0)).exists():
                screen(self.images)
            self._embed(workers)
            return self._finish(config, workers)

    def _embed(self, workers: int) -> None:
        """Embeds the shards of this rank that are missing or damaged."""
        mine = range(self.rank, self.shards, self.world)
        missing = [s for s in mine if read_part(self.path, s) is None]
        damaged = [s for s in missing if (self.path / part_name(s)).exists()]
        if damaged:
            warn(
                f"{self.path}: {len(damaged)} of {self.shards} shards of the interrupted run are damaged and embedded again"
            )
        self._embed_shards(missing, workers)

    def _embed_shards(self, shards: Sequence[int], workers: int) -> None:
        """Embeds shards without a pause between them."""
        if not shards:
            return
        requests = (ids for s in shards for ids in self._batches(s))
        bad: list[BadFile] = []
        loaded: Iterator[Any] = self.runtime.batches(self.images, requests, workers, bad)
        with Meter("embed", sum(len(self._ids(s)) for s in shards), "images") as meter:
            for s in shards:
                ids: list[NDArray[np.int64]] = []
                parts: list[Any] = []
                for _ in self._batches(s):
                    batch = next(loaded)
                    ids.append(batch.ids)
                    if len(batch.ids):
                        parts.append(self.runtime.vectors(batch.images))
                    meter.advance(len(batch.ids))
                self._write(s, np.concatenate(ids), self.runtime.join(parts), bad)
                bad.clear()

    def _ids(self, shard: int) -> NDArray[np.int64]:
        return np.arange(shard * self.shard_rows, min((shard + 1) * self.shard_rows, len(self.images)))

    def _batches(self, shard: int) -> Iterator[NDArray[np.int64]]:
        ids = self._ids(shard)
        return (ids[start : start + self.batch_size] for start in range(0, len(ids), self.batch_size))

    def _write(self, shard: int, ids: NDArray[np.int64], rows: NDArray[np.float32], bad: Sequence[BadFile]) -> None:
        """Writes a shard, together with the list of images left out of it."""
        sound = np.abs(norms(rows) - 1) <= NORM_TOLERANCE
        rejects = [Rejected(self.images.name(b.id), b.reason, b.detail) for b in bad]
        rejects += [Rejected(self.images.name(int(i)), "no-descriptor", "its norm is not 1") for i in ids[~sound]]
        kept = rows if sound.all() else rows[sound]
        names = self.images.names[ids[sound]]
        write_part(self.path, shard, names, kept, self.runtime.dim, self.dtype, facts=rejects)

    def _finish(self, config: dict[str, Any], workers: int) -> DescriptorStore:
        """Waits for the other ranks' shards, then makes a store of them all."""
        self._wait_for(*(part_name(s) for s in range(self.shards)))
        damaged = [s for s in range(self.shards) if s % self.world and read_part(self.path, s) is None]
        self._embed_shards(damaged, workers)  # those of other ranks, which may not have reached them yet
        parts = [read_part(self.path, s) for s in range(self.shards)]
        whole = [part for part in parts if part is not None]
        if len(whole) < self.shards:
            raise InputError(f"{self.path} was damaged while it was written; check the disk and run the command again")
        rejects = [Rejected(*line) for part in whole for line in part["facts"]]
        listing = [self.path / REJECTS] if rejects else []
        if rejects:
            write_rejects(listing[0], rejects)
            say(f"{len(rejects)} images left out, listed in {self.path / REJECTS}")
        model, dim, dtype = config["model"], config["dim"], config["dtype"]
        return seal(self.path, whole, model, dim, dtype, facts=config, others=listing)

    def _join(self, config: dict[str, Any], workers: int) -> DescriptorStore:
        """What every other rank does: its shards, between the first rank's claim and its store."""
        record = f"{_KIND}.json"
        self._wait_for(record)
        claimed = artifacts.read_json(self.path / record)["config"]
        if claimed != config:
            changes = artifacts.difference(claimed, config)
            raise InputError(f"{self.path} belongs to another {_KIND} ({changes}); choose another output folder")
        self._embed(workers)
        self._wait_for(artifacts.MANIFEST)
        return DescriptorStore.open(self.path, verify=False)

    def _wait_for(self, *names: str) -> None:
        """Until other ranks have written these files; `torchrun` ends all ranks if one of them dies."""
        while not all((self.path / name).exists() for name in names):
            time.sleep(0.2)
