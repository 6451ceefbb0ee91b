"""`covis verify`: numbers that authors print for their models, against what comes out here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from covis.cli.options import Checkpoint, DataPath, Json, named
from covis.cli.output import emit, table
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError
from covis.core.progress import say

if TYPE_CHECKING:
    from covis.evaluation.benchmark import Benchmark
    from covis.evaluation.published.known import KnownNumber


@verb("verify", section=TRAIN, order=8)
def verify(
    models: Annotated[
        list[str] | None,
        Argument(callback=named("published model"), help="Models of `covis list models`. [default: all with numbers]"),
    ] = None,
    data: DataPath = None,
    output: Annotated[Path | None, Option("-o", "--out", help="Keep the evaluations here; re-run to resume.")] = None,
    weights: Checkpoint = None,
    tolerance: Annotated[float, Option(min=0, help="Points that a recall may differ.")] = 0.3,
    json: Json = False,
) -> None:
    """Check recalls that authors print for published models. Without --data, list them.

    Models are fetched, or taken from the cache's `weights` folder. The exit code is 2 if a number is outside.

    \b
    Examples:
      covis verify
      covis verify salad boq_resnet50_16384 --data msls=/data/msls -o verified
      covis verify gcl_vgg16_gem --weights MSLS_vgg16_GeM_480_GCL.pth --data msls=/data/msls --data pitts30k=/data/pitts
    """
    from covis.datasets import given_paths
    from covis.evaluation import BENCHMARKS, load_benchmark
    from covis.evaluation.published.known import known_numbers

    known = [number for number in known_numbers() if not models or number.model in models]
    if weights is not None and len(models or []) != 1:
        raise InputError("--weights is the file of one model; name that model alone")
    paths = given_paths(data, dict.fromkeys(BENCHMARKS[number.benchmark].dataset for number in known))
    if not known:
        raise InputError(f"no printed number is known of {', '.join(models or [])}; covis verify lists those that are")
    found: dict[KnownNumber, dict[str, Any]] = {}
    for model, benchmark in dict.fromkeys((number.model, number.benchmark) for number in known):
        if BENCHMARKS[benchmark].dataset in paths:
            rows = [number for number in known if (number.model, number.benchmark) == (model, benchmark)]
            try:
                found |= _measure(rows, load_benchmark(benchmark, paths), output, weights, tolerance)
            except InputError as error:
                say(f"{model}, {benchmark}: {error}")
                found |= {row: {"result": "not run"} for row in rows}
    records = [_record(number) | found.get(number, {}) for number in known]
    emit(records, json, table([_row(record) for record in records]))
    if any(record.get("result", "within") not in ("within", "not run") for record in records):
        raise typer.Exit(2)


def _measure(
    rows: Sequence[KnownNumber], benchmark: Benchmark, output: Path | None, weights: Path | None, tolerance: float
) -> dict[KnownNumber, dict[str, Any]]:
    """What comes out for the printed numbers of one model on one benchmark."""
    from covis.describing.describers import open_describer
    from covis.describing.named import named_model
    from covis.evaluation.run import Variants, evaluate_to

    describer = open_describer(named_model(rows[0].model, weights))
    variants = Variants(tuple(row.whiten for row in rows), fit_images=None)
    folder = None if output is None else output / rows[0].model
    found = {}
    for evaluation in evaluate_to(describer, benchmark, folder, variants, alone=False):
        whitening = evaluation.subject["whitening"]
        row = next(row for row in rows if row.whiten == (whitening and whitening["dim"]))
        recall = evaluation.figures.recall_over(row.over)
        found[row] = {"covis": {k: recall[k] for k in row.recall}, "result": row.verdict(evaluation, tolerance)}
    return found


def _record(number: KnownNumber) -> dict[str, Any]:
    """A printed number and where its model's file is."""
    from covis.models.hub import hub_address
    from covis.models.pins import wanted_sha256
    from covis.models.published import PUBLISHED

    entry = PUBLISHED[number.model]
    place = entry.address or (hub_address(*entry.hub) if entry.hub else "")
    return {
        "model": number.model,
        "benchmark": number.benchmark,
        "whiten": number.whiten,
        "published": number.recall,
        "source": number.source,
        "file": place or entry.source,
        "sha256": wanted_sha256(entry.hub[0] if entry.hub else entry.address, ""),
    }


def _row(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": record["model"] + (f", whitened {record['whiten']}" if record["whiten"] else ""),
        "benchmark": record["benchmark"],
        **{
            f"{who} R@1/5/10": " / ".join(f"{v:.1f}" for v in record.get(who, {}).values())
            for who in ("published", "covis")
        },
        "result": record.get("result", ""),
        "source": record["source"],
    }
