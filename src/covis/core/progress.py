"""Messages and progress, always on stderr, so that stdout carries results alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from covis.core.errors import visible

_T = TypeVar("_T")
_PLAIN_INTERVAL_S, _LONGEST_SILENCE_S = 10.0, 120.0
_PLAIN_SHARE = 20
"""A log gets a line for each of this many parts of the work, at most every 10 s and at least every two minutes."""
_WARM_UP_S = 2.0
"""A first item that takes longer (something was compiled or opened for it) does not count for the time left."""


QUIET, NORMAL, VERBOSE = -1, 0, 1
_level = NORMAL
_begun = time.monotonic()


def set_level(level: int) -> None:
    """What to print: `QUIET` (warnings alone), `NORMAL`, or `VERBOSE` (every line with the seconds since start)."""
    global _level
    _level = level


def is_verbose() -> bool:
    """Whether -v asks for details."""
    return _level == VERBOSE


def say(message: str) -> None:
    """One line of information."""
    if _level != QUIET:
        _print(message)


def warn(message: str) -> None:
    """One line that the user should read, also when quiet."""
    _print(f"warning: {message}")


def _print(message: str) -> None:
    stamp = f"[{time.monotonic() - _begun:8.1f} s] " if _level == VERBOSE else ""
    print(f"{stamp}{visible(message)}", file=sys.stderr, flush=True)


class Meter:
    """Counts work towards `total`, with rate and time left; a bar on a terminal, sparse lines elsewhere."""

    def __init__(self, label: str, total: int | None, unit: str = "items") -> None:
        self.label, self.total, self.unit, self.done = label, total, unit, 0
        self._started = self._spoken = time.monotonic()
        self._written = 0
        self._live = sys.stderr.isatty() and _level != QUIET
        self._before = 0
        self._warm = False
        self._since, self._from = self._started, 0
        self.note = ""

    def start_at(self, done: int) -> None:
        """Counts from `done`, which an earlier run has finished."""
        self.done = self._before = self._from = self._written = done

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
        if self.done > self._before:
            took = time.monotonic() - self._started
            new = self.done - self._before
            say(f"{self.label}: {new} {self.unit} in {duration(took)} ({new / max(took, 1e-9):.4g}/s)")

    def advance(self, count: int = 1, note: str = "") -> None:
        """Records `count` more items; `note` is shown behind the figures."""
        self.done += count
        self.note = note or self.note
        now = time.monotonic()
        if not self._warm and now - self._started > _WARM_UP_S:
            self._since, self._from, self._spoken = now, self.done, now
        self._warm = True
        if now - self._spoken < (0.1 if self._live else self._interval_s()):
            return
        self._spoken, self._written = now, self.done
        line = visible(self.line(now - self._since))
        if self._live:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        else:
            say(line)

    def _interval_s(self) -> float:
        """Seconds from one line of a log to the next."""
        step = (self.total or 0) / _PLAIN_SHARE
        return _PLAIN_INTERVAL_S if self.done - self._written >= step else _LONGEST_SILENCE_S

    def line(self, elapsed_s: float) -> str:
        """The state as text: share done, rate, time left."""
        rate = (self.done - self._from) / max(elapsed_s, 1e-9)
        head = f"{self.label}: {self.done}"
        if self.total:
            left = (self.total - self.done) / max(rate, 1e-9)
            filled = min(20, 20 * self.done // self.total)
            head = f"{self.label} [{'━' * filled}{' ' * (20 - filled)}] {self.done}/{self.total}"
            tail = f"{rate:.4g} {self.unit}/s, {duration(left)} left"
        else:
            tail = f"{rate:.4g} {self.unit}/s"
        return f"{head}  {tail}  {self.note}".rstrip()


def track(items: Iterable[_T], label: str, total: int | None = None, unit: str = "items") -> Iterator[_T]:
    """Yields `items` while a `Meter` counts them."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Meter(label, total, unit) as meter:
        for item in items:
            yield item
            meter.advance()


def duration(seconds: float) -> str:
    """Seconds as readable text.

    >>> duration(75.2), duration(3725)
    ('1 min 15 s', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
