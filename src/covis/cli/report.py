"""`covis report`: evaluations and runs as one HTML file, or one of its figures as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covis.cli.common import Data, Json, emit
from covis.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.evaluation import Evaluation

PICTURES = (".png", ".svg", ".pdf")


def report(
    sources: Annotated[list[Path], typer.Argument(help="Folders of `covis evaluate`, or runs with evaluations below.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.html; FILE.png, .svg or .pdf with --figure.")],
    data: Data = None,
    figure: Annotated[
        str,
        typer.Option(
            help="Only this figure: recall, precision, radius, distance, sizes, overlap, differences, activations; batches of runs."
        ),
    ] = "",
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    json: Json = False,
) -> None:
    """Write a self-contained report: tables, curves, map of right and wrong queries, gallery, what models see.

    Evaluations of one label are taken as seeds of one model.

    \b
    Examples:
      covis report evals/cl evals/gcl -o report.html
      covis report runs/quick -o report.html --data /data/msls
      covis report evals/cl evals/gcl -o recall.svg --figure recall
      covis report runs/cl runs/gcl -o maps.png --figure activations
    """
    from covis.datasets import given_paths
    from covis.evaluation import BENCHMARKS, load_benchmark
    from covis.report import write_report
    from covis.report.plots import save
    from covis.report.sections import FIGURES

    groups, runs = _gather(sources)
    protocol = BENCHMARKS[next(iter(groups.values()))[0].benchmark]
    path = given_paths(data, [protocol.dataset]).get(protocol.dataset)
    if figure:
        if figure not in FIGURES:
            raise unknown_name("figure", figure, FIGURES)
        if output.suffix not in PICTURES:
            raise InputError(f"{output} is no picture; give a name that ends in {', '.join(PICTURES)}")
        save(FIGURES[figure](groups, runs, path), output)
    else:
        first = next(iter(groups.values()))[0]
        benchmark = load_benchmark(first.benchmark, path)
        write_report(
            output, groups, benchmark, runs=runs or None, data=path, title=title or f"Evaluation on {first.benchmark}"
        )
    emit({"report": str(output), "models": list(groups)}, json, f"{output}: {', '.join(groups)}")


def _gather(sources: list[Path]) -> tuple[dict[str, list[Evaluation]], dict[str, list[Path]]]:
    """Evaluations by label, and the runs among the sources by the label of their first evaluation."""
    from covis.evaluation.result import Evaluation, find_evaluations

    groups: dict[str, list[Evaluation]] = {}
    runs: dict[str, list[Path]] = {}
    for source in sources:
        is_run = (source / "run.json").is_file()
        found = [Evaluation.open(p) for p in find_evaluations(source)]
        for evaluation in found:
            groups.setdefault(evaluation.label, []).append(evaluation)
        if is_run:
            runs.setdefault(found[0].label, []).append(source)
    return groups, runs
