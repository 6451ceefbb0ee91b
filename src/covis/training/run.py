"""A training run: plan, train, validate, keep the best; the same call resumes."""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from covis import datasets
from covis.core import artifacts, machine
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.files import first_line, sha256
from covis.core.progress import Meter, duration, say
from covis.core.settings import JsonValues
from covis.describing.embedding import image_batches
from covis.describing.features import Cached, open_features
from covis.evaluation import load_benchmark
from covis.images import ImageSet, Split
from covis.models import PlaceModel
from covis.sampling import Sampler
from covis.training.data import Data, Validator, describe_all, make_miner, needed, prepare, weighted_loss
from covis.training.loop import METRICS, RESULT, Loop, Ranks
from covis.training.recipe import Recipe, describe_recipe, restore_recipe

GIB = 1 << 30


@dataclass(frozen=True)
class RunEstimate:
    """The cost of a run."""

    pairs: int
    steps: int
    images_per_step: int
    trained_parameters: int
    memory_gib: float
    """Weights, gradients, optimiser state and what one step keeps for its backward pass."""
    seconds_per_step: float
    hours: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"plan: {self.pairs} pairs in {self.steps} steps of about {self.images_per_step} images, "
            f"{self.trained_parameters / 1e6:.2f} M trained parameters, about {self.memory_gib:.2f} GiB, "
            f"about {duration(self.hours * 3600)}"
        )


def make_plan(loop: Loop) -> RunEstimate:
    """Measures one batch of the run on a copy of its model; the run itself is untouched."""
    recipe, model = loop.recipe, copy.deepcopy(loop.model)
    wanted = needed(loop.data.batch(0), loop.data.one_set)
    fetched = next(iter(loop.source.fetch([wanted.request])))
    model.train()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.random.fork_rng(devices=[]):
        for measured in (False, True):  # the first pass pays for one-off set-up
            started = time.monotonic()
            with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
                describe = model.region_descriptors if recipe.loss.regions else model.suffix
                loss = weighted_loss(loop.loss, wanted, loop.describe(describe, fetched.features))
            (loss / wanted.batch.total_weight).backward()  # type: ignore[no-untyped-call]
            if not measured:
                kept.clear()
    seconds = (time.monotonic() - started) * recipe.accumulate / loop.ranks.world
    weights = sum(t.nbytes for t in model.state_dict().values())
    trained = sum(p.numel() for _, p in model.trained_parameters())
    state = {"sgd": 1 + bool(recipe.optimiser.momentum), "adamw": 3}[recipe.optimiser.name] * 4 * trained
    batches = loop.total * recipe.accumulate
    return RunEstimate(
        pairs=batches * len(wanted.batch),
        steps=loop.total,
        images_per_step=wanted.images * recipe.accumulate,
        trained_parameters=trained,
        memory_gib=(weights + state + sum(kept.values())) / GIB,
        seconds_per_step=seconds,
        hours=(loop.total - loop.progress.step) * seconds / 3600,
    )


INITIAL_IMAGES = 500
"""Number of images whose local features a clustered pooling starts from."""
_T = TypeVar("_T")


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


