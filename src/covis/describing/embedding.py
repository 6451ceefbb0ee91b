"""Images → descriptors: any number of them, in bounded memory, resumed at the shard, on every rank of `torchrun`.

Shard s always holds the images s·rows … (s+1)·rows − 1 in batches cut from its own beginning, so that its content
depends neither on where an earlier run stopped nor on how many ranks share the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts, machine
from covis.core.errors import InputError
from covis.core.progress import Meter, say, warn
from covis.describing.decoded import BadFile, decoded_batches, decoders
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
from covis.runtime import Runtime

if TYPE_CHECKING:
    from covis.models import Embedder

_KIND = "embedding"
BATCH_SIZE = 32
SHARD_ROWS = 4096


@overload
def embed(
    model: Embedder, images: Any, path: None = None, *, batch_size: int = ..., workers: int | None = ...
) -> NDArray[np.float32]: ...
@overload
def embed(
    model: Embedder,
    images: ImageSet,
    path: Path | str,
    *,
    dtype: Precision = ...,
    shard_rows: int = ...,
    batch_size: int = ...,
    workers: int | None = ...,
) -> DescriptorStore: ...
def embed(
    model: Embedder,
    images: Any,
    path: Path | str | None = None,
    *,
    dtype: Precision = "float32",
    shard_rows: int = SHARD_ROWS,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
) -> NDArray[np.float32] | DescriptorStore:
    """Descriptors of `images`: an array in memory, or a store at `path` that the same call resumes.

    images: a set or, for an array, photos of any form (paths, folders, Pillow images, arrays, tensors, bytes, files).
    In memory: (N, dim) float32, one row per image; a file that cannot be used is an error.
    At `path`: bad files are left out and listed in `rejects.csv`; more than 5 % of them stop the work at its start.
    workers: decoding threads; None takes one per core, at most 8.

    >>> import covis
    >>> queries, photos = covis.datasets.load("town", None, "val")
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> covis.embed(model, photos.subset([0, 1, 2])).shape
    (3, 256)
    """
    runtime = _runtime(model)
    if not isinstance(images, ImageSet):
        if path is not None:
            raise ValueError("a store needs a set of images; make one with covis.open_images")
        return _of_photos(runtime, expand_photos(images), batch_size)
    threads = decoders(workers, len(images))
    if path is None:
        return _in_memory(runtime, images, batch_size, threads)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    plan = _Plan(
        model.fingerprint(), runtime, images, Path(path), dtype, max(1, shard_rows), batch_size, threads, rank, world
    )
    return plan.run()


def _runtime(model: Embedder) -> Runtime:
    """What runs the model: itself in ONNX Runtime, which needs no torch, else torch."""
    if isinstance(model, OnnxPlaceModel):
        return model
    from covis.describing.torch_runtime import TorchRuntime

    return TorchRuntime(model)


def _in_memory(runtime: Runtime, images: ImageSet, batch_size: int, threads: int) -> NDArray[np.float32]:
    requests = (np.arange(start, min(start + batch_size, len(images))) for start in range(0, len(images), batch_size))
    rows = [np.zeros((0, runtime.dim), np.float32)]
    with Meter("embed", len(images), "images") as meter:
        for ids, pixels in decoded_batches(images, requests, runtime.image_size, threads):
            rows.append(runtime.describe(pixels))
            meter.advance(len(ids))
    return np.concatenate(rows)


def _of_photos(runtime: Runtime, photos: Sequence[Photo], batch_size: int) -> NDArray[np.float32]:
    rows = [np.zeros((0, runtime.dim), np.float32)]
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(photos), batch_size):
            pixels = pool.map(lambda photo: photo.pixels(runtime.image_size), photos[start : start + batch_size])
            rows.append(runtime.describe(np.stack(list(pixels)).transpose(0, 3, 1, 2)))
    return np.concatenate(rows)


@dataclass(frozen=True, eq=False)
class _Plan:
    """One store to be made: what decides its content, and which part of it this rank does."""

    model: str
    """Its fingerprint."""
    runtime: Runtime
    images: ImageSet
    path: Path
    dtype: Precision
    shard_rows: int
    batch_size: int
    threads: int
    rank: int
    world: int

    @property
    def shards(self) -> int:
        return -(-len(self.images) // self.shard_rows)

    def config(self) -> dict[str, Any]:
        """All that decides the store's content, as JSON."""
        return {
            "model": self.model,
            "images": artifacts.fingerprint(trimmed(self.images.names)),
            "count": len(self.images),
            "dim": self.runtime.dim,
            "dtype": self.dtype,
            "image_size": list(self.runtime.image_size),
            "half": machine.device().startswith("cuda"),
            "shard_rows": self.shard_rows,
            "batch_size": self.batch_size,
        }

    def run(self) -> DescriptorStore:
        """Embeds this rank's missing shards; the first rank claims the folder, and finishes it when all exist."""
        if not len(self.images):
            raise InputError(f"no images under {self.images.root}; give a folder or table with some")
        config = self.config()
        if self.rank:
            return self._join(config)
        with artifacts.claim(self.path, _KIND, config):
            if (self.path / artifacts.MANIFEST).is_file():
                say(f"{self.path}: {len(self.images)} images are already embedded")
                clear_parts(self.path)
                return DescriptorStore.open(self.path)
            if not (self.path / part_name(0)).exists():
                screen(self.images)
            self._embed()
            return self._finish(config)

    def _embed(self) -> None:
        """Embeds the shards of this rank that are missing or damaged."""
        mine = range(self.rank, self.shards, self.world)
        missing = [s for s in mine if read_part(self.path, s) is None]
        damaged = [s for s in missing if (self.path / part_name(s)).exists()]
        if damaged:
            warn(
                f"{self.path}: {len(damaged)} of {self.shards} shards of the interrupted run are damaged and embedded again"
            )
        self._embed_shards(missing)

    def _embed_shards(self, shards: Sequence[int]) -> None:
        """Embeds shards without a pause between them."""
        if not shards:
            return
        requests = (ids for s in shards for ids in self._batches(s))
        bad: list[BadFile] = []
        decoded = decoded_batches(self.images, requests, self.runtime.image_size, self.threads, rejects=bad)
        with Meter("embed", sum(len(self._ids(s)) for s in shards), "images") as meter:
            for s in shards:
                ids, rows = [np.zeros(0, np.int64)], [np.zeros((0, self.runtime.dim), np.float32)]
                for batch in islice(decoded, len(self._batches(s))):
                    ids.append(batch.ids)
                    if len(batch.ids):
                        rows.append(self.runtime.describe(batch.images))
                    meter.advance(len(batch.ids))
                self._write(s, np.concatenate(ids), np.concatenate(rows), bad)
                bad.clear()

    def _ids(self, shard: int) -> NDArray[np.int64]:
        return np.arange(shard * self.shard_rows, min((shard + 1) * self.shard_rows, len(self.images)))

    def _batches(self, shard: int) -> list[NDArray[np.int64]]:
        ids = self._ids(shard)
        return [ids[start : start + self.batch_size] for start in range(0, len(ids), self.batch_size)]

    def _write(self, shard: int, ids: NDArray[np.int64], rows: NDArray[np.float32], bad: Sequence[BadFile]) -> None:
        """Writes a shard, together with the list of images left out of it."""
        sound = np.abs(norms(rows) - 1) <= NORM_TOLERANCE
        rejects = [Rejected(self.images.name(b.id), b.reason, b.detail) for b in bad]
        rejects += [Rejected(self.images.name(int(i)), "no-descriptor", "its norm is not 1") for i in ids[~sound]]
        kept = rows if sound.all() else rows[sound]
        names = self.images.names[ids[sound]]
        write_part(self.path, shard, names, kept, self.runtime.dim, self.dtype, facts=rejects)

    def _finish(self, config: dict[str, Any]) -> DescriptorStore:
        """Waits for the other ranks' shards, then makes a store of them all."""
        self._wait_for(*(part_name(s) for s in range(self.shards)))
        damaged = [s for s in range(self.shards) if s % self.world and read_part(self.path, s) is None]
        self._embed_shards(damaged)  # those of other ranks, which may not have reached them yet
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

    def _join(self, config: dict[str, Any]) -> DescriptorStore:
        """What every other rank does: its shards, between the first rank's claim and its store."""
        record = f"{_KIND}.json"
        self._wait_for(record)
        claimed = artifacts.read_json(self.path / record)["config"]
        if claimed != config:
            changes = artifacts.difference(claimed, config)
            raise InputError(f"{self.path} belongs to another {_KIND} ({changes}); choose another output folder")
        self._embed()
        self._wait_for(artifacts.MANIFEST)
        return DescriptorStore.open(self.path, verify=False)

    def _wait_for(self, *names: str) -> None:
        """Until other ranks have written these files; `torchrun` ends all ranks if one of them dies."""
        while not all((self.path / name).exists() for name in names):
            time.sleep(0.2)
