"""`covis train`: a recipe on a dataset, into a run folder that resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from covis.cli.common import WORKERS_HELP, Data, Device, Json, emit
from covis.errors import InputError


def train(
    recipe: Annotated[str, typer.Argument(help="A name from `covis list recipes`, or a file (.toml, .json).")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run folder; RUN/model is the trained model.")
    ] = None,
    data: Data = None,
    seed: Annotated[int, typer.Option(help="Decides batches and initial weights.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a field: FIELD=VALUE, repeatable.")] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for cached features.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 60.0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the recipe as JSON that `covis train FILE.json` reads back, and stop."),
    ] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Train a model. Killed or stopped at any point, re-run it to resume at the last checkpoint.

    \b
    Examples:
      covis train town_quick -o runs/quick
      covis train msls_resnet50_gem_gcl --data /data/msls -o runs/r50 --seed 1
      covis train town_gcl -o runs/iou --set labels.measure=iou --set loss.margin=0.7
      covis train town_gcl --set loss=triplet --set batches=tuples --dry-run > mine.json
      covis train mine.json -o runs/mine
      torchrun --nproc-per-node 4 -m covis train msls_vgg16_gem_gcl --data /data/msls -o runs/vgg
    """
    from covis import experiments
    from covis.datasets import given_paths
    from covis.training.recipe import configure, describe_recipe
    from covis.training.run import Resources
    from covis.training.run import train as run

    chosen = configure(experiments.get(recipe), set_ or [])
    if dry_run:
        emit(describe_recipe(chosen), True)
        return
    if output is None:
        raise InputError(f"give a folder for the run: covis train {recipe} -o RUN")
    resources = Resources(workers, cache, checkpoint_seconds)
    path = given_paths(data, [chosen.dataset]).get(chosen.dataset)
    result: dict[str, Any] = run(chosen, output, data=path, seed=seed, resources=resources)
    best = "".join(f"  Recall@{k} {v:.1f}" for k, v in result["best"].items() if k != "step")
    emit(
        result,
        json,
        f"{result['model']}: {result['dim']} dims, {result['pairs']} pairs{best and ', validation' + best}",
    )
