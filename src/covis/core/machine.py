"""This machine: processors, workers, cache folder, device, and a memory allocator that keeps large blocks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from covis.core.errors import InputError

if TYPE_CHECKING:  # importing it takes longer than reporting a typo
    from concurrent.futures import Future, ProcessPoolExecutor

A = TypeVar("A")
B = TypeVar("B")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = (1 << 30, 32 << 20)
"""Blocks up to this size stay with the process: the first that the C library accepts (glibc before 2.35: ≤ 32 MB)."""
_TRIM_BYTES = (1 << 31) - 1
"""The largest value that the argument of `mallopt` can have."""
MAX_WORKERS = 8


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_large_blocks() -> bool:
    """Tells the C library to reuse large blocks instead of giving them back to the system after each use.

    Networks allocate the same feature maps for every batch; fetching them anew costs a page fault per 4 kB, half of the
    processor time of embedding. Returns whether the C library accepted it (glibc does; others are left as they are).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    kept = any(mallopt(_M_MMAP_THRESHOLD, size) for size in _KEPT_BYTES)
    return kept and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def sleep_while_waiting() -> None:
    """Makes waiting threads sleep instead of spin, unless OMP_WAIT_POLICY is set; call before torch is imported.

    Beside other work, a spinning thread takes the core from the one it waits for: steps of two threads took 4 to 5 times
    as long, and 3.7 times the CPU time, on two cores that others used too.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def workers(wanted: int | None = None) -> int:
    """Processes that decode or compute beside this one: one per core, at most `MAX_WORKERS`, or `wanted` if given."""
    return min(MAX_WORKERS, cpu_count()) if wanted is None else wanted


def cache_folder() -> Path:
    """Where things that can be made again are kept: COVIS_CACHE, or `covis` in the user's cache folder."""
    given = os.environ.get("COVIS_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covis"


def weights_folder() -> Path:
    """Where files of weights are looked for by name: COVIS_WEIGHTS, or `weights` in the cache."""
    given = os.environ.get("COVIS_WEIGHTS")
    return Path(given).expanduser() if given else cache_folder() / "weights"


_chosen_device: str | None = None


def use_device(name: str | None) -> None:
    """Makes `device` return `name` in this process; None: chosen by what the machine has."""
    global _chosen_device
    _chosen_device = name


def device(local_rank: int | None = None) -> str:
    """The device of this process: the chosen one, its own GPU (LOCAL_RANK as torchrun sets it), else `cpu`."""
    import torch

    if _chosen_device is not None:
        return _checked_device(_chosen_device)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    rank = int(os.environ.get("LOCAL_RANK", "0")) if local_rank is None else local_rank
    return f"cuda:{rank % gpus}" if gpus else "cpu"


def _checked_device(name: str) -> str:
    import torch

    kind, _, number = name.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = {"cpu": True, "cuda": int(number or 0) < gpus, "mps": torch.backends.mps.is_available()}[kind]
    if not there:
        raise InputError(f"this machine has no device {name!r} ({gpus} GPUs that torch can use); give --device cpu")
    return name


def in_processes(function: Callable[[A], B], pieces: Iterable[A], processes: int, ahead: int = 2) -> Iterator[B]:
    """`function` of each piece, in order; at most `ahead` pieces per worker wait. One worker means this process."""
    if processes <= 1:
        yield from map(function, pieces)
        return
    pool = _pool(processes)
    try:
        queue: deque[Future[B]] = deque()
        remaining = iter(pieces)
        for piece in islice(remaining, processes * ahead):
            queue.append(pool.submit(function, piece))
        while queue:
            yield queue.popleft().result()
            for piece in islice(remaining, 1):
                queue.append(pool.submit(function, piece))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def apart(function: Callable[[A], B], argument: A) -> B | None:
    """`function(argument)` in a process of its own; None where that process dies, as C code does on a damaged file."""
    from concurrent.futures.process import BrokenProcessPool

    with _pool(1) as pool:
        try:
            return pool.submit(function, argument).result()
        except BrokenProcessPool:
            return None


def _pool(processes: int) -> ProcessPoolExecutor:
    """Worker processes, which only decode and hash; forked ones start at once and need no importable main module."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context(method), initializer=_settle)


def _settle() -> None:
    """A worker leaves interrupts to its parent, and does not outlive it even after SIGKILL."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def cpu_seconds() -> float:
    """CPU time of this process and of its finished workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