class Trained(JsonValues):
    """The result of a run, typed; as a mapping it is what `RUN/result.json` holds and `--json` prints."""

    @classmethod
    def open(cls, run: Path) -> Trained:
        """The result of a finished run."""
        return cls(artifacts.read_json(run / RESULT))

    def __repr__(self) -> str:
        return f"Trained({str(self.model)!r}, {self.dim} dims, {self.steps} steps, {self.pairs} pairs)"

    @property
    def model(self) -> Path:
        """Folder of the best model by validation, or of the last one without validation."""
        return Path(self["model"])

    @property
    def dim(self) -> int:
        """Dimension of its descriptors."""
        return int(self["dim"])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its weights."""
        return str(self["fingerprint"])

    @property
    def steps(self) -> int:
        """Steps of the optimiser."""
        return int(self["step"])

    @property
    def images(self) -> int:
        """Images embedded with gradient."""
        return int(self["images"])

    @property
    def pairs(self) -> int:
        """Pairs (or tuples) that the loss saw."""
        return int(self["pairs"])

    @property
    def seconds(self) -> float:
        """Time spent training, over all stops, validation and mining left out."""
        return float(self["seconds"])

    @property
    def mining_seconds(self) -> float:
        """Time spent mining tuples."""
        return float(self["mining_seconds"])

    @property
    def memory_gib(self) -> float:
        """Estimated memory of a step."""
        return float(self["memory_gib"])

    @property
    def recall(self) -> dict[int, float]:
        """Recall@k in percent of the best validation; empty without validation."""
        return {int(k): float(v) for k, v in self["best"].items() if k != "step"}

    @property
    def best_step(self) -> int | None:
        """Step of the best validation (0 = the network as it was before training); None without validation."""
        step = self["best"].get("step")
        return None if step is None else int(step)


def train(
    recipe: Recipe,
    run: Path | str,
    *,
    data: Path | str | Split | None = None,
    seed: int = 0,
    resources: Resources | None = None,
) -> Trained:
    """Trains `recipe` into the folder `run`; returns what `run/result.json` holds.

    `data` is where the recipe's dataset lies, or images to train on in its place. `run/model` is the best model by
    validation (the last one without validation), `run/last` the last one.

    >>> import covis
    >>> from dataclasses import replace
    >>> recipe = replace(covis.recipe("town_quick"), steps=2, validations=1)
    >>> trained = covis.train(recipe, "runs/short", seed=0, resources=Resources(workers=0))
    >>> trained.model.as_posix()
    'runs/short/model'
    """
    run, resources = Path(run), resources or Resources()
    ranks = Ranks.join()
    config: dict[str, Any] = {"recipe": describe_recipe(recipe), "seed": seed}
    if isinstance(data, Split):
        config["images"] = [images.fingerprint() for images in data]
    try:
        if not ranks.first:
            ranks.wait()
            return _work(recipe, run, _path(data), seed, resources, ranks)
        with artifacts.claim(run, "run", config):
            if (run / RESULT).exists():
                say(f"{run} is already done; its model is {run / 'model'}")
                ranks.wait()
                return Trained.open(run)
            ranks.wait()
            try:
                return _work(recipe, run, _path(data), seed, resources, ranks)
            except InputError:
                _forget_unstarted(recipe, run)
                raise
    except RuntimeError as error:
        if not ranks.lost(error):
            raise
        cause = first_line(error)
        raise InputError(
            f"another process that trains {run} is gone ({cause}); re-run the same command to resume"
        ) from error
    finally:
        ranks.leave()


def _forget_unstarted(recipe: Recipe, run: Path) -> None:
    """Removes the labels of a run that failed before its first step, so that a corrected command may use the folder."""
    if not (run / METRICS).exists():
        for name in ("labels", *recipe.batches.rules()):
            shutil.rmtree(run / name, ignore_errors=True)


def _work(recipe: Recipe, run: Path, data: Data, seed: int, resources: Resources, ranks: Ranks) -> Trained:
    if (run / RESULT).exists():
        return Trained.open(run)
    with _arithmetic(recipe.deterministic):
        loop = _set_up(recipe, run, data, seed, resources, ranks)
        loop.resume()
        plan = make_plan(loop)
        if ranks.first and resources.plan:
            say(str(plan))
        loop.complete()
        return _finish(loop, plan, seed, ranks)


def _set_up(recipe: Recipe, run: Path, data: Data, seed: int, resources: Resources, ranks: Ranks) -> Loop:
    model = PlaceModel.build(recipe.model, seed).to(ranks.device)
    if recipe.whiten:
        model.whiten(None)  # fitted anew after the last step
    training = _first_then_all(ranks, lambda: prepare(recipe, data, run, seed))
    recipe = replace(recipe, model=model.config)
    workers = machine.workers(resources.workers)
    cache = resources.cache or machine.cache_folder() / "features"
    common: dict[str, Any] = {"seed": seed, "workers": workers, "cache": cache, "device": ranks.device,
                              "cache_bytes": int(recipe.cache_gb * 1e9), "half": recipe.cache_half}  # fmt: skip
    source = _first_then_all(ranks, lambda: open_features(model, training.sets, **common))
    images, cached = training.split.database, source if isinstance(source, Cached) else None
    start_pooling(model, images, seed, workers, cached, among=starting(images, recipe.start_on))
    validator = None
    if recipe.validation:
        benchmark = load_benchmark(recipe.validation, None if isinstance(data, Split) else data)
        sets = Validator.sets(benchmark)
        opened = _first_then_all(ranks, lambda: open_features(model, sets, **common))
        validator = Validator(benchmark, opened)
    miner = make_miner(recipe, training)
    return Loop(
        recipe, run, seed, model, training, source, ranks, validator, miner,
        resources.checkpoint_seconds, resources.tensorboard,
    )  # fmt: skip


def _finish(loop: Loop, plan: RunEstimate, seed: int, ranks: Ranks) -> Trained:
    """Writes the models and then the result, so that the result exists only where everything is written."""
    p, run = loop.progress, loop.run
    model = loop.model.eval()
    facts: dict[str, Any] = {
        "recipe": describe_recipe(loop.recipe),
        "seed": seed,
        "data": _data_facts(loop),
        "training": {**p.to_dict(), "memory_gib": plan.memory_gib},
    }
    if ranks.first:
        best = PlaceModel.load(run / "best").to(ranks.device) if (run / "best").exists() else model
        for name, chosen, recalls in (("last", model, {}), ("model", best, _recalls(loop))):
            _whiten(loop, chosen)
            chosen.save(run / name, card={**facts, **recalls}, replace=True)
        result = {"model": str(run / "model"), **facts["training"], "dim": best.dim, "fingerprint": best.fingerprint()}
        if (run / METRICS).is_file():
            result["metrics_sha256"] = sha256(run / METRICS)
        artifacts.write_json(run / RESULT, result)
    ranks.wait()
    return Trained.open(run)


def _data_facts(loop: Loop) -> dict[str, Any]:
    """The data that a model was trained on, and its licence: for the model's card."""
    return {
        "name": loop.recipe.dataset,
        "split": loop.recipe.split,
        "licence": datasets.DATASETS[loop.recipe.dataset].licence,
        "images": [images.fingerprint() for images in loop.data.sets],
        "labels": loop.data.labels.fingerprint(),
    }


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
    from covis.evaluation.retrieval import fit_whitening

    recipe, images = loop.recipe, loop.data.split.database
    descriptors = describe_all(model, loop.source, len(loop.data.sets) - 1, len(images))
    facts = {"fit": "train", "data": f"{recipe.dataset}/{recipe.split}"}
    model.whiten(fit_whitening(images, descriptors, recipe.whiten, recipe.whitening, labels=recipe.labels, facts=facts))


