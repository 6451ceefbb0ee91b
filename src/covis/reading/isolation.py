"""Decoders in processes of their own, which end at a limit: a hostile file costs such a process, not this one.

A process is started when it is first needed, and kept. It ends itself: the system stops it after `LONGEST_S` of processor
time for one file, also within a library, and refuses it memory beyond `MOST_BYTES`. Where the system has no such limits
(Windows), it still keeps a crash of a library away. It is no sandbox: it has the rights of this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from covis.core.machine import cpu_count

P = ParamSpec("P")
R = TypeVar("R")
LONGEST_S = 20.0
"""Of processor time, per file: 50 megapixels in the slowest format take below 10 s."""
MOST_BYTES = 2 << 30
"""Of memory, per process: 50 megapixels take below 1 GB in any format."""
_START = "import sys; sys.path[:] = {path!r}; from covis.reading.isolation import serve; serve({limits!r})"


class Ended(Exception):  # noqa: N818 - a verdict on a file, not a defect
    """The process ended before it had an answer."""


class _Process:
    """One process, which answers one question at a time."""

    def __init__(self) -> None:
        start = _START.format(path=sys.path, limits=(LONGEST_S, MOST_BYTES))
        self._process = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, question: Any) -> Any:
        """(True, the result) or (False, the error)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(question, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise Ended from None

    def end(self) -> None:
        """Kills it and frees its pipes."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was still to be written is of no use
                cast(Any, pipe).close()
        self._process.wait()


_idle: list[_Process] = []
_places = threading.BoundedSemaphore(cpu_count())


def run_isolated(function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """`function` of these arguments in another process; raises what it raises, or `Ended`."""
    with _places:
        process = _idle.pop() if _idle else _Process()
        try:
            done, answer = process.ask((function, arguments, options))
        except BaseException:  # also an interrupt: half an answer may be in the pipe
            process.end()
            raise
        _idle.append(process)
    if not done:
        raise answer
    return cast(R, answer)


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _forget() -> None:
    """In a forked process: the processes are its parent's."""
    global _places
    _forgotten.extend(_idle)
    _idle.clear()
    _places = threading.BoundedSemaphore(cpu_count())


_forgotten: list[_Process] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def serve(limits: tuple[float, int]) -> None:
    """Answers questions from stdin on stdout until stdin is closed; the body of such a process."""
    longest_s, most_bytes = limits
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asking process is interrupted, and closes stdin
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _limit_memory(most_bytes)
    while True:
        try:
            function, arguments, options = pickle.load(questions)
        except EOFError:
            return
        _limit_time(longest_s)
        try:
            answer = True, function(*arguments, **options)
        except Exception as error:
            answer = False, error
        _limit_time(0)
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _limit_time(seconds: float) -> None:
    """SIGPROF ends the process after so much processor time; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(most_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
