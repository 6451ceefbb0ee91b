"""Descriptors of photos in batches: one thread feeds the network, and few photos wait before it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from covis.core.machine import cpu_count
from covis.descriptors import NORM_TOLERANCE
from covis.reading.decoding import REASONS, Pixels, Reject, Size, decode_bytes, pixel_count
from covis.runtime import Runtime
from covis.service.limits import Budget, PixelBudget, TooBusy

PIXELS = 100_000_000
"""Most pixels that are decoded at once, over all requests: about 8 bytes of memory each."""
BATCH = 8
"""Most photos through the network at once: on a CPU, larger batches are no faster per photo."""


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

    def __init__(self, most: int, answer_s: float) -> None:
        """most: photos that may wait."""
        self.slots = Budget(most, "too many photos are waiting")
        self.answer_s = answer_s
        self._waiting: deque[_Job] = deque()
        self._decoders = ThreadPoolExecutor(cpu_count(), "decode")
        self._network = ThreadPoolExecutor(1, "network")
        self._pixels = PixelBudget(PIXELS)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def describe(
        self, network: Runtime, photos: Sequence[bytes], client: str = ""
    ) -> list[Descriptor | Unusable]:
        """One descriptor for each photo; raises 503 where too many wait, or the answer takes too long.

        Photos of one client are decoded one at a time, so that one who sends many does not hold up the others.
        """
        turn = self._turns.setdefault(client, asyncio.Semaphore(1))
        with self.slots.share() as take:
            take(len(photos))
            try:
                async with asyncio.timeout(self.answer_s):
                    return list(await asyncio.gather(*(self._one(network, photo, turn) for photo in photos)))
            except TimeoutError:
                raise TooBusy("the answer took too long", 10) from None

    async def _one(self, network: Runtime, photo: bytes, turn: asyncio.Semaphore) -> Descriptor | Unusable:
        async with turn:
            decoded = await asyncio.wrap_future(self._decoders.submit(self._decode, photo, network.image_size))
        if isinstance(decoded, Unusable):
            return decoded
        job = _Job(network, decoded)
        self._waiting.append(job)
        self._network.submit(self._describe_batch)
        vector = await asyncio.wrap_future(job.answer)
        if not abs(float(np.linalg.norm(vector.astype(np.float64))) - 1) <= NORM_TOLERANCE:
            return Unusable("blank", "it has no descriptor (is it blank?)")
        return vector

    def _decode(self, photo: bytes, size: Size) -> Pixels | Unusable:
        with self._pixels.taken(pixel_count(photo)):
            return _decode(photo, size)

    def _describe_batch(self) -> None:
        """Takes what waits, up to a batch; it is called once per photo, so none is left."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        for _, same in groupby(batch, key=lambda job: id(job.network)):
            jobs = [job for job in same if job.answer.set_running_or_notify_cancel()]
            try:
                vectors = jobs and jobs[0].network.describe(np.stack([j.pixels for j in jobs]).transpose(0, 3, 1, 2))
            except Exception as error:
                for job in jobs:
                    job.answer.set_exception(error)
                continue
            for job, vector in zip(jobs, vectors, strict=True):
                job.answer.set_result(np.asarray(vector, np.float32))

    def close(self) -> None:
        """Ends the threads."""
        for pool in (self._decoders, self._network):
            pool.shutdown(wait=False, cancel_futures=True)


def _decode(photo: bytes, size: Size) -> Pixels | Unusable:
    try:
        return decode_bytes(photo, size, stranger=True).pixels
    except Reject as reject:
        return Unusable(reject.reason, reject.detail or REASONS[reject.reason])
