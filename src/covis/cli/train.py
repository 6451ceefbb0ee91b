"""`covis train`: a recipe into a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covis.cli.options import Checkpoint, DataPath, Json, RecipeSet, existing_model, known_recipe
from covis.cli.output import emit
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.models import ModelConfig

_FINE_TUNE = "fine_tune"
"""The recipe of `covis train --init MODEL` alone."""


@verb("train", section=TRAIN, order=2)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            callback=known_recipe,
            help="A name from `covis list recipes`, or a file (.toml, .json). [default with --init: fine_tune]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder; RUN/model is the trained model.")
    ] = None,
    data: DataPath = None,
    init: Annotated[
        Path | None,
        typer.Option(
            callback=existing_model,
            help="Start from this model or run folder, or name from `covis list models`, instead of the recipe's network. Its last blocks are trained, its "
            "batch statistics stay fixed, and it is kept unless training improves the validation recall.",
        ),
    ] = None,
    weights: Checkpoint = None,
    seed: Annotated[int, typer.Option(help="Seed of batches and initial weights.")] = 0,
    set_: RecipeSet = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 60.0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the recipe as JSON that `covis train FILE.json` reads back, and stop."),
    ] = False,
    json: Json = False,
) -> None:
    """Train a model. If it is interrupted, re-run the command to resume from the last checkpoint.

    \b
    Examples:
      covis train town_quick -o runs/quick
      covis train msls_resnet50_gem_gcl --data /data/msls -o runs/r50 --seed 1
      covis train town_gcl -o runs/iou --set labels.measure=iou --set loss.margin=0.7
      covis train town_gcl --set loss=triplet --set batches=tuples --dry-run > mine.json
      covis train mine.json -o runs/mine
      covis train --init megaloc --data photos/ -o runs/mine --set model.adapters=8
      torchrun --nproc-per-node 4 -m covis train msls_vgg16_gem_gcl --data /data/msls -o runs/vgg
    """
    if recipe is None and init is None:
        raise InputError("give a recipe (`covis list recipes`), or a model to fine-tune: covis train --init MODEL")
    if weights is not None and init is None:
        raise InputError("--weights is the checkpoint of --init NAME; give --init too")
    recipe = recipe or _FINE_TUNE
    if output is None and not dry_run:
        raise InputError(f"give a folder for the run: covis train {recipe} -o RUN")
    from covis import experiments
    from covis.datasets import given_paths
    from covis.training.recipe import configure, describe_recipe, recipe_plugins, start_from

    start = experiments.get(recipe)
    if init is not None:
        start = start_from(start, *_given_model(init, weights))
    chosen = configure(start, set_ or [])
    if dry_run:
        plugins = recipe_plugins(chosen)
        emit({**({"plugins": plugins} if plugins else {}), **describe_recipe(chosen)}, True)
        return
    assert output is not None
    path = given_paths(data, [chosen.dataset]).get(chosen.dataset)

    from covis.training.run import Resources  # loads torch: after everything that can be checked without it
    from covis.training.run import train as run

    resources = Resources(checkpoint_seconds=checkpoint_seconds)
    trained = run(chosen, output, data=path, seed=seed, resources=resources)
    best = "".join(f"  Recall@{k} {v:.1f}" for k, v in trained.recall.items())
    if trained.best_step == 0:
        best += f"; training did not improve on {init or 'the initial network'}, which is kept"
    bands = {"positive": "ψ ≥ 0.5", "less": "0 < ψ < 0.5", "none": "ψ = 0"}
    shares = ", ".join(f"{share:.0f} % {bands[name]}" for name, share in trained.shares.items())
    seen = f"{trained.pairs} pairs" + (shares and f" ({shares})")
    summary = f"{trained.model}: {trained.dim} dims, {seen}{best and ', validation' + best}"
    emit(dict(trained), json, summary, f"covis evaluate {output} {_benchmark_of(chosen.dataset, data)}")


def _benchmark_of(dataset: str, data: list[str] | None) -> str:
    """A benchmark of a dataset, with ground truth that is not hidden, as arguments of `covis evaluate`."""
    from covis.evaluation import BENCHMARKS

    known = [name for name in BENCHMARKS if BENCHMARKS[name].dataset == dataset and not BENCHMARKS[name].hidden]
    chosen = dataset if dataset in known else known[0] if known else "BENCHMARK"
    return " ".join([chosen, *(f"--data {entry}" for entry in data or ())])


def _given_model(path: Path, weights: Path | None) -> tuple[ModelConfig, Path]:
    """The configuration of the model of --init, and its folder."""
    from covis.core.artifacts import read_json
    from covis.describing.describers import find_describer
    from covis.describing.named import named_model
    from covis.models import ModelConfig

    describer = find_describer(named_model(path, weights))
    if describer.kind != "model":
        raise InputError(f"--init {path} has no weights to train; give a model folder or a run folder")
    return ModelConfig.from_dict(read_json(describer.path / "config.json")), describer.path
