"""A training run: estimate, train, validate, keep the best; the same call resumes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from covis import datasets
from covis.core import artifacts, machine
from covis.core.errors import InputError
from covis.core.files import sha256
from covis.core.foreign import first_line
from covis.core.plugins import require_plugins
from covis.core.progress import say
from covis.describing.features import Cached, open_features
from covis.evaluation import Benchmark, load_benchmark
from covis.evaluation.protocols.photos import leave_one_group_out
from covis.images import ImageSet, Split
from covis.models import PlaceModel
from covis.reading.screening import screen
from covis.reading.sources import open_images
from covis.sampling import Sampler
from covis.training.augmentation import AUGMENTATIONS
from covis.training.callbacks import Callback
from covis.training.data import Data, prepare, refuse_shared
from covis.training.descriptors import describe_all
from covis.training.loop import Loop
from covis.training.pooling_start import images_of_groups, start_pooling
from covis.training.ranks import Ranks
from covis.training.recipe import Recipe, describe_recipe, recipe_plugins, restore_recipe, weights_digest
from covis.training.record import METRICS, RESULT
from covis.training.result import Trained
from covis.training.step import Step
from covis.training.validation import Validator


@dataclass(frozen=True)
class Resources:
    """How a run uses the machine; none of it changes the result."""

    workers: int | None = None
    """Processes that decode images; None = one per core, at most 8."""
    cache: Path | None = None
    """Where features are cached; None = beside other caches of this user."""
    checkpoint_seconds: float = 60.0
    tensorboard: bool = True
    plan: bool = True
    """Whether the run says after its second step what it will take."""


def train(
    recipe: Recipe,
    run: Path | str,
    *,
    data: Path | str | Split | None = None,
    seed: int = 0,
    resources: Resources | None = None,
    validation: Benchmark | ImageSet | Path | str | None = None,
    step: type[Step] = Step,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Trains `recipe` into the folder `run`; returns what `run/result.json` holds.

    `data` is where the recipe's dataset lies, or images to train on in its place. `validation`: a benchmark, or photos
    (a set, a table, a folder) of which each is searched among those of other groups, in place of the recipe's.
    `run/model` is the best model by validation (the last one without), `run/last` the last one. `step`: a subclass of
    `Step` that trains differently. `callbacks`: what the run calls as it goes.

    >>> import covis
    >>> from dataclasses import replace
    >>> recipe = replace(covis.recipe("town_quick"), steps=2, validations=1)
    >>> trained = covis.train(recipe, "runs/short", seed=0, resources=Resources(workers=0))
    >>> trained.model.as_posix()
    'runs/short/model'
    """
    run, resources, ranks = Path(run), resources or Resources(), Ranks.join()
    data = Path(data) if isinstance(data, str) else data
    own = Own(step, tuple(callbacks), _benchmark(validation))
    try:
        if not ranks.first:
            ranks.wait()
            return _work(recipe, run, data, seed, resources, ranks, own)
        with artifacts.claim(run, "run", _config(recipe, data, seed, own)):
            done = (run / RESULT).exists()
            if done:
                say(f"{run} is already done; its model is {run / 'model'}")
            ranks.wait()
            try:
                return Trained.open(run) if done else _work(recipe, run, data, seed, resources, ranks, own)
            except InputError:
                _forget_unstarted(recipe, run)
                raise
    except RuntimeError as error:
        if not ranks.lost(error):
            raise
        raise InputError(f"a worker of {run} died ({first_line(error)}); re-run the same command to resume") from error
    finally:
        ranks.leave()


@dataclass(frozen=True)
class Own:
    """What a caller hands over beside the recipe."""

    step: type[Step] = Step
    callbacks: tuple[Callback, ...] = ()
    validation: Benchmark | None = None


def _benchmark(validation: Benchmark | ImageSet | Path | str | None) -> Benchmark | None:
    """The benchmark that scores a model on one's own validation photos."""
    if validation is None or isinstance(validation, Benchmark):
        return validation
    images = validation if isinstance(validation, ImageSet) else open_images(validation)
    return leave_one_group_out("validation", images)


