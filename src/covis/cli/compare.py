"""`covis compare`: methods side by side, with significance tests over seeds and queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from covis.cli.evaluate import report_command
from covis.cli.options import Json, TableFormat, existing
from covis.cli.output import emit
from covis.cli.verbs import TRAIN, verb


@verb("compare", section=TRAIN, order=4)
def compare(
    evaluations: Annotated[
        list[Path],
        Argument(callback=existing, help="Folders of `covis evaluate`, runs, sweeps, or any folder above them."),
    ],
    format_: TableFormat = "text",
    json: Json = False,
) -> None:
    """Compare methods with significance tests over seeds and queries. Also shows what differs between them.

    Runs that differ only in their seed are one method; below three seeds per method there is no star. Only evaluations of the same protocol are ranked against each other.

    \b
    Examples:
      covis compare evals/cl evals/gcl
      covis compare runs/cl runs/gcl --format latex
      covis compare sweeps/losses --format latex
    """
    from covis.evaluation.compare import compare as compare_evaluations
    from covis.evaluation.render import comparison_text
    from covis.evaluation.result import Evaluation, find_evaluations

    opened = [Evaluation.open(path) for given in evaluations for path in find_evaluations(given)]
    result = compare_evaluations(opened)
    then = report_command(evaluations, [one.benchmark for one in opened]) if format_ == "text" else ""
    emit(result, json, comparison_text(result, format_), then)
