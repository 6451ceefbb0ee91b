"""`covis report`: evaluations as a page, or one figure of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from covis.cli.options import DataPath, Json, existing
from covis.cli.output import emit
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.evaluation import Evaluation

_PICTURES = (".png", ".svg", ".pdf")
FigureName = Literal[
    "recall", "distance", "sizes", "gains", "differences", "activations", "overlap", "training", "batches"
]


@verb("report", section=TRAIN, order=5)
def report(
    sources: Annotated[
        list[Path], Argument(callback=existing, help="Folders of `covis evaluate`, or runs with evaluations below.")
    ],
    output: Annotated[Path, Option("-o", "--out", help="FILE.html; FILE.png, .svg or .pdf with --figure.")],
    data: DataPath = None,
    figure: Annotated[FigureName | None, Option(help="Only this figure (the last three are of runs).")] = None,
    benchmark: Annotated[str, Option(help="Only evaluations on this benchmark, if there are several.")] = "",
    width: Annotated[float | None, Option(min=0.5, help="Width of a --figure in inches, such as 3.25.")] = None,
    json: Json = False,
) -> None:
    """Write a report page: tables, curves, maps, galleries. One self-contained HTML file.

    Runs that differ only in their seed are averaged; different configurations never are, whatever their folders are called.

    \b
    Examples:
      covis report evals/cl evals/gcl -o report.html
      covis report runs/quick -o report.html --data /data/msls
      covis report evals/cl evals/gcl -o recall.pdf --figure recall --width 3.25
      covis report runs/cl runs/gcl -o maps.png --figure activations
      covis report paper/runs/*/seed-0 -o report.html --benchmark msls_val --data /data/msls
    """
    picture = output.suffix.lower() in _PICTURES
    if figure and not picture:
        raise InputError(f"{output} is not a picture; give a name that ends in {', '.join(_PICTURES)}")
    if not figure and (picture or width is not None):
        raise InputError(f"{output}: a picture or --width needs --figure NAME (such as recall); a page is FILE.html")
    from covis.datasets import given_paths
    from covis.evaluation import BENCHMARKS
    from covis.report import write_report
    from covis.report.figures import FIGURES
    from covis.report.study import Study
    from covis.report.style import save

    groups, runs = _group_evaluations(sources, benchmark)
    dataset = BENCHMARKS[next(iter(groups.values()))[0].benchmark].dataset
    study = Study(groups, runs, given_paths(data, [dataset]).get(dataset))
    if figure:
        save(FIGURES[figure].draw(study), output, width_in=width)
    else:
        write_report(output, groups, study.benchmark, runs=runs, data=study.data)
    then = "" if figure else f"open {output} in a browser"
    emit({"report": str(output), "models": list(groups)}, json, f"{output}: {', '.join(groups)}", then)


def _group_evaluations(
    sources: list[Path], benchmark: str
) -> tuple[dict[str, list[Evaluation]], dict[str, list[Path]]]:
    """Evaluations on one benchmark by the name of their configuration, and runs among the sources by the same names."""
    from covis.evaluation.configurations import grouped
    from covis.evaluation.result import Evaluation, find_evaluations

    found = [(source, Evaluation.open(path)) for source in sources for path in find_evaluations(source)]
    known = list(dict.fromkeys(evaluation.benchmark for _, evaluation in found))
    if benchmark and benchmark not in known:
        raise unknown_name("benchmark of these evaluations", benchmark, known)
    if len(known) > 1 and not benchmark:
        raise InputError(f"these were scored on {', '.join(known)}; choose one, such as --benchmark {known[0]}")
    chosen = [(source, evaluation) for source, evaluation in found if evaluation.benchmark == (benchmark or known[0])]
    groups = grouped([evaluation for _, evaluation in chosen])
    name_of = {id(evaluation): name for name, group in groups.items() for evaluation in group}
    runs: dict[str, list[Path]] = {}
    for source, evaluation in chosen:
        folders = runs.setdefault(name_of.get(id(evaluation), ""), [])
        if (source / "run.json").is_file() and source not in folders:
            folders.append(source)
    return groups, {name: folders for name, folders in runs.items() if name and folders}
