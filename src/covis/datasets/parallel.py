"""Work over many files in several processes, in order, with a bounded number of pieces under way."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(function: Callable[[A], B], pieces: Iterable[A], workers: int, ahead: int = 2) -> Iterator[B]:
    """`function` of each piece, in order; at most `ahead` pieces a worker wait. One worker means this process."""
    if workers <= 1:
        yield from map(function, pieces)
        return
    # children of a plain fork start at once and need no importable main module; they only decode and hash
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))
    try:
        queue: deque[Future[B]] = deque()
        remaining = iter(pieces)
        for piece in islice(remaining, workers * ahead):
            queue.append(pool.submit(function, piece))
        while queue:
            yield queue.popleft().result()
            for piece in islice(remaining, 1):
                queue.append(pool.submit(function, piece))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
