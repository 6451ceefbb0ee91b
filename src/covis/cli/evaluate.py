"""`covis evaluate`, `covis compare`, `covis submission check`: figures, their significance, files for servers."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import (
    MODEL_HELP,
    DataPath,
    Device,
    FrameOption,
    Json,
    Workers,
    choice_of,
    emit,
    existing,
    existing_model,
    named,
)
from covis.cli.names import check_name, known_names
from covis.core.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.evaluation import Evaluation
    from covis.evaluation.run import Variants
    from covis.whitening import WhiteningRule

_PICTURES = (".png", ".svg", ".pdf")
FIGURE_CHOICES = (
    "recall",
    "precision",
    "radius",
    "distance",
    "sizes",
    "gains",
    "differences",
    "activations",
    "overlap",
    "training",
    "batches",
)
PAIR_LABELS = ("none", "graded", "binary", "nearest")
FORMAT_CHOICES = ("text", "markdown", "latex", "csv")
TableFormat = Annotated[
    str,
    typer.Option(
        "--format",
        callback=choice_of("--format", FORMAT_CHOICES),
        help="Tables as text, markdown, latex (booktabs) or csv.",
    ),
]
Evaluations = Annotated[
    list[Path],
    typer.Argument(callback=existing, help="Folders of `covis evaluate`, folders that hold some, or runs."),
]


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(callback=existing, help="Folders of `covis evaluate`, or runs with evaluations below."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.html; FILE.png, .svg or .pdf with --figure.")],
    data: DataPath = None,
    figure: Annotated[
        str,
        typer.Option(
            callback=choice_of("--figure", ("", *FIGURE_CHOICES)),
            help=f"Only this figure: {', '.join(FIGURE_CHOICES)} (the last three of runs).",
        ),
    ] = "",
    benchmark: Annotated[
        str, typer.Option(help="Only evaluations on this benchmark, if runs were scored on several.")
    ] = "",
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    width: Annotated[
        float | None, typer.Option(min=0.5, help="Width of a --figure in inches, such as 3.25 for one column.")
    ] = None,
    no_title: Annotated[bool, typer.Option("--no-title", help="A --figure without titles, for a paper.")] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Write a report page: tables, curves, maps, galleries. One self-contained HTML file.

    Runs that differ only in their seed are averaged; different configurations never are, whatever their folders are called.

    \b
    Examples:
      covis report evals/cl evals/gcl -o report.html
      covis report runs/quick -o report.html --data /data/msls
      covis report evals/cl evals/gcl -o recall.pdf --figure recall --width 3.25 --no-title
      covis report runs/cl runs/gcl -o maps.png --figure activations
      covis report paper/runs/*/seed-0 -o report.html --benchmark msls_val --data /data/msls
    """
    _check(output, figure, width, no_title)
    from covis.datasets import given_paths
    from covis.evaluation import BENCHMARKS, load_benchmark
    from covis.report import sections, write_report
    from covis.report.plots import save

    groups, runs = _gather(sources, benchmark)
    protocol = BENCHMARKS[next(iter(groups.values()))[0].benchmark]
    path = given_paths(data, [protocol.dataset]).get(protocol.dataset)
    if figure:
        save(sections.FIGURES[figure](groups, runs, path), output, width_in=width, titles=not no_title)
    else:
        first = next(iter(groups.values()))[0]
        loaded = load_benchmark(first.benchmark, path, frame=first.protocol.get("frame", ""))
        write_report(
            output, groups, loaded, runs=runs or None, data=path, title=title or f"Evaluation on {first.benchmark}"
        )
    then = "" if figure else f"open {output} in a browser"
    emit({"report": str(output), "models": list(groups)}, json, f"{output}: {', '.join(groups)}", then)


