"""`covis evaluate`: models scored on benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from covis.cli.names import check_name, known_names
from covis.cli.options import MODEL_HELP, Checkpoint, DataPath, FrameOption, Json, existing_model
from covis.cli.output import emit
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covis.evaluation import Evaluation
    from covis.evaluation.run import Variants

SWEEP, _NONE = "sweep", "none"
PAIR_LABELS = ("none", "graded", "binary", "nearest")


def _check_model(path: Path) -> Path | None:
    """Checks that the model exists; an error says so if a benchmark was given in its place."""
    if not path.exists() and str(path) in known_names("benchmark"):
        raise InputError(f"{path} is a benchmark; the model comes first: covis evaluate MODEL {path}")
    return existing_model(path)


def _is_model(name: str) -> bool:
    """Whether a word that may be a benchmark is a model: a path or a model's name that is no benchmark's."""
    from covis.models.published import is_published

    return name not in known_names("benchmark") and (Path(name).exists() or is_published(name))


def _check_benchmarks(given: list[str]) -> list[str]:
    """Checks that these are benchmarks, with further models before them."""
    for name in given:
        if not _is_model(name):
            check_name("benchmark", name)
    return given


def _check_rerank(given: str | None) -> str | None:
    if given:
        check_name("re-ranker", given.partition(":")[0])
    return given


def _check_whiten(given: list[str] | None) -> list[str] | None:
    for value in given or ():
        size, _, labels = value.partition(":")
        if size not in (SWEEP, _NONE) and not (size.isdigit() and int(size) > 0):
            raise InputError(f"--whiten {size!r} is not a number of dimensions; give 1 or more, `none` or `sweep`")
        if labels and labels not in PAIR_LABELS:
            raise unknown_name("whitening labels", labels, PAIR_LABELS)
    return given


def _check_fit(given: str) -> str:
    if given not in ("map", "train") and not Path(given).exists():
        raise unknown_name("--fit", given, ("map", "train", "a table or folder of images"))
    return given


@verb("evaluate", section=TRAIN, order=3)
def evaluate(
    model: Annotated[Path, Argument(callback=_check_model, help=MODEL_HELP)],
    benchmarks: Annotated[
        list[str],
        Argument(callback=_check_benchmarks, help="Names of `covis list benchmarks`; more models may come before."),
    ],
    data: DataPath = None,
    output: Annotated[
        Path | None, Option("-o", "--out", help="The evaluation's folder; of several, one each below it.")
    ] = None,
    whiten: Annotated[
        list[str] | None,
        Option(
            callback=_check_whiten,
            metavar="DIM[:LABELS]",
            help="Whiten to DIM dimensions; repeatable, also `none`; `sweep`: none, 32, 64, … full. LABELS: learn it from "
            "pairs of one place: graded (by overlap of views), binary (within 25 m and 40°) or nearest (by descriptor, "
            "without poses) instead of PCA.",
        ),
    ] = None,
    fit: Annotated[
        str,
        Option(
            callback=_check_fit,
            metavar="map|train|IMAGES",
            help="Images that the whitening is fitted on; or a table or folder.",
        ),
    ] = "map",
    rerank: Annotated[
        str | None, Option(callback=_check_rerank, help="Re-rank: a name of `covis list rerankers`, or local:sift.")
    ] = None,
    rerank_depth: Annotated[
        int | None, Option(min=1, help="Results per query to re-rank. [default: consensus 20, others 50]")
    ] = None,
    frame: FrameOption = "",
    weights: Checkpoint = None,
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
      covis evaluate MODEL msls_val --data /data/msls --whiten 512:graded --fit train
      covis evaluate MODEL town --rerank patches --rerank-depth 100 -o evals/patches
      covis evaluate MODEL msls_test --data /data/msls -o submission
      covis evaluate theirs.npy table --data photos.csv -o evals/theirs
      covis evaluate megaloc salad table --data photos.csv -o evals
      covis evaluate MODEL table --data country.csv --frame EPSG:3035
    """
    from covis.describing.describers import find_describer
    from covis.describing.named import named_model

    count = next((i for i, name in enumerate(benchmarks) if not _is_model(name)), len(benchmarks))
    models, names = [model, *map(Path, benchmarks[:count])], benchmarks[count:]
    if not names:
        raise InputError(f"no benchmark is named after {models[-1]}; choose one from covis list benchmarks")
    if weights is not None and len(models) > 1:
        raise InputError("--weights is of one model; evaluate the others separately")
    models = [named_model(path, weights) for path in models]
    labels = {find_describer(path).label: path for path in models}  # before anything heavy is imported
    if len(labels) < len(models):
        raise InputError(
            "two of these models have the same name, so their folders would collide; evaluate one at a time"
        )
    from covis.datasets import given_paths
    from covis.describing.describers import open_describer
    from covis.evaluation import BENCHMARKS, load_benchmark
    from covis.evaluation.run import evaluate_all
    from covis.poses import parse_frame

    variants = _variants(whiten or [], fit, rerank, rerank_depth)
    paths, metres = given_paths(data, (BENCHMARKS[name].dataset for name in names)), parse_frame(frame)
    loaded = [load_benchmark(name, paths, frame=metres) for name in names]
    results: list[Evaluation | dict[str, Any]] = []
    for label, path in labels.items():
        folder = output if output is None or len(labels) == 1 else output / label
        results += evaluate_all(open_describer(path), loaded, folder, variants)
    _print_results(results, output, json)


def _variants(whiten: list[str], fit: str, rerank: str | None, depth: int | None) -> Variants:
    from covis.core.settings import build_value
    from covis.evaluation.run import Variants
    from covis.reading.sources import list_images
    from covis.whitening import WhiteningRule

    reranker = None
    if rerank:
        from covis.describing.rerankers import open_reranker

        reranker = open_reranker(rerank, depth)
        reranker.facts()  # missing weights are an error before the work starts
    kinds = {labels for size, _, labels in (value.partition(":") for value in whiten) if size != _NONE}
    if len(kinds) > 1:
        raise InputError("the whitenings of one command share their labels; evaluate the others separately")
    sizes = [value.partition(":")[0] for value in whiten]
    return Variants(
        tuple(None if size == _NONE else int(size) for size in sizes if size != SWEEP) or (None,),
        sweep=SWEEP in sizes,
        fit="map" if fit == "map" else "train",
        training=None if fit in ("map", "train") else list_images(Path(fit)),
        whitening=build_value(WhiteningRule, {"labels": next(iter(kinds), "") or "none"}, []),
        rerank=reranker,
    )


def _print_results(results: Sequence[Evaluation | dict[str, Any]], output: Path | None, json: bool) -> None:
    from covis.evaluation.render import evaluation_text

    data, text, scored = [], [], []
    for result in results:
        if isinstance(result, dict):
            data.append(result)
            text.append(f"{result['benchmark']}: {result['submission']} passed the check and is ready to upload")
        else:
            data.append(result.json())
            text.append(evaluation_text(result))
            scored.append(result.benchmark)
    if output is not None:
        text.append(f"written to {output}")
    then = report_command([output], scored) if output else "the same with -o FOLDER, to compare and report it"
    emit(data[0] if len(data) == 1 else data, json, "\n\n".join(text), then)


def report_command(sources: Sequence[Path], benchmarks: Sequence[str]) -> str:
    """The command for a report of evaluations, on the first of their benchmarks if there are several."""
    chosen = f" --benchmark {benchmarks[0]}" if len(set(benchmarks)) > 1 else ""
    return f"covis report {' '.join(map(str, sources))} -o report.html{chosen}"
