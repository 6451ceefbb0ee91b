"""What became of a call on damaged or bad input."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from covis.cli.errors import error_line


@dataclass(frozen=True)
class Outcome:
    """refused: exit 2; told: another answer with a warning; same; wrong: another answer and not a word; crashed: exit 1; hung."""

    BAD: ClassVar = ("wrong", "crashed", "hung")
    kind: str
    line: str = ""


LONGEST_S = 120
"""A call that takes longer hangs."""


class Hung(BaseException):
    """A call took too long."""


def _hung(*_: object) -> None:
    raise Hung


@contextlib.contextmanager
def silent() -> Iterator[io.StringIO]:
    """Collects what is said on stderr, and lets nothing through."""
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield heard


def asked(call: Callable[[], str], truth: str | None = None) -> Outcome:
    """What a call gives, as the command line would end; `truth` is the answer that it had before the damage."""
    with silent() as heard:
        before = signal.signal(signal.SIGALRM, _hung)
        signal.alarm(LONGEST_S)
        try:
            answer = call()
        except Hung:
            return Outcome("hung", f"no answer in {LONGEST_S} s")
        except SystemExit as left:
            lines = heard.getvalue().strip().splitlines()
            kind = {0: "same", 2: "refused"}.get(left.code if isinstance(left.code, int) else 1, "crashed")
            return Outcome(kind, lines[-1] if lines else "")
        except Exception as error:
            status, line = error_line(error)
            kind = "refused" if status == 2 else "crashed"
            return Outcome(kind, line + (f" [{_where(error)}]" if kind == "crashed" else ""))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    if truth is None or answer == truth:
        return Outcome("same")
    return Outcome("told" if heard.getvalue().strip() else "wrong", f"{truth[:60]} became {answer[:60]}")


def _where(error: BaseException) -> str:
    """The last line of our own that an error came through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if f"{os.sep}covis{os.sep}" in file:
            place = f"{file.rsplit(f'{os.sep}covis{os.sep}', 1)[1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