def _check(output: Path, figure: str, width: float | None, no_title: bool) -> None:
    """Refuses a page under a picture's name, and options that would do nothing."""
    picture = output.suffix.lower() in _PICTURES
    if figure and not picture:
        raise InputError(f"{output} is not a picture; give a name that ends in {', '.join(_PICTURES)}")
    if not figure and picture:
        raise InputError(f"{output} is a picture: add --figure NAME (such as recall), or write the page as FILE.html")
    if not figure and (width is not None or no_title):
        raise InputError("--width and --no-title are for one --figure; add --figure NAME")


def _gather(sources: list[Path], benchmark: str) -> tuple[dict[str, list[Evaluation]], dict[str, list[Path]]]:
    """Evaluations on one benchmark by the name of their configuration, and the runs among the sources by the same names."""
    from covis.evaluation.compare import grouped
    from covis.evaluation.result import Evaluation, find_evaluations

    opened = [(source, [Evaluation.open(path) for path in find_evaluations(source)]) for source in sources]
    known = list(dict.fromkeys(evaluation.benchmark for _, evaluations in opened for evaluation in evaluations))
    if benchmark and benchmark not in known:
        raise unknown_name("benchmark of these evaluations", benchmark, known)
    if len(known) > 1 and not benchmark:
        raise InputError(f"these were scored on {', '.join(known)}; choose one, such as --benchmark {known[0]}")
    opened = [
        (source, [e for e in evaluations if e.benchmark == (benchmark or known[0])]) for source, evaluations in opened
    ]
    groups = grouped([evaluation for _, evaluations in opened for evaluation in evaluations])
    name_of = {id(evaluation): name for name, group in groups.items() for evaluation in group}
    runs: dict[str, list[Path]] = {}
    for source, evaluations in opened:
        if (source / "run.json").is_file() and evaluations and id(evaluations[0]) in name_of:
            runs.setdefault(name_of[id(evaluations[0])], []).append(source)
    return groups, runs


# `covis evaluate`, `covis compare`, `covis submission check`: figures, their significance, files for servers.


SWEEP, _PLAIN, _ALL = "sweep", "none", "all"


def _check_model(path: Path) -> Path | None:
    """Checks that the model exists; an error says so if a benchmark was given in its place."""
    if not path.exists() and str(path) in known_names("benchmark"):
        raise InputError(f"{path} is a benchmark; the model comes first: covis evaluate MODEL {path}")
    return existing_model(path)


def _check_rerank(given: str | None) -> str | None:
    if given is not None:
        check_name("re-ranker", given.partition(":")[0])
    return given


def _check_sizes(given: list[str] | None) -> list[str] | None:
    wrong = [
        value for value in given or () if value not in (SWEEP, _PLAIN) and not (value.isdigit() and int(value) > 0)
    ]
    if wrong:
        raise InputError(f"--whiten {wrong[0]!r} is not a number of dimensions; give 1 or more, `none` or `sweep`")
    return given


def _check_benchmarks(given: list[str]) -> list[str]:
    """Checks that these are benchmarks, with paths of further models before them, before anything is imported."""
    known = known_names("benchmark")
    for name in given:
        if name not in known and not Path(name).exists():
            raise unknown_name("benchmark", name, known)
    return given