def _config(recipe: Recipe, data: Data, seed: int, own: Own) -> dict[str, Any]:
    """What decides a run, as JSON."""
    config: dict[str, Any] = {"recipe": describe_recipe(recipe), "seed": seed}
    if plugins := recipe_plugins(recipe):
        config["plugins"] = plugins
    if digest := weights_digest(recipe):
        config["weights_sha256"] = digest
    if isinstance(data, Split):
        config["images"] = [images.fingerprint() for images in data]
    if own.validation is not None:
        config["validation"] = own.validation.fingerprint
    if own.step is not Step:
        config["step"] = f"{own.step.__module__}.{own.step.__qualname__}"
    if own.callbacks:
        config["callbacks"] = [type(callback).__name__ for callback in own.callbacks]
    return config


def _forget_unstarted(recipe: Recipe, run: Path) -> None:
    """Removes the labels of a run that failed before its first step, so that a corrected command may use the folder."""
    if not (run / METRICS).exists():
        for name in ("labels", *recipe.batches.rules()):
            shutil.rmtree(run / name, ignore_errors=True)


def _work(recipe: Recipe, run: Path, data: Data, seed: int, resources: Resources, ranks: Ranks, own: Own) -> Trained:
    if (run / RESULT).exists():
        return Trained.open(run)
    with arithmetic(recipe):
        loop = open_loop(recipe, run, data, seed, resources, ranks, own)
        loop.resume()
        loop.complete()
        return _finish(loop, seed, ranks)


def open_loop(
    recipe: Recipe, run: Path, data: Data, seed: int, resources: Resources, ranks: Ranks, own: Own | None = None
) -> Loop:
    """The loop of a run before its first step: model, labelled data, features, validator and miner."""
    own = own or Own()
    model = PlaceModel.build(recipe.model, seed).to(ranks.device)
    if recipe.whiten:
        model.whiten(None)  # fitted anew after the last step
    training = ranks.first_then_all(lambda: prepare(recipe, data, run, seed))
    recipe = replace(recipe, model=model.config)
    workers = machine.workers(resources.workers)
    cache = resources.cache or machine.cache_folder() / "features"
    common: dict[str, Any] = {"seed": seed, "workers": workers, "cache": cache, "device": ranks.device,
                              "cache_bytes": int(recipe.cache_gb * 1e9), "half": recipe.cache_half, "precision": recipe.precision}  # fmt: skip
    transform = AUGMENTATIONS[recipe.augment]() if recipe.augment else None
    source = ranks.first_then_all(lambda: open_features(model, training.sets, transform=transform, **common))
    images, cached = training.split.database, source if isinstance(source, Cached) else None
    start_pooling(model, images, seed, workers, cached, among=images_of_groups(images, recipe.start_on))
    validator, benchmark = None, own.validation
    if benchmark is None and recipe.validation:
        part = recipe.validation == recipe.dataset == "table" and recipe.split != "all" and not isinstance(data, Split)
        benchmark = _benchmark(datasets.load("table", data, "val").queries) if part else None  # type: ignore[arg-type]
    if benchmark is None and recipe.validation:
        benchmark = load_benchmark(recipe.validation, None if isinstance(data, Split) else data)
    if benchmark is not None:
        if own.validation is not None or recipe.validation == recipe.dataset:  # own photos, which nobody has divided
            refuse_shared(training.sets, benchmark.queries, recipe.shared)
        sets = Validator.sets(benchmark)
        if ranks.first and not (run / METRICS).exists():
            for images in sets:
                screen(images)
        validator = Validator(benchmark, ranks.first_then_all(lambda: open_features(model, sets, **common)), ranks)
    return Loop(
        recipe, run, model, training, source, ranks,
        own.step(recipe, model, training, ranks, seed), validator, recipe.batches.miner(training.sampler),
        resources.checkpoint_seconds, resources.tensorboard, resources.plan, own.callbacks,
    )  # fmt: skip


