"""The command line. A verb is a function of a module of this package, under `@verb`; the one in use is imported alone."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from functools import partial
from types import FrameType
from typing import Any, cast

from covis.cli.errors import Stopped, error_line
from covis.core import machine
from covis.core.errors import InputError, visible
from covis.core.plugins import load_plugins
from covis.core.progress import QUIET, VERBOSE, set_level


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 bad input, 130/143 interrupted, 141 broken pipe, 1 internal error."""
    args = list(sys.argv[1:] if argv is None else argv)
    _repair_streams()
    machine.prepare_process(
        one_blas_thread=args[:1] == ["locate"],  # a few photos: threads would cost more than they save
        keep_large_blocks="serve" not in args[:3],
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        status = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # such as `covis list recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    sys.exit(status)


def _run(args: list[str]) -> int:
    """Runs a command; returns its exit code. Raises `BrokenPipeError` where nobody reads its results any more."""
    from covis.cli.app import build_app

    debug = "--debug" in args
    try:
        args = _load_named_plugins(_common_options(args))
        completing = "_COVIS_COMPLETE" in os.environ
        code = build_app(None if completing else next(iter(args), None))(args, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as left:  # typer exits this way when a pipe is closed
        raise left.__context__ if isinstance(left.__context__, BrokenPipeError) else left from None
    except (Exception, Stopped) as error:
        _end_repeats()
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a verb
            print(cast(Any, error).format_message())
            return 0
        if isinstance(error, BrokenPipeError):
            sys.stdout.flush()  # raises again if it was this pipe
        if debug:
            traceback.print_exc()
        status, line = error_line(error, next(iter(args), ""))
        print(f"covis: {visible(line)}", file=sys.stderr)
        return status


_SWITCHES = {"-q": QUIET, "--quiet": QUIET, "-v": VERBOSE, "--verbose": VERBOSE}


def _common_options(args: list[str]) -> list[str]:
    """Applies the options that every verb takes to this process; returns the other arguments."""
    rest: list[str] = []
    values: dict[str, str] = {}
    given = iter(args)
    for arg in given:
        name, equals, value = arg.partition("=")
        if arg in _SWITCHES:
            set_level(_SWITCHES[arg])
        elif name in ("--device", "--workers"):
            values[name] = value if equals else next(given, "")
        elif arg != "--debug":
            rest.append(arg)
    device, workers = values.get("--device"), values.get("--workers")
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?|mps|tensorrt|coreml|openvino|directml", device):
        raise InputError(f"--device is cpu, cuda, cuda:N, mps, tensorrt, coreml, openvino or directml, not {device!r}")
    if workers is not None and not workers.isdecimal():
        raise InputError(f"--workers is a number of processes, not {workers!r}")
    machine.use_device(device)
    machine.use_workers(None if workers is None else int(workers))
    return rest


def _load_named_plugins(args: list[str]) -> list[str]:
    """Loads the plugins of `--import MODULE` before the verb; returns the words from the verb on."""
    while args and args[0].partition("=")[0] == "--import":
        _, equals, module = args[0].partition("=")
        if not equals and len(args) == 1:
            raise InputError("--import needs a module: covis --import MODULE VERB …")
        load_plugins([module if equals else args[1]])
        args = args[1 if equals else 2 :]
    return args


_REPEAT_S = 1.0


def _stop(number: int, _frame: FrameType | None) -> None:
    """Raises `Stopped`, and again every second until `main` has it: native code and finalizers drop exceptions."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, partial(_stop_again, number))
        signal.setitimer(signal.ITIMER_REAL, _REPEAT_S, _REPEAT_S)
    raise Stopped(number)


def _stop_again(number: int, _alarm: int, _frame: FrameType | None) -> None:
    handled = sys.exception()
    while handled is not None and not isinstance(handled, Stopped):
        handled = handled.__context__
    if handled is None:  # else it is on its way, and what runs now is cleaning up
        raise Stopped(number)


def _end_repeats() -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _repair_streams() -> None:
    """Makes printing safe: a closed stream discards, and a terminal that lacks a character gets its escape."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: that of the closed stream
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
