"""What a client may ask of the service: bytes, photos, time, requests per minute."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException

MEGABYTE = 1_000_000
_CLIENTS = 10_000
"""Clients whose rate is remembered at most."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one server."""

    photo_bytes: int = 30 * MEGABYTE
    """Of one photo."""
    request_bytes: int = 100 * MEGABYTE
    """Of one request."""
    photos: int = 100
    """Per request."""
    total_bytes: int = 400 * MEGABYTE
    """Of all requests together that are being read or answered."""
    queue: int = 256
    """Photos that wait or are being answered, over all requests."""
    body_s: float = 60.0
    """For a request's body in all."""
    idle_s: float = 10.0
    """Between two parts of a body."""
    answer_s: float = 120.0
    """For an answer, from the end of the body."""
    per_minute: int | None = None
    """Requests of one key or address; None: any number."""
    drain_bytes: int = 400 * MEGABYTE
    """Of a refused body that is read and dropped, so that a client that sends first still gets its answer."""
    drain_s: float = 10.0


class TooBusy(HTTPException):
    """The server cannot take more now."""

    def __init__(self, why: str, retry_s: int = 1, status: int = 503) -> None:
        super().__init__(status, f"{why}; try again in {retry_s} s", {"Retry-After": str(retry_s)})


class Budget:
    """An amount that all requests share."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self.what, self.used = most, what, 0

    def take(self, amount: int) -> None:
        """Takes `amount`, or refuses."""
        if self.used + amount > self.most:
            raise TooBusy(f"the server is busy ({self.what})")
        self.used += amount

    def give(self, amount: int) -> None:
        """Gives back what was taken."""
        self.used -= amount


class PixelBudget:
    """Pixels that are in memory at once; who asks for more waits."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """While entered, `pixels` are taken."""
        with self._changed:
            self._changed.wait_for(lambda: self.used == 0 or self.used + pixels <= self.most)
            self.used += pixels
        try:
            yield
        finally:
            with self._changed:
                self.used -= pixels
                self._changed.notify_all()


class Rate:
    """Requests of each client within the last minute, as a bucket that fills steadily."""

    def __init__(self, per_minute: int | None) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Counts one request, or refuses it."""
        if self.per_minute is None:
            return
        now, per_second = time.monotonic(), self.per_minute / 60.0
        left, since = self._buckets.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - since) * per_second)
        self._buckets[client] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1.0:
            wait = max(1, round((1.0 - left) / per_second))
            raise TooBusy(f"more than {self.per_minute} requests per minute", wait, status=429)
