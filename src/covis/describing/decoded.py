"""Batches of decoded images from threads, without torch, in the order in which they are requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core import machine
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.images import ImageSet
from covis.reading.decoding import Pixels, Reject, Size, decode

WORTH_WORKERS = 64
"""Images from which on parallel decoding pays."""
_AHEAD = 2
"""Batches that are decoded while one is described."""


class BadFile(NamedTuple):
    """A file that could not be used."""

    which: int
    """Its image set, in the order given."""
    id: int
    reason: str
    """A code of `covis.decoding.REASONS`."""
    detail: str


class DecodedBatch(NamedTuple):
    """The images of one batch that can be used."""

    ids: Ids
    images: NDArray[np.uint8]
    """(B, 3, H, W)."""


def decoders(workers: int | None, count: int) -> int:
    """How many decoding processes or threads `count` images are worth."""
    if workers is not None:
        return workers
    return 0 if count < WORTH_WORKERS else machine.workers()


def decoded_batches(
    images: ImageSet, requests: Iterable[Ids], size: Size, threads: int, *, rejects: list[BadFile] | None = None
) -> Iterator[DecodedBatch]:
    """The images of each request; bad files are left out and appended to `rejects`, or an error without it."""
    waiting = iter(requests)
    queue: deque[tuple[Ids, list[Future[Pixels | Reject]]]] = deque()
    with ThreadPoolExecutor(max(1, threads)) as pool:

        def submit(ids: Ids) -> None:
            queue.append((ids, [pool.submit(_decode, images, i, size) for i in ids.tolist()]))

        try:
            for ids in islice(waiting, _AHEAD):
                submit(ids)
            while queue:
                ids, futures = queue.popleft()
                decoded = [future.result() for future in futures]
                for ahead in islice(waiting, 1):
                    submit(ahead)
                yield _sound(ids, decoded, size, rejects)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode(images: ImageSet, i: int, size: Size) -> Pixels | Reject:
    try:
        return decode(images.path(i), size)
    except Reject as reject:
        return reject


def _sound(ids: Ids, decoded: list[Pixels | Reject], size: Size, rejects: list[BadFile] | None) -> DecodedBatch:
    kept, pixels = [], [np.zeros((0, *size, 3), np.uint8)]
    for i, found in zip(ids.tolist(), decoded, strict=True):
        if not isinstance(found, Reject):
            kept.append(i)
            pixels.append(found[None])
        elif rejects is None:
            raise InputError(f"{found}; replace or remove the file")
        else:
            rejects.append(BadFile(0, i, found.reason, found.detail))
    return DecodedBatch(np.array(kept, np.int64), np.concatenate(pixels).transpose(0, 3, 1, 2))