def evaluate(
    model: Annotated[Path, typer.Argument(callback=_check_model, help=MODEL_HELP)],
    benchmarks: Annotated[
        list[str],
        typer.Argument(
            callback=_check_benchmarks, help="Names from `covis list benchmarks`; more models may come before them."
        ),
    ],
    data: DataPath = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The evaluation's folder; with several, one each below it (by model, by benchmark)."
        ),
    ] = None,
    whiten: Annotated[
        list[str] | None,
        typer.Option(
            callback=_check_sizes,
            help="Number of dimensions after whitening; repeatable, also `none`; `sweep`: none, 32, 64, … full.",
        ),
    ] = None,
    fit: Annotated[
        str,
        typer.Option(
            callback=choice_of("--fit", ("map", "train")),
            help="Fit the whitening on images of the `map` or of the `train` split.",
        ),
    ] = "map",
    train_data: Annotated[
        Path | None,
        typer.Option(callback=existing, help="Table or folder of images for --fit train, instead of the train split."),
    ] = None,
    fit_images: Annotated[
        str, typer.Option(help="Maximum number of images to fit the whitening on; `all` as the method's authors did.")
    ] = "10000",
    whiten_labels: Annotated[
        str | None,
        typer.Option(
            callback=choice_of("--whiten-labels", PAIR_LABELS),
            help="Learn the whitening from pairs of one place: graded (by overlap of views), "
            "binary (within 25 m and 40°), nearest (by descriptor, without poses) or none (PCA, the default).",
        ),
    ] = None,
    whiten_share: Annotated[
        float | None,
        typer.Option(help="Weight of the total covariance against that of the labelled pairs (default: 0.1)."),
    ] = None,
    whiten_exponent: Annotated[
        float | None, typer.Option(help="Weight of a graded pair: its overlap to this power (default: 2).")
    ] = None,
    whiten_power: Annotated[
        float | None,
        typer.Option(help="Power of the variance to divide by (1: full whitening; 0.75 suits few images)."),
    ] = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            callback=_check_rerank,
            help="Re-rank the results: consensus (agreement of positions), patches, or local:sift|xfeat|alike "
            "(local features and geometry; weights as local:xfeat=FILE).",
        ),
    ] = None,
    rerank_depth: Annotated[
        int | None, typer.Option(min=1, help="Results per query to re-rank (default: consensus 20, others 50).")
    ] = None,
    pose: Annotated[
        bool, typer.Option("--pose", help="Also estimate each query's full pose (6DOF) from its results, and score it.")
    ] = False,
    scene: Annotated[
        Path | None,
        typer.Option(callback=existing, help="pose: COLMAP model of the map's images. [default: depth beside them]"),
    ] = None,
    pose_depth: Annotated[int, typer.Option(min=1, help="pose: results per query whose features are matched.")] = 5,
    frame: FrameOption = "",
    batch_size: Annotated[int, typer.Option(help="Images in one batch.")] = 32,
    workers: Workers = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for embeddings (default: the user's cache).")] = None,
    device: Device = None,
    published: Annotated[
        bool, typer.Option("--published", help="Also show the published figures of the method.")
    ] = False,
    json: Json = False,
) -> None:
    """Score models on benchmarks, with confidence intervals. Writes a submission file where the ground truth is hidden.

    \b
    Examples:
      covis evaluate runs/quick/model town -o evals/quick
      covis evaluate runs/cl runs/gcl netvlad town -o evals
      covis evaluate MODEL msls_val pitts30k_test --data msls=/data/msls --data pitts30k=/data/pitts -o evals/m
      covis evaluate MODEL msls_val --data /data/msls --whiten sweep --fit train -o evals/sweep
      covis evaluate MODEL table --data photos.csv --rerank consensus
      covis evaluate MODEL photos_new_walks --data photos/ --whiten 512 --fit map --whiten-labels graded
      covis evaluate MODEL town --rerank patches --rerank-depth 100 -o evals/patches
      covis evaluate MODEL town --rerank local:sift
      covis evaluate MODEL 7scenes_stairs --data /data/7scenes --pose -o evals/stairs
      covis evaluate MODEL msls_test --data /data/msls -o submission
      covis evaluate theirs.npy table --data photos.csv -o evals/theirs
      covis evaluate MODEL table --data country.csv --frame EPSG:3035
    """
    from covis.describing.describers import find_describer, open_describer

    find_describer(model)  # before anything heavy is imported
    from covis.evaluation import BENCHMARKS

    models, benchmarks = _models_and_benchmarks(model, benchmarks, BENCHMARKS)
    labels = {find_describer(path).label: path for path in models}
    if len(labels) < len(models):
        raise InputError(
            "two of these models have the same name, so their folders would collide; evaluate them one by one"
        )
    from covis.datasets import given_paths
    from covis.evaluation import load_benchmark
    from covis.evaluation.render import evaluation_text
    from covis.evaluation.run import evaluate_to, submit
    from covis.poses import parse_frame

    paths = given_paths(data, (BENCHMARKS[name].dataset for name in benchmarks))
    rule = _whitening_rule(whiten_labels, whiten_exponent, whiten_share, whiten_power)
    variants = replace(_variants(whiten or [], fit, train_data, fit_images), whitening=rule)
    if not whiten and (whiten_labels, whiten_power) != (None, None):
        raise InputError("--whiten-labels and --whiten-power shape a whitening; add --whiten DIM")
    if rerank:
        from covis.describing.rerankers import open_reranker

        reranker = open_reranker(rerank, rerank_depth)
        reranker.facts()  # missing weights are an error before the work starts
        variants = replace(variants, rerank=reranker)
    if scene is not None and not pose:
        raise InputError("--scene goes with --pose")
    if pose:
        from covis.field.resection import ByResection

        variants = replace(variants, pose=ByResection(scene, pose_depth))
    printed: list[dict[str, Any]] = []
    text: list[str] = []
    metres = parse_frame(frame)
    loaded = {name: load_benchmark(name, paths, frame=metres) for name in benchmarks}
    for (label, path), (name, benchmark) in itertools.product(labels.items(), loaded.items()):
        source = open_describer(path, batch_size, workers, cache)
        folder = output if output is None or len(labels) == 1 else output / label
        if benchmark.relevance is None and pose:
            raise InputError(
                f"the ground truth of {name!r} is hidden, so poses cannot be scored here; leave --pose out"
            )
        if benchmark.relevance is None:
            target = _submission_folder(folder, name, len(benchmarks))
            printed.append(submit(source, benchmark, target, variants))
            text.append(f"{name}: {printed[-1]['submission']} passed the check and is ready to upload")
            continue
        for evaluation in evaluate_to(source, benchmark, folder, variants, alone=len(benchmarks) == 1):
            printed.append(evaluation.json())
            text.append(evaluation_text(evaluation, published))
            if published:
                from covis.evaluation.published import beside

                printed[-1]["published"] = beside(evaluation)
    if output is not None:
        text.append(f"written to {output}")
    scored = [one["benchmark"] for one in printed if "submission" not in one]
    then = _report_command([output], scored) if output else "the same with -o FOLDER, to compare and report it"
    emit(printed[0] if len(printed) == 1 else printed, json, "\n\n".join(text), then)


