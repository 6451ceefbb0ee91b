"""Images → descriptors: any number of them, in bounded memory, resumed at the shard, on every rank of `torchrun`.

Shard s always holds the images s·rows … (s+1)·rows − 1 in batches cut from its own beginning, so that its content
depends neither on where an earlier run stopped nor on how many ranks share the work.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from covis.core import artifacts, machine
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import Meter, say, warn
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
from covis.models import Embedder, PlaceModel
from covis.reading.decoding import REJECTS, Pixels, Reject, Rejected, Size, decode, write_rejects
from covis.reading.screening import screen

OnReject = Literal["skip", "replace", "raise"]
"""What happens to a bad file: left out of its batch, replaced by another image, or raised as an error."""
REPLACEMENT_TRIES = 64


class Loaded(NamedTuple):
    """The images of one batch that came from one image set."""

    ids: Ids
    """(B,) which images these are: fewer than asked for after `skip`, other ones after `replace`."""
    images: torch.Tensor
    """(B, 3, H, W) uint8."""


class BadFile(NamedTuple):
    """A file that could not be used."""

    which: int
    """Its image set, in the order given."""
    id: int
    reason: str
    """A code of `covis.decoding.REASONS`."""
    detail: str


def image_batches(
    images: ImageSet,
    ids: ArrayLike | None,
    size: Size,
    batch_size: int,
    workers: int = 0,
    *,
    on_reject: OnReject = "skip",
    seed: int = 0,
    rejects: list[BadFile] | None = None,
) -> Iterator[Loaded]:
    """Batches of the images at `ids` (all if None), in order; `size` = (height, width).

    Each unpacks as (ids, uint8 tensor (B, 3, H, W)); bad files are appended to `rejects`. A batch may be empty where
    every file was bad.
    """
    wanted = np.arange(len(images)) if ids is None else np.asarray(ids, np.int64)
    requests = (((wanted[start : start + batch_size]),) for start in range(0, len(wanted), batch_size))
    for (loaded,) in joint_batches((images,), requests, size, workers, on_reject=on_reject, seed=seed, rejects=rejects):
        yield loaded


def joint_batches(
    sets: Sequence[ImageSet],
    requests: Iterable[Sequence[ArrayLike]],
    size: Size,
    workers: int = 0,
    *,
    on_reject: OnReject = "replace",
    seed: int = 0,
    rejects: list[BadFile] | None = None,
    prefetch: int = 2,
) -> Iterator[tuple[Loaded, ...]]:
    """For each request (one array of ids for each set) the images of each set, in order of request.

    With `replace`, a bad image is always replaced by the same other one of its set, drawn from (seed, set, id), and
    `ids` names it: look up its similarities again. `requests` is consumed lazily, at most `prefetch` batches per worker
    ahead.
    """
    files = _Files(tuple(sets), size, on_reject, seed)
    loader: DataLoader[_Answer] = DataLoader(
        files,
        batch_size=None,
        sampler=_Lazy(requests),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_as_it_is,
    )
    for loaded, bad in loader:
        if isinstance(loaded, InputError):
            raise loaded
        if rejects is not None:
            rejects.extend(bad)
        yield loaded


_Answer = tuple[tuple[Loaded, ...] | InputError, list[BadFile]]
"""An error travels as a value: torch would wrap one that a worker raises in that worker's traceback."""


def _as_it_is(answer: Any) -> Any:
    return answer


class _Lazy:
    """An iterable as a sampler: ids go to the workers as arrays, one request at a time."""

    def __init__(self, requests: Iterable[Sequence[ArrayLike]]) -> None:
        self.requests = requests

    def __iter__(self) -> Iterator[tuple[Ids, ...]]:
        for request in self.requests:
            yield tuple(np.asarray(part, np.int64) for part in request)


