"""Everything that decides a training run, as one value: stated as JSON, varied by FIELD=VALUE."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from covis.core import settings as fields
from covis.core.errors import InputError, unknown_name
from covis.core.files import sha256
from covis.core.foreign import first_line, read_bounded
from covis.core.machine import cache_folder
from covis.core.plugins import load_plugins, loaded_plugins, plugins_of
from covis.core.registry import Registry
from covis.core.settings import above, at_least, check_types
from covis.datasets import DATASETS
from covis.labels import RULES, FovOverlap, LabelRule
from covis.losses import LOSSES, GeneralizedContrastive, Loss
from covis.models import ModelConfig
from covis.sampling import BATCHES, Batches, Pairs
from covis.whitening import PCA, WhiteningRule

Shared = Literal["file", "content", "distance"]
TrainingPrecision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Optimiser:
    """The optimiser, its learning rate, and when the rate decreases."""

    name: str = "sgd"
    """A class of `torch.optim`, in any case: sgd, adamw, adam, nadam, …"""
    learning_rate: float = 0.1
    layer_decay: float = 1.0
    """Factor on the learning rate of a block for every block between it and the last one."""
    clip: float = 0.0
    """Largest norm of the gradient, to which larger ones are scaled down; 0 = any."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["step", "cosine", "linear"] = "step"
    final_rate: float = 0.0
    """Factor that the `linear` schedule ends at."""
    decay: float = 0.1
    """Factor of each decrease of the `step` schedule."""
    decay_every: float = 0.5
    """Share of the run after which the rate decreases: 1/2 is once, after half of the pairs."""
    milestones: tuple[float, ...] = ()
    """Shares of the run after each of which the `step` schedule decreases the rate, instead of `decay_every`."""
    warmup: float = 0.0
    """Share of the run over which the rate rises from 0."""

    def __post_init__(self) -> None:
        check_types(self, "optimiser")
        rates = {"learning_rate": self.learning_rate, "layer_decay": self.layer_decay}
        above(0, decay=self.decay, decay_every=self.decay_every, **rates)
        at_least(
            0,
            clip=self.clip,
            final_rate=self.final_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup is {self.warmup}; expected a share of the run, from 0 to below 1")

    def rate(self, done: float) -> float:
        """Factor on the learning rate after the share `done` of the run."""
        rise = min(1.0, done / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            import math

            return rise * 0.5 * (1 + math.cos(math.pi * done))
        if self.schedule == "linear":
            return rise * (1 - done * (1 - self.final_rate))
        if self.milestones:
            return rise * float(self.decay ** sum(done >= milestone for milestone in self.milestones))
        return rise * float(self.decay ** int(done / self.decay_every + 1e-9))


@dataclass(frozen=True)
class Recipe:
    """One training run, without its seed and the place of its data.

    >>> import covis
    >>> covis.recipe("town_gcl").loss
    GeneralizedContrastive(margin=0.5)
    >>> configure(covis.recipe("town_gcl"), ["loss.margin=0.7"]).loss
    GeneralizedContrastive(margin=0.7)
    """

    dataset: str
    model: ModelConfig
    labels: LabelRule = field(default_factory=FovOverlap)
    loss: Loss = field(default_factory=GeneralizedContrastive)
    batches: Batches = field(default_factory=Pairs)
    optimiser: Optimiser = field(default_factory=Optimiser)
    split: str = "train"
    epochs: int = 1
    steps: int | None = None
    """Optimiser steps of the run, where it is not a whole number of epochs; 0 = the network as it was loaded."""
    accumulate: int = 1
    """Batches whose gradients make one step."""
    validation: str = ""
    """Benchmark whose Recall@5 picks the best model; empty = keep the last."""
    shared: Shared = "file"
    """What makes a photo of your own one of training and validation, which is refused: the file, its bytes, or nearness."""
    validations: int = 4
    """How often a run validates, evenly spread, the end included."""
    keep_better: bool = False
    """Whether the initial network is validated too, and kept where no later state finds more."""
    start_on: str = ""
    """Prefix of the names of groups whose photos a clustered pooling starts from (`campus/`); empty = all groups."""
    whiten: int = 0
    """Dimensions of a whitening fitted on the training images after the last step; 0 = none."""
    whitening: WhiteningRule = PCA
    """How it is fitted: by PCA, or learned from the recipe's labels."""
    patience: int = 0
    """Validations in a row without a better Recall@5 after which a run ends; 0 = it never ends early."""
    augment: str = ""
    """Name of what changes training images (`covis list augmentations`); they are then decoded anew for every batch."""
    precision: TrainingPrecision = "float32"
    """What networks compute in, frozen part and validation included; weights and losses stay in float32."""
    float32_matmul: Literal["highest", "high", "medium"] = "highest"
    """How exactly float32 matrices are multiplied; `high` uses TF32 on GPUs."""
    compile: bool = False
    deterministic: bool = True
    cache_gb: float = 8.0
    """Up to this size the frozen part's output (or, where nothing is frozen, the decoded images) is kept on disk."""
    cache_half: bool = False
    """Whether that output is kept in half precision: twice as many images fit, and values change by up to 0.05 %."""

    def __post_init__(self) -> None:
        check_types(self)
        at_least(1, epochs=self.epochs, accumulate=self.accumulate)
        at_least(
            0,
            steps=self.steps or 0,
            patience=self.patience,
            validations=self.validations,
            whiten=self.whiten,
            cache_gb=self.cache_gb,
        )
        if self.dataset not in DATASETS:
            raise unknown_name("dataset", self.dataset, DATASETS)
        if self.loss.shape not in self.batches.losses:
            fitting = [name for name, kind in BATCHES.items() if self.loss.shape in kind.losses]
            raise InputError(
                f"loss {type(self.loss).__name__} and batches {type(self.batches).__name__} do not fit; this loss is of "
                f"{self.loss.shape}: set batches={' or '.join(fitting)} as well"
            )
        if self.batches.mined and self.accumulate > 1:
            raise InputError("mined batches are made for one step each; set accumulate=1 and a larger batches.size")


def start_from(recipe: Recipe, config: ModelConfig, path: Path) -> Recipe:
    """The recipe on the model of `config` in the folder `path`: it trains the recipe's blocks, statistics are frozen.

    Where the recipe validates, the model as given is validated too: it is kept unless training finds more.
    """
    trainable = "none" if config.levels and recipe.model.trainable.startswith("last") else recipe.model.trainable
    model = replace(config, weights=str(path), trainable=trainable, batchnorm="frozen", adapters=recipe.model.adapters)
    return replace(recipe, model=model, keep_better=bool(recipe.validation))


def _parts(make: Callable[[], Recipe]) -> str:
    recipe = make()
    return f"{recipe.dataset}: {recipe.model.backbone}, {recipe.model.pool}, {type(recipe.loss).__name__}"


RECIPES: Registry[Callable[[], Recipe]] = Registry("recipe", _parts)
"""Name → function that returns the recipe."""


_LARGEST = 1 << 20
"""Most bytes of a recipe file."""
CHOICES: dict[str, Mapping[str, type]] = {
    "loss": LOSSES,
    "labels": RULES,
    "batches": BATCHES,
    "batches.composed_by": RULES,
}
"""Fields that can be set by a registered name."""


def configure(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with each FIELD=VALUE applied, such as `loss.margin=0.7`, `loss=contrastive` or `labels=radius`."""
    return fields.apply(recipe, settings, CHOICES)


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON."""
    description: dict[str, Any] = fields.describe(recipe)
    return description


def recipe_plugins(recipe: Recipe) -> list[str]:
    """The plugins that the recipe's parts come from."""
    if not loaded_plugins():
        return []
    from covis.models import POOLS

    parts: list[Any] = [recipe.loss, recipe.labels, recipe.batches, DATASETS[recipe.dataset].load]
    return plugins_of(*parts, *([POOLS[recipe.model.pool]] if recipe.model.pool in POOLS else []))


def restore_recipe(description: Mapping[str, Any]) -> Recipe:
    """Back from `describe_recipe`."""
    recipe: Any = fields.restore(description, _kinds())
    if not isinstance(recipe, Recipe):
        raise InputError(f"a {type(recipe).__name__} is not a recipe; give one with type = Recipe")
    return recipe


def read_recipe(path: Path) -> Recipe:
    """The recipe of a TOML or JSON file: one of `describe_recipe`, or changes to the recipe it names as `base`."""
    content = read_bounded(path, _LARGEST)
    try:
        entries = tomllib.loads(content.decode()) if path.suffix == ".toml" else json.loads(content)
    except ValueError as error:
        raise InputError(f"{path} is not {path.suffix[1:].upper()} ({first_line(error)}); check the file") from None
    if not isinstance(entries, dict):
        raise InputError(
            f"{path} holds no fields of a recipe; write FIELD = VALUE, or start from covis train --dry-run"
        )
    if isinstance(entries.get("config"), dict) and "recipe" in entries["config"]:  # a run's record, RUN/run.json
        entries = {**_found_again(entries["config"]), "plugins": entries["config"].get("plugins", [])}
    base, plugins = entries.pop("base", None), entries.pop("plugins", [])
    if not (isinstance(plugins, list) and all(isinstance(module, str) for module in plugins)):
        raise InputError(f'{path}: plugins is {plugins!r}; write a list of modules, such as plugins = ["my_module"]')
    try:
        load_plugins(plugins)
        if base is None:
            for name, kind in (("model", ModelConfig), ("optimiser", Optimiser), ("whitening", WhiteningRule)):
                if isinstance(entries.get(name), dict):
                    entries[name].setdefault("type", kind.__name__)
            return restore_recipe({"type": "Recipe", **entries})
        return fields.merge(RECIPES[base](), entries, _kinds())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def weights_digest(recipe: Recipe) -> str | None:
    """SHA-256 of the file that the recipe's weights come from; None where they are no file."""
    path = Path(recipe.model.weights or "")
    return sha256(path) if path.is_file() else None


def _found_again(config: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of a run's record; a file of weights that lies elsewhere here is found by its SHA-256."""
    described = dict(config["recipe"])
    digest, path = config.get("weights_sha256"), Path(described["model"]["weights"] or "")
    if digest is None or (path.is_file() and sha256(path) == digest):
        return described
    for folder in (Path(), cache_folder() / "weights"):
        for file in folder.glob(f"*{path.suffix}"):
            if file.is_file() and sha256(file) == digest:
                return described | {"model": {**described["model"], "weights": str(file)}}
    raise InputError(
        f"the run's weights {path.name} (SHA-256 {digest[:12]}…) are not here; put the file into {cache_folder() / 'weights'}"
    )


def _kinds() -> dict[str, type]:
    """The classes of a recipe's parts by registered name and by class name."""
    named: dict[str, type] = {**LOSSES, **RULES, **BATCHES}
    return named | {kind.__name__: kind for kind in (Recipe, Optimiser, ModelConfig, WhiteningRule, *named.values())}
