"""This machine: processors, worker processes, folders of the user, device, and the set-up of a process of our own."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import stat
import sys
import tempfile
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
MAX_WORKERS = 8


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_process(*, one_blas_thread: bool = False, keep_large_blocks: bool = True) -> None:
    """Sets up a process that belongs to covis alone (the command line, a service) for running networks.

    Importing covis does none of this; a program of one's own may call it once, before torch is imported. Large blocks
    of memory are kept, and waiting threads sleep instead of spinning: beside other work, a spinning thread takes the
    core from the one it waits for (steps of two threads took 4 to 5 times as long on two busy cores). Variables that the
    user has set are left alone. one_blas_thread: for answers that take less time than starting threads does. keep_large_blocks: a service gives
    the memory of a large photo back instead.
    """
    silence_telemetry()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if one_blas_thread:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if keep_large_blocks:
        _keep_large_blocks()


def silence_telemetry() -> None:
    """Keeps libraries from reporting to their makers; call before they are imported.

    ONNX Runtime from 1.31 on writes a device id below the user's cache folder and looks up its maker's collector.
    """
    for name in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        os.environ.setdefault(name, "1")


def _keep_large_blocks() -> None:
    """Has the C library reuse large blocks instead of giving them back to the system after each use, if it is glibc.

    Networks allocate the same feature maps for every batch; fetching them anew costs a page fault per 4 kB, half of the
    processor time of embedding.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    if mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 32 << 20):  # glibc before 2.35 takes up to 32 MB
        mallopt(trim_threshold, (1 << 31) - 1)


_chosen_workers: int | None = None


def use_workers(count: int | None) -> None:
    """Makes `workers` return `count` in this process; None: chosen by the number of cores."""
    global _chosen_workers
    _chosen_workers = count


def workers(wanted: int | None = None) -> int:
    """Processes that decode or compute beside this one: `wanted`, what was chosen, or one per core up to `MAX_WORKERS`."""
    chosen = _chosen_workers if wanted is None else wanted
    return min(MAX_WORKERS, cpu_count()) if chosen is None else chosen


def cache_folder() -> Path:
    """Where things that can be made again are kept: COVIS_CACHE, or `covis` in the user's cache folder."""
    given = os.environ.get("COVIS_CACHE")
    if given:
        return _expand_home(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "covis"
    except RuntimeError:
        return _private_temporary_folder()


def _private_temporary_folder() -> Path:
    """The cache of a user without a home folder, as containers run them; nobody else can have put anything into it."""
    folder = Path(tempfile.gettempdir()) / f"covis-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InputError(f"there is no home folder, and {folder} is open to others; set COVIS_CACHE=FOLDER")
    return folder


def _expand_home(path: str) -> Path:
    """A path that may begin with `~`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(
            f"the folder {path} is unknown: there is no such home folder; set COVIS_CACHE=FOLDER"
        ) from None


def weights_folder() -> Path:
    """Where files of weights are looked for by name: COVIS_WEIGHTS, or `weights` in the cache."""
    given = os.environ.get("COVIS_WEIGHTS")
    return _expand_home(given) if given else cache_folder() / "weights"


_chosen_device: str | None = None


def use_device(name: str | None) -> None:
    """Makes `device` return `name` in this process; None: chosen by what the machine has."""
    global _chosen_device
    _chosen_device = name


def chosen_device() -> str | None:
    """What --device named, or None."""
    return _chosen_device


def device(local_rank: int | None = None) -> str:
    """torch's device in this process: the chosen one, its own GPU (LOCAL_RANK as torchrun sets it), else `cpu`."""
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if _chosen_device is None:
        rank = int(os.environ.get("LOCAL_RANK", "0")) if local_rank is None else local_rank
        return f"cuda:{rank % gpus}" if gpus else "cpu"
    kind, _, number = _chosen_device.partition(":")
    if kind not in ("cuda", "mps"):  # those of ONNX Runtime alone (`covis.runtime.DEVICES`)
        return "cpu"
    if not (torch.backends.mps.is_available() if kind == "mps" else int(number or 0) < gpus):
        raise InputError(
            f"this machine has no device {_chosen_device!r} ({gpus} GPUs that torch can use); give --device cpu"
        )
    return _chosen_device


def in_processes(function: Callable[[A], B], pieces: Iterable[A], processes: int) -> Iterator[B]:
    """`function` of each piece, in order; at most two pieces per worker wait. One worker means this process."""
    if processes <= 1:
        yield from map(function, pieces)
        return
    pool = _pool(processes)
    try:
        queue: deque[Future[B]] = deque()
        remaining = iter(pieces)
        for piece in islice(remaining, 2 * processes):
            queue.append(pool.submit(function, piece))
        while queue:
            yield queue.popleft().result()
            for piece in islice(remaining, 1):
                queue.append(pool.submit(function, piece))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pool(processes: int) -> ProcessPoolExecutor:
    """Worker processes, which only decode and hash; forked ones start at once and need no importable main module."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context(method), initializer=_prepare_worker)


def _prepare_worker() -> None:
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
