"""`covis report`: evaluations and runs as one HTML file, or one of its figures as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covis.cli.common import Data, Json, emit, existing
from covis.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.evaluation import Evaluation

PICTURES = (".png", ".svg", ".pdf")


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(callback=existing, help="Folders of `covis evaluate`, or runs with evaluations below."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.html; FILE.png, .svg or .pdf with --figure.")],
    data: Data = None,
    figure: Annotated[
        str,
        typer.Option(
            help="Only this figure: recall, precision, radius, distance, sizes, overlap, differences, activations; training, batches of runs."
        ),
    ] = "",
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    width: Annotated[
        float | None, typer.Option(min=0.5, help="Width of a --figure in inches, such as 3.25 for one column.")
    ] = None,
    no_title: Annotated[bool, typer.Option("--no-title", help="A --figure without titles, for a paper.")] = False,
    json: Json = False,
) -> None:
    """Write a self-contained report: tables, curves, map of right and wrong queries, gallery, what models see.

    Runs that differ only in their seed are averaged; two configurations never are, whatever their folders are called.

    \b
    Examples:
      covis report evals/cl evals/gcl -o report.html
      covis report runs/quick -o report.html --data /data/msls
      covis report evals/cl evals/gcl -o recall.pdf --figure recall --width 3.25 --no-title
      covis report runs/cl runs/gcl -o maps.png --figure activations
    """
    _check(output, figure, width, no_title)
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
        save(FIGURES[figure](groups, runs, path), output, width_in=width, titles=not no_title)
    else:
        first = next(iter(groups.values()))[0]
        benchmark = load_benchmark(first.benchmark, path)
        write_report(
            output, groups, benchmark, runs=runs or None, data=path, title=title or f"Evaluation on {first.benchmark}"
        )
    emit({"report": str(output), "models": list(groups)}, json, f"{output}: {', '.join(groups)}")


def _check(output: Path, figure: str, width: float | None, no_title: bool) -> None:
    """Refuses a page under a picture's name, and options that would do nothing."""
    picture = output.suffix.lower() in PICTURES
    if figure and not picture:
        raise InputError(f"{output} is no picture; give a name that ends in {', '.join(PICTURES)}")
    if not figure and picture:
        raise InputError(f"{output} is a picture: add --figure NAME (such as recall), or write the page as FILE.html")
    if not figure and (width is not None or no_title):
        raise InputError("--width and --no-title are for one --figure; add --figure NAME")


def _gather(sources: list[Path]) -> tuple[dict[str, list[Evaluation]], dict[str, list[Path]]]:
    """Evaluations by the name of their configuration, and the runs among the sources by the same names."""
    from covis.evaluation.result import Evaluation, find_evaluations
    from covis.evaluation.subjects import grouped

    opened = [(source, [Evaluation.open(path) for path in find_evaluations(source)]) for source in sources]
    groups = grouped([evaluation for _, found in opened for evaluation in found])
    name_of = {id(evaluation): name for name, group in groups.items() for evaluation in group}
    runs: dict[str, list[Path]] = {}
    for source, found in opened:
        if (source / "run.json").is_file() and id(found[0]) in name_of:
            runs.setdefault(name_of[id(found[0])], []).append(source)
    return groups, runs