def _buffer(shape: tuple[int, ...]) -> torch.Tensor:
    """Room for a batch; in a worker it is shared memory from the start, which saves a copy on the way out."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


class _Files(Dataset[_Answer]):
    """Decodes one request at a time; each worker process holds one."""

    def __init__(self, sets: tuple[ImageSet, ...], size: Size, on_reject: OnReject, seed: int) -> None:
        self.sets, self.size, self.on_reject, self.seed = sets, size, on_reject, seed

    def __getitem__(self, request: tuple[Ids, ...]) -> _Answer:
        bad: list[BadFile] = []
        try:
            return tuple(self._load(which, ids, bad) for which, ids in enumerate(request)), bad
        except InputError as error:
            return error, bad

    def _load(self, which: int, ids: Ids, bad: list[BadFile]) -> Loaded:
        pixels = _buffer((len(ids), *self.size, 3))
        kept: list[int] = []
        for i in ids.tolist():
            usable = self._usable(which, i, bad)
            if usable is not None:
                pixels.numpy()[len(kept)] = usable[1]
                kept.append(usable[0])
        return Loaded(np.array(kept, np.int64), pixels[: len(kept)].permute(0, 3, 1, 2))

    def _usable(self, which: int, i: int, bad: list[BadFile]) -> tuple[int, Pixels] | None:
        """Image i, or its replacement, or nothing; what was bad goes to `bad`."""
        for candidate in self._candidates(which, i):
            try:
                return candidate, decode(self.sets[which].path(candidate), self.size)
            except Reject as reject:
                if self.on_reject == "raise":
                    raise InputError(f"{reject}; replace or remove the file") from None
                bad.append(BadFile(which, candidate, reject.reason, reject.detail))
        if self.on_reject == "replace":
            raise InputError(
                f"{self.sets[which].path(i)} and {REPLACEMENT_TRIES} replacements cannot be read; check the data folder"
            )
        return None

    def _candidates(self, which: int, i: int) -> Iterator[int]:
        yield i
        if self.on_reject == "replace":
            draws = np.random.default_rng((self.seed, which, i)).integers(len(self.sets[which]), size=REPLACEMENT_TRIES)
            yield from draws.tolist()


# Images → descriptors: any number of them, in bounded memory, resumed at the shard, on every rank of `torchrun`.
#
# Shard s always holds the images s·rows … (s+1)·rows − 1 in batches cut from its own beginning, so that its content
# depends neither on where an earlier run stopped nor on how many ranks share the work.


_KIND = "embedding"
BATCH_SIZE = 32
SHARD_ROWS = 4096
_WORTH_WORKERS = 64
_POLL_S = 0.2


@dataclass(frozen=True)
class Runner:
    """Where and how the network runs."""

    device: torch.device
    half: bool
    """Whether convolutions run in half precision (pooling and norm stay in float32)."""

    @classmethod
    def choose(cls, device: str | None = None, half: bool | None = None) -> Runner:
        """As given; by default the GPU of this rank in half precision, or the CPU in single precision."""
        chosen = torch.device(device or machine.device())
        return cls(chosen, chosen.type == "cuda" if half is None else half)

    def describe(self, model: Embedder, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 → (B, dim) float32, on the device."""
        context = torch.autocast(self.device.type) if self.half else nullcontext()
        with torch.inference_mode(), context:
            vectors: Tensor = model(model.normalise(images.to(self.device, non_blocking=True)))
            return vectors.float()


class TorchRuntime:
    """A `PlaceModel` as a `covis.runtime.Runtime`, on the GPU if there is one."""

    def __init__(self, model: PlaceModel) -> None:
        self._model, self._runner = model.eval(), Runner.choose()
        self._model.to(self._runner.device)
        self.dim = model.dim
        self.image_size = model.preprocessing.image_size
        self.one_core = False

    def describe(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, 3, H, W) RGB → (B, dim) of unit norm."""
        vectors = self._runner.describe(self._model, torch.from_numpy(np.ascontiguousarray(pixels)))
        return np.asarray(vectors.cpu().numpy(), np.float32)


@overload
def embed(
    model: Embedder,
    images: ImageSet,
    path: None = None,
    *,
    ids: ArrayLike | None = None,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    device: str | None = None,
    half: bool | None = None,
) -> NDArray[np.float32]: ...
@overload
def embed(
    model: Embedder,
    images: ImageSet,
    path: Path | str,
    *,
    dtype: Precision = "float32",
    shard_rows: int = SHARD_ROWS,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    device: str | None = None,
    half: bool | None = None,
) -> DescriptorStore: ...
def embed(
    model: Embedder,
    images: ImageSet,
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

    In memory: (N, dim) float32, one row per image (those at `ids` if given); a file that cannot be used is an error.
    At `path`: bad files are left out and listed in `rejects.csv`; more than 5 % of them stop the work at its start.
    workers: decoding processes; None takes one per core, at most 8. half: half precision, by default on a GPU.

    >>> import covis
    >>> queries, photos = covis.datasets.load("town", None, "val")
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> covis.embed(model, photos, ids=[0, 1, 2], workers=0).shape
    (3, 256)
    """
    model.eval()
    runner = Runner.choose(device, half)
    model.to(runner.device)
    if path is None:
        wanted = np.arange(len(images)) if ids is None else np.asarray(ids, np.int64)
        return _in_memory(model, images, wanted, runner, batch_size, decoders(workers, len(wanted)))
    if ids is not None:
        raise ValueError("a store takes whole sets; give images.subset(ids)")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    plan = _Plan(model, images, Path(path), runner, dtype, max(1, shard_rows), batch_size, rank, world)
    return plan.run(decoders(workers, len(images)))