def _finish(loop: Loop, seed: int, ranks: Ranks) -> Trained:
    """Writes the models and then the result, so that the result exists only where everything is written."""
    p, run = loop.progress, loop.run
    model = loop.model.eval()
    facts: dict[str, Any] = {
        "recipe": describe_recipe(loop.recipe),
        "seed": seed,
        "data": _data_facts(loop),
        "training": p.to_dict(),
    }
    if plugins := recipe_plugins(loop.recipe):
        facts["plugins"] = plugins
    ranks.wait()
    best = PlaceModel.load(run / "best").to(ranks.device) if (run / "best").exists() else model
    for name, chosen, recalls in (("last", model, {}), ("model", best, _recalls(loop))):
        _whiten(loop, chosen)
        if ranks.first:
            chosen.save(run / name, card={**facts, **recalls}, replace=True)
    if ranks.first:
        result = {"model": str(run / "model"), **facts["training"], "dim": best.dim, "fingerprint": best.fingerprint()}
        if (run / METRICS).is_file():
            result["metrics_sha256"] = sha256(run / METRICS)
        artifacts.write_json(run / RESULT, result)
    ranks.wait()
    return Trained.open(run)


def _data_facts(loop: Loop) -> dict[str, Any]:
    """The data that a model was trained on, and its licence: for the model's card."""
    return {
        **_source_facts(loop),
        "images": [images.fingerprint() for images in loop.data.sets],
        "labels": loop.data.labels.fingerprint(),
    }


def _source_facts(loop: Loop) -> dict[str, Any]:
    """Where the images come from; of images that were handed over nothing is known but where they lie."""
    config = artifacts.read_json(loop.run / "run.json")["config"]
    if "images" in config:
        return {"name": ", ".join(dict.fromkeys(s.root.name for s in loop.data.sets)), "licence": "unknown"}
    dataset = loop.recipe.dataset
    return {"name": dataset, "split": loop.recipe.split, "licence": datasets.DATASETS[dataset].licence}


def _recalls(loop: Loop) -> dict[str, Any]:
    """Recall@k in percent of the best validation, and on which protocol; empty without one."""
    best = loop.progress.best
    if loop.validator is None or not best:
        return {}
    benchmark = loop.validator.benchmark
    recall = {k: v for k, v in best.items() if k != "step"}
    return {"recalls": {"benchmark": benchmark.name, "fingerprint": benchmark.fingerprint, "recall": recall}}


def _whiten(loop: Loop, model: PlaceModel) -> None:
    if not loop.recipe.whiten or model.whitening is not None:
        return
    from covis.evaluation.whitening_fits import fit_whitening

    recipe, images = loop.recipe, loop.data.split.database
    descriptors = describe_all(model, loop.source, len(loop.data.sets) - 1, len(images), loop.ranks)
    facts = {"fit": "train", "data": f"{recipe.dataset}/{recipe.split}"}
    with loop.ranks.first_alone():
        if loop.ranks.first:  # which writes the models
            fit = fit_whitening(images, descriptors, recipe.whiten, recipe.whitening, labels=recipe.labels, facts=facts)
            model.whiten(fit)


def open_sampler(run: Path, data: Path | None = None) -> Sampler:
    """The sampler of a run, as its recipe and seed say."""
    config = artifacts.read_json(run / "run.json")["config"]
    require_plugins(config.get("plugins", ()), run)
    return prepare(restore_recipe(config["recipe"]), data, run, int(config["seed"])).sampler


@contextmanager
def arithmetic(recipe: Recipe) -> Iterator[None]:
    """Sets deterministic algorithms, or not, and how exactly matrices are multiplied, for the duration of a run."""
    before, exactness = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(recipe.deterministic)
    torch.set_float32_matmul_precision(recipe.float32_matmul)
    torch.backends.cudnn.benchmark = not recipe.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_float32_matmul_precision(exactness)