def _report_command(sources: list[Path], benchmarks: list[str]) -> str:
    """The command for a report of evaluations, on the first of their benchmarks if there are several."""
    chosen = f" --benchmark {benchmarks[0]}" if len(set(benchmarks)) > 1 else ""
    return f"covis report {' '.join(map(str, sources))} -o report.html{chosen}"


def compare(
    evaluations: Evaluations,
    dress: TableFormat = "text",
    json: Json = False,
) -> None:
    """Compare evaluations with paired significance tests. Also shows what differs between the runs.

    Only evaluations of the same protocol are ranked against each other.

    \b
    Examples:
      covis compare evals/cl evals/gcl
      covis compare runs/cl runs/gcl --format latex
      covis compare evals/sweep --json
    """
    from covis.evaluation.compare import compare as compared
    from covis.evaluation.render import comparison_text
    from covis.evaluation.result import Evaluation, find_evaluations

    opened = [Evaluation.open(path) for given in evaluations for path in find_evaluations(given)]
    result = compared(opened)
    then = _report_command(evaluations, [evaluation.benchmark for evaluation in opened]) if dress == "text" else ""
    emit(result, json, comparison_text(result, dress), then)


def leaderboard(
    evaluations: Evaluations,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="FILE.html to write.")] = None,
    dress: TableFormat = "text",
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Leaderboard",
    no_timing: Annotated[bool, typer.Option("--no-timing", help="Do not time the models on this machine.")] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Rank evaluated models, one table per protocol. With dimensions, time and memory per photo, size and licence.

    \b
    Examples:
      covis leaderboard evals -o board.html
      covis leaderboard evals/cl evals/gcl --format markdown --no-timing
    """
    from covis.evaluation.render import TABLE_FORMATS, beside_table
    from covis.evaluation.result import Evaluation, find_evaluations
    from covis.report import page as board

    if output is not None and output.suffix != ".html":
        raise InputError(f"--output {output} is a page; give FILE.html")
    opened = [Evaluation.open(path) for given in evaluations for path in find_evaluations(given)]
    ranked = board.leaderboard(opened, timed=not no_timing)
    if output is not None:
        board.write_leaderboard(output, ranked, title)
    write = TABLE_FORMATS[dress]
    boards = [
        f"{beside_table(board.heading(one), dress)}\n{write(board.protocol_rows(one), board.BEST_ON_BOARD)}"
        for one in ranked["boards"]
    ]
    emit(ranked, json, "\n\n".join([*boards, *([] if output is None else [f"{output}: {len(opened)} evaluations"])]))


def submission_check(
    benchmark: Annotated[
        str, typer.Argument(callback=named("benchmark"), help="msls_test, robotcar_v2, cmu_extended, …")
    ],
    file: Annotated[Path, typer.Argument(callback=existing, help="The file that is to be uploaded.")],
    data: DataPath = None,
    json: Json = False,
) -> None:
    """Check a submission file before uploading it. Every fault is listed.

    \b
    Examples:
      covis submission check msls_test predictions.zip --data /data/msls
      covis submission check robotcar_v2 poses.txt --data /data/robotcar
    """
    from covis.datasets import given_paths
    from covis.evaluation import BENCHMARKS, load_benchmark
    from covis.evaluation.submissions import check_submission

    paths = given_paths(data, [BENCHMARKS[benchmark].dataset])
    problems = check_submission(file, load_benchmark(benchmark, paths))
    emit({"file": str(file), "benchmark": benchmark, "problems": problems}, json, "\n".join(problems))
    if problems:
        raise InputError(f"{file} has {len(problems)} faults; fix them before uploading (the first: {problems[0]})")


def _models_and_benchmarks(model: Path, names: list[str], benchmarks: Collection[str]) -> tuple[list[Path], list[str]]:
    """The models, and the benchmarks after them: an existing path that is no benchmark's name is a model."""
    models = [model]
    while names and names[0] not in benchmarks and Path(names[0]).exists():
        models.append(Path(names[0]))
        names = names[1:]
    if not names:
        raise InputError(f"no benchmark is named after {models[-1]}; choose one from covis list benchmarks")
    return models, names


