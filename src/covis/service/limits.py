"""What a client may ask of the service: bytes, photos, time, and a share of what all requests have together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException

MEGABYTE = 1_000_000


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


class TooBusy(HTTPException):
    """The server cannot take more now."""

    def __init__(self, why: str, retry_s: int = 1) -> None:
        super().__init__(503, f"{why}; try again in {retry_s} s", {"Retry-After": str(retry_s)})


class Budget:
    """An amount that all requests share."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self.what, self.used = most, what, 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes an amount or refuses; what it took is given back at the end."""
        taken = 0

        def take(amount: int) -> None:
            nonlocal taken
            if self.used + amount > self.most:
                raise TooBusy(f"the server is busy ({self.what})")
            self.used += amount
            taken += amount

        try:
            yield take
        finally:
            self.used -= taken


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
