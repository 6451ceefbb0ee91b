"""`covis` in a process of its own that is forked from a server with torch imported: a start costs a fraction of a second.

For tests that need a process (to kill it, to run it twice) but not the interpreter's own start, which takes seconds of
imports each time. What a fresh interpreter does is tested by tests/cli/test_verbs.py.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def processes() -> Any:
    """Where commands come from: one fork server for each process of pytest."""
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    missing = [place for place in map(str, (HERE, HERE / "drills")) if place not in places]
    if missing:  # the server finds what it preloads by this, not by sys.path
        os.environ["PYTHONPATH"] = os.pathsep.join([*missing, *filter(None, places)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forked", "warmed"])
    return context


def _work(words: Sequence[str], folder: str, environment: Mapping[str, str], out: str, err: str) -> None:
    """In the child: what `python -m covis` does, with its output in files."""
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["covis", *words]
    from covis.cli import main

    try:
        main(list(words))
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()


class Command:
    """A running command; as `subprocess.Popen` with text in pipes, but that what it printed can be looked at any time."""

    def __init__(
        self, words: Sequence[object], folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.kept = tempfile.TemporaryDirectory(prefix="covis-forked-")
        self.paths = [Path(self.kept.name) / name for name in ("out", "err")]
        for path in self.paths:
            path.touch()
        told = dict(os.environ if environment is None else environment)
        arguments = ([*map(str, words)], str(folder or Path.cwd()), told, *map(str, self.paths))
        self.process = processes().Process(target=_work, args=arguments)
        self.process.start()
        self.pid: int = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    poll = returncode.fget

    @property
    def stdout(self) -> str:
        return self.paths[0].read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self.paths[1].read_text(encoding="utf-8")

    def wait_for(self, start: str, timeout: float = 240) -> None:
        """Until a line of stderr begins so, or the command has ended."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and not any(line.startswith(start) for line in self.stderr.splitlines()):
            assert time.monotonic() < deadline, f"no line begins with {start!r}: {self.stderr}"
            time.sleep(0.01)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Waits for the end; what was printed to stdout and to stderr."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError(f"hangs: {self.stdout}{self.stderr}")
        return self.stdout, self.stderr


def run(
    words: Sequence[object],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of `python -m covis` with these words."""
    command = Command(words, folder, environment)
    out, err = command.communicate(timeout)
    command.kept.cleanup()
    return subprocess.CompletedProcess([*map(str, words)], command.process.exitcode, out, err)
