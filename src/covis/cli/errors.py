"""Errors as one line for people, and their exit codes."""

from __future__ import annotations

import errno
import signal
from typing import Any

from covis.core.errors import InputError, WeightsMissing


class Stopped(BaseException):
    """Ctrl-C or SIGTERM as an exception, so that running code can leave its state whole."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def error_line(error: BaseException, verb: str = "") -> tuple[int, str]:
    """Exit code and line of an error of a verb."""
    import typer  # here: until `main` has set its handlers, Ctrl-C is Python's own, so its imports are few

    usage: Any = typer.BadParameter.__base__
    if isinstance(error, Stopped):
        name = {signal.SIGTERM: "stopped", signal.SIGINT: "interrupted"}[signal.Signals(error.number)]
        return 128 + error.number, name if verb == "serve" else f"{name}; re-run the same command to resume"
    if isinstance(error, usage):
        place = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return 2, f"error: {' '.join(error.format_message().replace('Value error, ', '').split())}{place}"
    if isinstance(error, WeightsMissing):
        option = "--weights FILE.safetensors" if verb == "index" else "--set model.weights=FILE.safetensors"
        return 2, f"error: {error.told(option)}"
    if isinstance(error, InputError):
        return 2, f"error: {error}"
    if isinstance(error, OSError):
        where = error.filename2 or error.filename  # of a copy, the place that it goes to
        place = f": {str(where)[:400]}" if where else ""
        hint = _REMEDIES.get(error.errno or errno.ENOSPC, "check the path and the disk")
        return 2, f"error: {error.strerror or error}{place}; {hint}"
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_of(error.name or "")):
        return 2, f"error: covis {verb} needs {error.name} here; install it with: pip install 'covis[{extra}]'"
    if isinstance(error, MemoryError):
        cause = str(error) or "none is left"
        return 2, f"error: not enough memory ({cause}); close other programs or give less at once, then re-run"
    return 1, f"internal error: {type(error).__name__}: {error} (re-run with --debug and report it)"


def _extra_of(module: str) -> str:
    """The extra that brings a module; empty where none does."""
    from covis.cli.doctor import EXTRAS

    top = module.partition(".")[0]
    return next((name for name, (modules, _) in EXTRAS.items() if top in modules), "")


_FREE = "free some space, then re-run the same command"
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.EISDIR: "give a file, not a folder",
    errno.EEXIST: "choose another output or remove it",
    errno.ENOTEMPTY: "choose another output or remove it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EROFS: "choose another output",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then re-run the same command",
}
