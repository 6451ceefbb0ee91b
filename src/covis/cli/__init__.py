"""The command line. A verb is a function of a module of this package, under `@verb`; the one in use is imported alone."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from covis.cli.verbs import GROUPS, VERBS, first_words, headings
from covis.core import machine
from covis.core.errors import InputError, WeightsMissing, visible
from covis.core.plugins import load_installed_plugins, load_plugins
from covis.core.progress import QUIET, VERBOSE, set_level
from covis.core.registry import import_modules


class _Sections(TyperGroup):
    """Lists the verbs under headings, with summaries that wrap instead of being cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections = headings()
        width = max(len(verb) for verbs in sections.values() for verb in verbs)
        for heading, verbs in sections.items():
            commands = [(verb, command) for verb in verbs if (command := self.get_command(ctx, verb)) is not None]
            with formatter.section(heading):
                formatter.write_dl([(verb.ljust(width), command.get_short_help_str(200)) for verb, command in commands])


def is_verb(word: str | None) -> bool:
    """Whether a verb or a group of verbs has this name; imports the module of that name, or where there is none all."""
    if word is None or word.startswith("-"):
        return False
    if word not in first_words() and word.isidentifier() and importlib.util.find_spec(f"{__name__}.{word}"):
        importlib.import_module(f"{__name__}.{word}")
    if word not in first_words():
        find_verbs()
    return word in first_words()


def find_verbs() -> None:
    """Imports every module of this package and installed plugins, so that their verbs are registered."""
    import_modules(__name__, __path__)
    load_installed_plugins()


_EVERYWHERE = (
    "-q (warnings only), -v (with timestamps), --debug (tracebacks), --device cpu|cuda|cuda:N|mps, or for ONNX "
    "models tensorrt|coreml|openvino|directml (default: a GPU if there is one) and --workers N (decoding processes; default: one per core, at most 8)."
)


def build_app(verb: str | None = None, *, listed: bool = False) -> typer.Typer:
    """The application with every verb, or only with `verb` if it is known; then only its module is imported.

    `listed` leaves out the options of verbs, for a help page that shows names and summaries only: parsing options is slow.
    """
    app = typer.Typer(
        name="covis",
        cls=_Sections,
        help="Visual place recognition learned from how much two views share.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=f"Every verb takes --json (results on stdout), {_EVERYWHERE}",
    )
    app.callback()(_version)
    alone = is_verb(verb)
    if not alone:
        find_verbs()
    for name in (str(verb),) if alone else first_words():
        inner = [full for full in VERBS if full.startswith(f"{name} ")]
        if inner:
            _add_group(app, name, inner, listed)
        else:
            app.command(name, epilog=f"Also {_EVERYWHERE}")(_summary(VERBS[name].function, listed))
    return app


def _add_group(app: typer.Typer, name: str, verbs: list[str], listed: bool) -> None:
    bare = next((VERBS[verb].function for verb in VERBS if verb == name), None)
    group = typer.Typer(
        rich_markup_mode=None,
        no_args_is_help=True,
        invoke_without_command=bare is not None,
        epilog=f"Also {_EVERYWHERE}",
    )
    for verb in verbs:
        function = _summary(VERBS[verb].function, listed)
        group.command(verb.partition(" ")[2], epilog=f"Also {_EVERYWHERE}")(function)
    if bare is None:
        app.add_typer(group, name=name, help=GROUPS[name].help)
    else:
        group.callback()(_summary(bare, listed))
        app.add_typer(group, name=name)


def _summary(function: Callable[..., Any], listed: bool) -> Callable[..., Any]:
    """The function, or where only verbs are listed one without options that has its docstring."""
    if not listed:
        return function

    def summary() -> None: ...

    summary.__doc__ = function.__doc__
    return summary


def _print_version(requested: bool) -> None:
    if requested:
        from covis import __version__

        print(__version__)
        raise typer.Exit


_IMPORT = typer.Option("--import", metavar="MODULE", help="Load a plugin first, with the names it brings; repeatable.")


