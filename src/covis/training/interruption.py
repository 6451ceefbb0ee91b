"""Signals that wait until a run can resume from where it is."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DeferredSignals:
    """While entered, notes the first signal instead of acting on it; a second one acts at once."""

    received: int | None = None

    def __enter__(self) -> DeferredSignals:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self) -> None:
        """Lets the noted signal act now, after leaving."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self.__exit__()
            signal.raise_signal(number)
        self.received = number