def starting(images: ImageSet, group: str) -> Ids:
    """The images whose group's name begins with `group`."""
    named = np.array([name.startswith(group) for name in images.group_names], bool)
    ids = np.flatnonzero(named[images.group]) if len(named) else np.arange(0 if group else len(images))
    if not len(ids):
        raise InputError(
            f"start_on={group}: no group of the training images begins with it; the first is {images.group_names[:1]}"
        )
    return ids


def start_pooling(
    model: PlaceModel,
    images: ImageSet,
    seed: int,
    workers: int,
    features: Cached | None = None,
    *,
    most: int = INITIAL_IMAGES,
    among: Ids | None = None,
) -> None:
    """Initialises a pooling of clusters of local features (NetVLAD) from up to `most` training images.

    features: those of the images, in the last of its sets, so that the network need not see the images again. among:
    the images to take them from; None = all.
    """
    if not model.pool.has_start:
        return
    among = np.arange(len(images)) if among is None else among
    ids = np.sort(among[np.random.default_rng(seed).permutation(len(among))[:most]])
    if features is not None:
        others = (np.zeros(0, np.int64),) * (len(features.rows) - 1)
        requests = ((*others, ids[start : start + 32]) for start in range(0, len(ids), 32))
        model.initialise_pool((fetched.features for fetched in features.fetch(requests)), seed)
        return
    with Meter("place clusters", len(ids), "images") as meter:

        def seen() -> Iterator[Tensor]:
            for _, pixels in image_batches(images, ids, model.config.image_size, 32, workers):
                yield pixels
                meter.advance(len(pixels))

        model.initialise_pool(seen(), seed)


