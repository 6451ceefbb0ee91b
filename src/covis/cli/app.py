"""The typer application, made of the registered verbs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from covis.cli.verbs import GROUPS, VERBS, first_words, headings
from covis.core.plugins import load_installed_plugins
from covis.core.registry import import_modules

_PACKAGE = __name__.rpartition(".")[0]
_EVERYWHERE = (
    "-q (warnings only), -v (details, with timestamps), --debug (tracebacks), --device cpu|cuda|cuda:N|mps, or for ONNX "
    "models tensorrt|coreml|openvino|directml (default: a GPU if there is one) and --workers N (decoding processes; "
    "default: one per core, at most 8)."
)


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
    if word not in first_words() and word.isidentifier() and importlib.util.find_spec(f"{_PACKAGE}.{word}"):
        importlib.import_module(f"{_PACKAGE}.{word}")
    if word not in first_words():
        find_verbs()
    return word in first_words()


def find_verbs() -> None:
    """Imports every module of this package and installed plugins, so that their verbs are registered."""
    import_modules(_PACKAGE, sys.modules[_PACKAGE].__path__)
    load_installed_plugins()


def build_app(verb: str | None = None) -> typer.Typer:
    """The application with every verb, or only with `verb` if it is known; then only its module is imported."""
    app = typer.Typer(
        name="covis",
        cls=_Sections,
        help="Visual place recognition learned from how much two views share.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=f"Every verb takes --json (results on stdout), {_EVERYWHERE}",
    )
    app.callback()(_before_verb)
    chosen = [str(verb)] if is_verb(verb) else None
    if chosen is None:
        find_verbs()
    for name in chosen or first_words():
        inner = [full for full in VERBS if full.startswith(f"{name} ")]
        if inner:
            app.add_typer(_group(name, inner), name=name)
        else:
            app.command(name, epilog=f"Also {_EVERYWHERE}")(VERBS[name].function)
    return app


def _group(name: str, verbs: list[str]) -> typer.Typer:
    """Verbs of two words, and the verb that is the first word alone if there is one (`label`)."""
    alone = name in VERBS
    group = typer.Typer(
        help=VERBS[name].function.__doc__ if alone else GROUPS[name].help,
        rich_markup_mode=None,
        no_args_is_help=True,
        invoke_without_command=alone,
        epilog=f"Also {_EVERYWHERE}",
    )
    if alone:
        group.callback()(VERBS[name].function)
    for verb in verbs:
        group.command(verb.partition(" ")[2], epilog=f"Also {_EVERYWHERE}")(VERBS[verb].function)
    return group


def _print_version(requested: bool) -> None:
    if requested:
        from covis import __version__

        print(__version__)
        raise typer.Exit


_IMPORT = typer.Option("--import", metavar="MODULE", help="Load a plugin first, with the names it brings; repeatable.")


def _before_verb(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
    imports: Annotated[list[str] | None, _IMPORT] = None,
) -> None:
    """Visual place recognition learned from how much two views share."""
