"""`covis train`: a recipe into a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from covis.cli.options import ROLES, Checkpoint, DataPath, Json, RecipeSet, existing_model, known_recipe
from covis.cli.output import emit
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.images import ImageSet, Split
    from covis.models import ModelConfig
    from covis.training.recipe import Recipe
    from covis.training.result import Trained

_FINE_TUNE = "fine_tune"
"""The recipe of `covis train --init MODEL` alone."""


@verb("train", section=TRAIN, order=2)
def train(
    recipe: Annotated[
        str | None,
        Argument(
            callback=known_recipe,
            help="A name of `covis list recipes`, or a file (.toml, .json). [default with --init: fine_tune]",
        ),
    ] = None,
    output: Annotated[Path | None, Option("-o", "--out", help="Run folder; RUN/model is the trained model.")] = None,
    data: DataPath = None,
    init: Annotated[
        Path | None,
        Option(
            callback=existing_model,
            help="Start from this model or run folder, or name of `covis list models`. Its last blocks are trained, its "
            "batch statistics stay fixed, and it is kept unless training improves the validation recall.",
        ),
    ] = None,
    weights: Checkpoint = None,
    seed: Annotated[
        int | None, Option(help="Seed of batches and initial weights. [default: 0; of run.json: its]")
    ] = None,
    set_: RecipeSet = None,
    log: Annotated[list[str] | None, Option(help="wandb or mlflow: send scalars there too, repeatable.")] = None,
    profile: Annotated[
        bool, Option("--profile", help="Show where the time of 20 steps goes; trace in RUN/profile.json.")
    ] = False,
    checkpoint_seconds: Annotated[float, Option(help="Time between checkpoints.")] = 60.0,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the recipe as JSON, which is a recipe file, and stop.")
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
      covis train mine.toml --data train=a.csv --data val=b.csv -o runs/own
      covis train runs/first/run.json -o runs/again
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
    seed = _seed_of(recipe) if seed is None else seed
    if init is not None:
        start = start_from(start, *_given_model(init, weights))
    chosen = configure(start, set_ or [])
    if output is None or dry_run:
        plugins = recipe_plugins(chosen)
        emit({**({"plugins": plugins} if plugins else {}), **describe_recipe(chosen)}, True)
        return
    roles, others = _roles(data)
    path: Any = given_paths(others, [chosen.dataset]).get(chosen.dataset)

    from covis.training.callbacks import LOGGERS, Profile
    from covis.training.run import Resources  # loads torch: after everything that can be checked without it
    from covis.training.run import train as run

    for name in log or ():
        if name not in LOGGERS:
            raise unknown_name("tracker", name, LOGGERS)
    path, validation = _own_photos(roles) if roles else (path, None)
    trained = run(
        chosen,
        output,
        data=path,
        seed=seed,
        resources=Resources(checkpoint_seconds=checkpoint_seconds),
        validation=validation,
        callbacks=[*(LOGGERS[name]() for name in log or ()), *([Profile()] if profile else [])],
    )
    if os.environ.get("RANK", "0") == "0":  # the first process prints the result
        then = f"covis evaluate {output} {_benchmark_of(chosen, others)}"
        emit(dict(trained), json, _summary(trained, init), then)


def _summary(trained: Trained, init: Path | None) -> str:
    best = "".join(f"  Recall@{k} {v:.1f}" for k, v in trained.recall.items())
    if trained.best_step == 0:
        best += f"; training did not improve on {init or 'the initial network'}, which is kept"
    bands = {"positive": "ψ ≥ 0.5", "less": "0 < ψ < 0.5", "none": "ψ = 0"}
    shares = ", ".join(f"{share:.0f} % {bands[name]}" for name, share in trained.shares.items())
    seen = f"{trained.pairs} pairs" + (shares and f" ({shares})")
    return f"{trained.model}: {trained.dim} dimensions, {seen}{best and ', validation' + best}"


def _seed_of(recipe: str) -> int:
    """The seed of a run's record, else 0."""
    from covis.core.artifacts import read_json

    config = read_json(Path(recipe)).get("config") if recipe.endswith("run.json") else None
    return int(config.get("seed", 0)) if isinstance(config, dict) else 0


def _roles(data: list[str] | None) -> tuple[dict[str, Path], list[str]]:
    """The entries train=… and val=… of --data, and the others."""
    split = [(entry, *entry.partition("=")[::2]) for entry in data or ()]
    roles = {name: Path(path) for _, name, path in split if name in ROLES and path}
    if roles and "train" not in roles:
        raise InputError(f"--data val={roles['val']} needs training photos; give --data train=FILE.csv too")
    return roles, [entry for entry, name, path in split if not (name in roles and path)]


def _own_photos(roles: dict[str, Path]) -> tuple[Split, ImageSet | None]:
    """The photos of --data train=… and val=…; two tables share a frame."""
    from covis.images import Split
    from covis.reading.sources import open_images
    from covis.reading.table import SUFFIXES, read_tables

    if all(path.suffix in SUFFIXES for path in roles.values()):
        sets = dict(zip(roles, read_tables(list(roles.values())), strict=True))
    else:
        sets = {name: open_images(path) for name, path in roles.items()}
    return Split(sets["train"], sets["train"]), sets.get("val")


def _benchmark_of(recipe: Recipe, data: list[str]) -> str:
    """The recipe's benchmark, or one of its dataset whose ground truth is not hidden, as arguments of `covis evaluate`."""
    from covis.evaluation import BENCHMARKS

    dataset = recipe.dataset
    known = [name for name in BENCHMARKS if BENCHMARKS[name].dataset == dataset and not BENCHMARKS[name].hidden]
    best = [name for name in (recipe.validation, dataset, *known, "BENCHMARK") if name in (*known, "BENCHMARK")]
    return " ".join([best[0], *(f"--data {entry}" for entry in data)])


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