def open_sampler(run: Path, data: Path | None = None) -> Sampler:
    """The sampler of a run, as its recipe and seed say."""
    config = artifacts.read_json(run / "run.json")["config"]
    return prepare(restore_recipe(config["recipe"]), data, run, int(config["seed"])).sampler


def _first_then_all(ranks: Ranks, work: Callable[[], _T]) -> _T:
    """The first rank does the work and leaves its result on disk; the others then find it there."""
    if not ranks.first:
        ranks.wait()
        return work()
    result = work()
    ranks.wait()
    return result


@contextmanager
def _arithmetic(deterministic: bool) -> Iterator[None]:
    """Sets deterministic algorithms, or not, for the duration of a run."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _path(data: Path | str | Split | None) -> Data:
    return Path(data) if isinstance(data, str) else data


@dataclass(frozen=True)
class Cost:
    """What training costs on this machine, measured over some steps of a run."""

    seconds_per_1000_pairs: float
    """Wall time of steps, decoding and the frozen part included, mining apart; tuples count as pairs."""
    cpu_seconds_per_1000_pairs: float
    """Processor time of this process in those steps, which a busy machine does not change."""
    mining_seconds_per_1000_pairs: float
    peak_gib: float
    """Peak of the GPU's memory, or of the whole process where there is no GPU."""
    pairs_per_epoch: int
    steps: int
    """Measured steps."""
    device: str

    @property
    def hours_per_epoch(self) -> float:
        """Extrapolated from the measured steps."""
        both = self.seconds_per_1000_pairs + self.mining_seconds_per_1000_pairs
        return both * self.pairs_per_epoch / 1000 / 3600


COST_WARM_STEPS, COST_STEPS = 3, 20


def measure_steps(
    recipe: Recipe, run: Path, data: Path | None, seed: int = 0, workers: int | None = None, *, steps: int = COST_STEPS
) -> Cost:
    """Trains some steps of a recipe in `run`, after others that pay for one-off set-up, and measures their cost."""
    import resource

    ranks = Ranks.join()
    plain = replace(recipe, validation="", steps=None)
    with _arithmetic(recipe.deterministic):
        loop = _set_up(
            plain, run, data, seed, Resources(workers, tensorboard=False, checkpoint_seconds=math.inf), ranks
        )
        progress, batches = loop.progress, len(loop.data.sampler)
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        loop.total = COST_WARM_STEPS
        loop.complete()
        once, pairs, started, used = progress.mining_seconds, progress.pairs, time.monotonic(), time.process_time()
        loop.total += steps
        loop.complete()
        used = time.process_time() - used
    seconds = time.monotonic() - started - (progress.mining_seconds - once)
    if ranks.device.type == "cuda":
        peak, device = torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()
    else:
        peak, device = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "CPU"
    per_batch = progress.pairs / (COST_WARM_STEPS + steps) / recipe.accumulate
    renewed = per_batch * getattr(recipe.batches, "refresh", 1)
    return Cost(
        seconds_per_1000_pairs=1000 * seconds / (progress.pairs - pairs),
        cpu_seconds_per_1000_pairs=1000 * used / (progress.pairs - pairs),
        mining_seconds_per_1000_pairs=1000 * once / renewed if once else 0.0,
        peak_gib=peak / GIB,
        pairs_per_epoch=round(per_batch * batches),
        steps=steps,
        device=device,
    )
