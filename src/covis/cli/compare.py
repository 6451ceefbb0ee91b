"""`covis compare`: methods side by side, with significance tests over seeds and queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covis.cli.evaluate import report_command
from covis.cli.options import Json, TableFormat, existing
from covis.cli.output import emit
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.evaluation import Evaluation


@verb("compare", section=TRAIN, order=4)
def compare(
    evaluations: Annotated[
        list[Path],
        typer.Argument(callback=existing, help="Folders of `covis evaluate`, runs, sweeps, or any folder above them."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="FILE.html: a leaderboard with dimensions, memory per photo and licence."),
    ] = None,
    format_: TableFormat = "text",
    json: Json = False,
) -> None:
    """Compare methods with significance tests over seeds and queries. Also shows what differs between them.

    Runs that differ only in their seed are one method; below three seeds per method there is no star. Only evaluations of the same protocol are ranked against each other.

    \b
    Examples:
      covis compare evals/cl evals/gcl
      covis compare runs/cl runs/gcl --format latex
      covis compare evals -o board.html
      covis compare sweeps/losses --format latex
    """
    if output is not None and output.suffix != ".html":
        raise InputError(f"-o {output} is a page; give FILE.html")
    from covis.evaluation.compare import compare as compare_evaluations
    from covis.evaluation.render import comparison_text
    from covis.evaluation.result import Evaluation, find_evaluations

    opened = [Evaluation.open(path) for given in evaluations for path in find_evaluations(given)]
    result = compare_evaluations(opened)
    text = comparison_text(result, format_)
    if output is not None:
        _write_board(output, opened)
        text = "\n\n".join([text, f"{output}: {len(opened)} evaluations"])
    then = report_command(evaluations, [one.benchmark for one in opened]) if format_ == "text" else ""
    emit(result, json, text, then)


def _write_board(output: Path, opened: list[Evaluation]) -> None:
    """The leaderboard of evaluations as a page."""
    from covis.report.leaderboard import leaderboard, write_leaderboard

    write_leaderboard(output, leaderboard(opened))
