"""`covis rerank`: what looking twice at the best results gains, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covis.cli.common import Json, emit, table


def rerank(
    model: Annotated[Path, typer.Argument(help="A model or run folder.")],
    benchmark: Annotated[str, typer.Argument(help="A name from `covis list benchmarks`.")],
    data: Annotated[Path | None, typer.Option(help="Where the data lies; not needed for the town.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for both evaluations, `plain` and `reranked`.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Results of each query to look at again.")] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one a core, at most 8).")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for embeddings (default: the user's cache).")] = None,
    json: Json = False,
) -> None:
    """Score a model without and with re-ranking by patches of its own last map; recall and cost side by side.

    \b
    Examples:
      covis rerank runs/quick/model town -o reranked
      covis rerank MODEL table --data photos.csv --depth 100
    """
    from covis.describing.describers import ModelDescriber, open_describer
    from covis.describing.patches import evaluate_reranked
    from covis.errors import InputError
    from covis.evaluation import load_benchmark
    from covis.search.rerank import DEPTH

    source = open_describer(model, workers=workers, cache=cache)
    if not isinstance(source, ModelDescriber):
        raise InputError(f"{model} is not a model; re-ranking needs one to look at the images again")
    if output and output.exists():
        raise InputError(f"{output} exists already; choose another output or remove it")
    plain, better = evaluate_reranked(source, load_benchmark(benchmark, data), depth=depth or DEPTH)
    if output:
        plain.save(output / "plain")
        better.save(output / "reranked")
    cost = better.figures["rerank"]
    rows = [
        {"": name, **{f"R@{k} %": f"{v:.1f}" for k, v in evaluation.recall.items()}}
        for name, evaluation in (("plain", plain), (f"re-ranked, first {cost['depth']}", better))
    ]
    price = (
        f"cost: {cost['cpu_ms_a_query']:.3g} ms of CPU a query; once {cost['cpu_ms_an_image']:.3g} ms and "
        f"{cost['bytes_an_image'] / 1024:.3g} kB an image"
    )
    emit({"plain": plain.json(), "reranked": better.json(), "cost": cost}, json, f"{table(rows)}\n{price}")
