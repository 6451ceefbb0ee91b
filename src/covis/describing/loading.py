"""Batches of decoded images, from worker processes, in the order in which they are requested."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Dataset, get_worker_info

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.describing.decoded import BadFile
from covis.images import ImageSet
from covis.reading.decoding import Pixels, Reject, Size, decode

OnReject = Literal["skip", "replace", "raise"]
"""What happens to a bad file: left out of its batch, replaced by another image, or raised as an error."""
REPLACEMENT_TRIES = 64
Transform = Callable[[torch.Tensor], torch.Tensor]
"""(3, H, W) uint8 → the same; random numbers come from torch."""


class Loaded(NamedTuple):
    """The images of one batch that came from one image set."""

    ids: Ids
    """(B,) which images these are: fewer than asked for after `skip`, other ones after `replace`."""
    images: torch.Tensor
    """(B, 3, H, W) uint8."""


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
    transform: Transform | None = None,
    first: int = 0,
) -> Iterator[tuple[Loaded, ...]]:
    """For each request (one array of ids for each set) the images of each set, in order of request.

    With `replace`, a bad image is always replaced by the same other one of its set, drawn from (seed, set, id), and
    `ids` names it: look up its similarities again. `requests` is consumed lazily, at most two batches per worker ahead.
    `transform` changes each image, at random by (seed, number of the request counted from `first`, set, id).
    """
    files = _Files(tuple(sets), size, on_reject, seed, transform)
    loader: DataLoader[_Answer] = DataLoader(
        files,
        batch_size=None,
        sampler=_Lazy(requests, first),
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        collate_fn=_as_it_is,
        pin_memory=torch.cuda.is_available(),  # by a thread of the loader, so that copies to the GPU need no waiting
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
    """An iterable as a sampler: numbered ids go to the workers as arrays, one request at a time."""

    def __init__(self, requests: Iterable[Sequence[ArrayLike]], first: int) -> None:
        self.requests, self.first = requests, first

    def __iter__(self) -> Iterator[tuple[int, tuple[Ids, ...]]]:
        for number, request in enumerate(self.requests, self.first):
            yield number, tuple(np.asarray(part, np.int64) for part in request)


def _buffer(shape: tuple[int, ...]) -> torch.Tensor:
    """Buffer for a batch; in a worker it is shared memory from the start, which saves a copy on the way out."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


class _Files(Dataset[_Answer]):
    """Decodes one request at a time; each worker process holds one."""

    def __init__(
        self, sets: tuple[ImageSet, ...], size: Size, on_reject: OnReject, seed: int, transform: Transform | None
    ) -> None:
        self.sets, self.size, self.on_reject, self.seed, self.transform = sets, size, on_reject, seed, transform

    def __getitem__(self, request: tuple[int, tuple[Ids, ...]]) -> _Answer:
        bad: list[BadFile] = []
        number, parts = request
        try:
            loaded = tuple(self._load(which, ids, bad) for which, ids in enumerate(parts))
            return tuple(self._transformed(part, number, which) for which, part in enumerate(loaded)), bad
        except InputError as error:
            return error, bad

    def _transformed(self, loaded: Loaded, number: int, which: int) -> Loaded:
        if self.transform is None or not len(loaded.ids):
            return loaded
        with torch.random.fork_rng(devices=[]):
            changed = []
            for i, pixels in zip(loaded.ids.tolist(), loaded.images, strict=True):
                torch.manual_seed(int(np.random.SeedSequence((self.seed, number, which, i)).generate_state(1)[0]))
                changed.append(self.transform(pixels))
        return Loaded(loaded.ids, torch.stack(changed))

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