def decoders(workers: int | None, count: int) -> int:
    """How many decoding processes `count` images are worth."""
    if workers is not None:
        return workers
    return 0 if count < _WORTH_WORKERS else machine.workers()


def _in_memory(
    model: Embedder, images: ImageSet, ids: NDArray[np.int64], runner: Runner, batch_size: int, workers: int
) -> NDArray[np.float32]:
    vectors = np.empty((len(ids), model.dim), np.float32)
    done = 0
    with Meter("embed", len(ids), "images") as meter:
        for loaded in image_batches(
            images, ids, model.preprocessing.image_size, batch_size, workers, on_reject="raise"
        ):
            vectors[done : done + len(loaded.ids)] = runner.describe(model, loaded.images).cpu().numpy()
            done += len(loaded.ids)
            meter.advance(len(loaded.ids))
    return vectors


@dataclass(frozen=True, eq=False)
class _Plan:
    """One store to be made: what decides its content, and which part of it this rank does."""

    model: Embedder
    images: ImageSet
    path: Path
    runner: Runner
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
            "model": self.model.fingerprint(),
            "images": artifacts.fingerprint(trimmed(self.images.names)),
            "count": len(self.images),
            "dim": self.model.dim,
            "dtype": self.dtype,
            "image_size": list(self.model.preprocessing.image_size),
            "half": self.runner.half,
            "shard_rows": self.shard_rows,
            "batch_size": self.batch_size,
        }

    def run(self, workers: int) -> DescriptorStore:
        """Embeds this rank's missing shards; the first rank claims the folder, and finishes it when all exist."""
        if not len(self.images):
            raise InputError(f"no images under {self.images.root}; give a folder or table with some")
        config = self.config()
        if self.rank:
            self._wait_for_claim(config)
            self._embed(workers)
            return self._wait_for_store()
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
        """Embeds shards without a pause between them, in one buffer."""
        if not shards:
            return
        requests = ((ids,) for s in shards for ids in self._batches(s))
        bad: list[BadFile] = []
        size = self.model.preprocessing.image_size
        loaded = joint_batches((self.images,), requests, size, workers, on_reject="skip", rejects=bad)
        rows = torch.empty((min(self.shard_rows, len(self.images)), self.model.dim), device=self.runner.device)
        with Meter("embed", sum(len(self._ids(s)) for s in shards), "images") as meter:
            for s in shards:
                ids: list[NDArray[np.int64]] = []
                filled = 0
                for _ in self._batches(s):
                    (batch,) = next(loaded)
                    ids.append(batch.ids)
                    if len(batch.ids):
                        rows[filled : filled + len(batch.ids)] = self.runner.describe(self.model, batch.images)
                    filled += len(batch.ids)
                    meter.advance(len(batch.ids))
                self._write(s, np.concatenate(ids), rows[:filled].cpu().numpy(), bad)
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
        write_part(self.path, shard, names, kept, self.model.dim, self.dtype, facts=rejects)

    def _finish(self, config: dict[str, Any], workers: int) -> DescriptorStore:
        """Waits for the other ranks' shards, then makes a store of them all."""
        while not all((self.path / part_name(s)).exists() for s in range(self.shards)):
            time.sleep(_POLL_S)
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

    def _wait_for_claim(self, config: dict[str, Any]) -> None:
        """Waits until the first rank has claimed the folder for the same work."""
        record = self.path / f"{_KIND}.json"
        while not record.exists():
            time.sleep(_POLL_S)
        claimed = artifacts.read_json(record)["config"]
        if claimed != config:
            changes = artifacts.difference(claimed, config)
            raise InputError(f"{self.path} belongs to another {_KIND} ({changes}); choose another output folder")

    def _wait_for_store(self) -> DescriptorStore:
        while not (self.path / artifacts.MANIFEST).exists():
            time.sleep(_POLL_S)
        return DescriptorStore.open(self.path, verify=False)