def _whitening_rule(
    labels: str | None, exponent: float | None, share: float | None, power: float | None
) -> WhiteningRule:
    from covis.whitening import WhiteningRule

    if labels in (None, "none") and (exponent is not None or share is not None):
        raise InputError("--whiten-exponent and --whiten-share weigh labelled pairs; add --whiten-labels graded")
    given = {"labels": labels, "exponent": exponent, "total_share": share, "power": power}
    return WhiteningRule(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def _variants(whiten: list[str], fit: str, train_data: Path | None, fit_images: str) -> Variants:
    from covis.cli.model import images_at
    from covis.evaluation.run import Variants

    if fit_images != _ALL and not (fit_images.isdigit() and int(fit_images) > 1):
        raise InputError(f"--fit-images {fit_images!r} is not a number of images; give 2 or more, or `all`")
    sizes = tuple(None if value == _PLAIN else int(value) for value in whiten if value != SWEEP) or (None,)
    training = None if train_data is None else images_at(train_data)
    return Variants(
        sizes,
        sweep=SWEEP in whiten,
        fit="train" if fit == "train" else "map",
        fit_images=None if fit_images == _ALL else int(fit_images),
        training=training,
    )


def _submission_folder(output: Path | None, name: str, count: int) -> Path:
    if output is None:
        raise InputError(f"the ground truth of {name!r} is hidden, so a submission file is written; give -o FOLDER")
    return output if count == 1 else output / name