def _version(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
    imports: Annotated[list[str] | None, _IMPORT] = None,
) -> None:
    """Visual place recognition learned from how much two views share."""


UsageError: Any = typer.BadParameter.__base__


class Stopped(BaseException):
    """Ctrl-C or SIGTERM as an exception, so that running code can leave its state whole."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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


def _run(args: list[str]) -> int:
    """Runs a command; returns its exit code. Raises `BrokenPipeError` where nobody reads its results any more."""
    debug = "--debug" in args
    try:
        args = _load_named_plugins(_common_options(args))
        verb = next(iter(args), None)
        known = "_COVIS_COMPLETE" in os.environ or is_verb(verb)
        code = build_app(verb, listed=not known)(args, standalone_mode=False)
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


def _load_named_plugins(args: list[str]) -> list[str]:
    """Loads the plugins of `--import MODULE` before the verb; returns the words from the verb on."""
    while args and args[0].partition("=")[0] == "--import":
        _, equals, module = args[0].partition("=")
        if not equals and len(args) == 1:
            raise InputError("--import needs a module: covis --import MODULE VERB …")
        load_plugins([module if equals else args[1]])
        args = args[1 if equals else 2 :]
    return args


_WEIGHTS_OPTION = {"index": "--weights FILE.safetensors"}
"""How a verb takes a weights file; verbs that are not listed run recipes and take --set."""


def error_line(error: BaseException, verb: str = "") -> tuple[int, str]:
    """Exit code and line of an error of a verb."""
    if isinstance(error, Stopped):
        name = {signal.SIGTERM: "stopped", signal.SIGINT: "interrupted"}[signal.Signals(error.number)]
        return 128 + error.number, f"{name}; re-run the same command to resume"
    if isinstance(error, UsageError):
        place = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return 2, f"error: {' '.join(error.format_message().split())}{place}"
    if isinstance(error, WeightsMissing):
        return 2, f"error: {error.told(_WEIGHTS_OPTION.get(verb, '--set model.weights=FILE.safetensors'))}"
    if isinstance(error, InputError):
        return 2, f"error: {error}"
    if isinstance(error, OSError):
        place = f": {str(error.filename)[:400]}" if error.filename else ""
        hint = _REMEDY.get(error.errno or 0, _DISK if error.errno is None else "check the path and the disk")
        return 2, f"error: {error.strerror or error}{place}; {hint}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _EXTRAS:
        extra = _EXTRAS[(error.name or "").partition(".")[0]]
        return 2, f"error: covis {verb} needs {error.name} here; install it with: pip install 'covis[{extra}]'"
    if isinstance(error, MemoryError):
        return 2, f"error: not enough memory ({str(error) or 'none is left'}); {_MEMORY}"
    return 1, f"internal error: {type(error).__name__}: {error} (re-run with --debug and report it)"


_EXTRAS = {
    **dict.fromkeys(("torch", "torchvision", "timm", "matplotlib", "tensorboard", "huggingface_hub"), "train"),
    **dict.fromkeys(("numba", "scipy"), "labels"),
    "pyarrow": "parquet",
    "faiss": "search",
    "h5py": "hdf5",
}
"""Module → the extra that brings it."""
_DISK = "the disk may be full: free some space, then re-run the same command"
_MEMORY = "close other programs or give less at once, then re-run the same command"
_REMEDY = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "give a file, not a folder",
    errno.EEXIST: "choose another output or remove it",
    errno.ENOTEMPTY: "choose another output or remove it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "a link there leads back to itself: choose another path",
    errno.ENOSPC: "free some space, then re-run the same command",
    errno.EDQUOT: "your quota is used up: free some space, then re-run the same command",
    errno.EFBIG: "the file exceeds a size limit (ulimit -f), or is larger than covis reads",
    errno.EROFS: "choose another output",
    errno.EIO: "the disk may be failing: check it, then re-run the same command",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then re-run the same command",
    errno.EINVAL: "give a regular file",
}
