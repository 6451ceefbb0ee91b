"""Everything that decides a training run, as one value: stated as JSON, varied by FIELD=VALUE."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from covis.errors import InputError, unknown_name
from covis.labels import FovOverlap, Radius, SurfaceOverlap
from covis.losses import LOSSES, GeneralizedContrastive, PairLoss, TupleLoss
from covis.models import ModelConfig
from covis.registry import Registry
from covis.whitening import PCA, WhiteningRule

T = TypeVar("T")


def describe(value: Any) -> Any:
    """A JSON-able form; nested dataclasses carry their class name, so that a loss or rule can be told apart."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **named}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    return value


def restore(told: Any, kinds: Mapping[str, type]) -> Any:
    """Back from `describe`, with the classes of `kinds` by name."""
    if isinstance(told, dict) and "type" in told:
        if told["type"] not in kinds:
            raise unknown_name("class", told["type"], kinds)
        return kinds[told["type"]](**{k: restore(v, kinds) for k, v in told.items() if k != "type"})
    if isinstance(told, list):
        return tuple(restore(v, kinds) for v in told)
    return told


def apply(value: T, settings: Iterable[str], choices: Mapping[str, Mapping[str, Any]]) -> T:
    """`value` with each `FIELD=VALUE` applied; FIELD may be dotted, VALUE is JSON or plain text.

    `choices` names objects that may stand for a whole field, such as {"loss": {"Contrastive": Contrastive()}}.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"setting {setting!r} has no '='; write FIELD=VALUE, such as loss.margin=0.5")
        value = _put(value, path.strip().split("."), text.strip(), choices, path.strip())
    return value


def _put(value: T, path: list[str], text: str, choices: Mapping[str, Mapping[str, Any]], full: str) -> T:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise InputError(f"setting {full!r} goes into a plain value; shorten the field name")
    known = [f.name for f in dataclasses.fields(value)]
    if path[0] not in known:
        raise unknown_name("recipe field", full, [full.removesuffix(".".join(path)) + k for k in known])
    current = getattr(value, path[0])
    if len(path) > 1:
        new = _put(current, path[1:], text, choices, full)
    elif path[0] in choices:
        if text not in choices[path[0]]:
            raise unknown_name(path[0], text, choices[path[0]])
        new = choices[path[0]][text]
    else:
        new = _parse(text, current, full)
    return dataclasses.replace(value, **{path[0]: new})


def _parse(text: str, current: Any, name: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(current, bool) != isinstance(value, bool) and current is not None and value is not None:
        raise InputError(f"setting {name}={text}: expected {type(current).__name__}, got {type(value).__name__}")
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    fits = current is None or value is None or isinstance(value, type(current))
    if not fits and not (isinstance(current, int) and isinstance(value, int)):
        raise InputError(f"setting {name}={text}: expected {type(current).__name__}, got {type(value).__name__}")
    return value


LabelRule = FovOverlap | SurfaceOverlap | Radius
LABEL_RULES = (FovOverlap, SurfaceOverlap, Radius)
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Batches:
    """How batches are put together."""

    strategy: str = "A"
    """A, B, C, D or binary; `all_pairs` (every pair of a neighbourhood's images); `triplet` for tuple losses."""
    size: int = 32
    """Pairs (or tuples) a batch; images a batch for `all_pairs`."""
    composed_by: LabelRule | None = None
    """Rule that decides which pairs are drawn, where it is not the rule that grades them (yes/no batches)."""
    partners: Literal["any", "other_groups"] = "any"
    """Overlapping pairs from all images, or only from two groups: other walks and days, as queries will be."""
    zeros: Literal["uniform", "near"] = "uniform"
    """How pairs without overlap are drawn."""
    places: int = 2
    """Neighbourhoods a batch of `all_pairs`."""
    focus: bool = False
    """Whether the weight of pairs without overlap goes to those whose loss is not 0 yet."""
    negatives: int = 10
    """Negatives a tuple."""
    mined: bool = False
    """Whether a tuple's negatives are the hardest of a cache of descriptors, renewed every `refresh` batches."""
    refresh: int = 250
    pool: int = 1000
    """How many candidates the cache holds."""


@dataclass(frozen=True)
class Optimiser:
    """Who steps, how far, and when the steps shrink."""

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    head_rate: float = 1.0
    """Factor on the learning rate of the pooling's own parameters."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["step", "cosine"] = "step"
    decay: float = 0.1
    """Factor of each decrease of the `step` schedule."""
    decay_every: float = 0.5
    """Share of the run after which the rate decreases: 1/2 is once, after half of the pairs."""
    warmup: float = 0.0
    """Share of the run over which the rate rises from 0."""

    def rate(self, done: float) -> float:
        """Factor on the learning rate when the share `done` of the run lies behind."""
        rise = min(1.0, done / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            import math

            return rise * 0.5 * (1 + math.cos(math.pi * done))
        return rise * float(self.decay ** int(done / self.decay_every + 1e-9))


@dataclass(frozen=True)
class Recipe:
    """One training run, without its seed and the place of its data."""

    dataset: str
    model: ModelConfig
    labels: LabelRule = field(default_factory=FovOverlap)
    loss: PairLoss | TupleLoss = field(default_factory=GeneralizedContrastive)
    batches: Batches = field(default_factory=Batches)
    optimiser: Optimiser = field(default_factory=Optimiser)
    split: str = "train"
    epochs: int = 1
    steps: int | None = None
    """Optimiser steps of the run, where it is not a whole number of epochs; 0 = the network as it comes."""
    accumulate: int = 1
    """Batches whose gradients make one step."""
    validation: str = ""
    """Benchmark whose Recall@5 picks the best model; empty = keep the last."""
    validations: int = 4
    """How often a run validates, evenly spread, the end included."""
    whiten: int = 0
    """Dimensions of a whitening fitted on the training images after the last step; 0 = none."""
    whitening: WhiteningRule = PCA
    """How it is fitted: by PCA, or learned from the recipe's labels."""
    precision: Precision = "float32"
    compile: bool = False
    deterministic: bool = True
    cache_gb: float = 8.0
    """Up to this size the frozen part's output (or, where nothing is frozen, the decoded images) is kept on disk."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.accumulate < 1 or (self.steps is not None and self.steps < 0):
            raise InputError("epochs and accumulate must be at least 1, steps at least 0")
        if isinstance(self.loss, TupleLoss) != (self.batches.strategy == "triplet"):
            raise InputError(
                f"loss {type(self.loss).__name__} and batches of strategy {self.batches.strategy!r} do not fit; "
                "tuple losses take strategy 'triplet', pair losses any other"
            )
        if self.batches.partners != "any" and isinstance(self.loss, TupleLoss):
            raise InputError("batches.partners is for pair losses; tuples take partners of any group")
        if self.batches.mined and self.accumulate > 1:
            raise InputError("mined batches are made for one step each; set accumulate=1 and a larger batches.size")


RECIPES: Registry[Callable[[], Recipe]] = Registry("recipe")
"""Name → function that returns the recipe."""


def configure(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with each FIELD=VALUE applied, such as `loss.margin=0.7` or `loss=contrastive`."""
    choices: dict[str, dict[str, Any]] = {"loss": {name: kind() for name, kind in LOSSES.items()}}
    return apply(recipe, settings, choices)


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON."""
    told: dict[str, Any] = describe(recipe)
    return told


def restore_recipe(told: dict[str, Any]) -> Recipe:
    """Back from `describe_recipe`."""
    kinds = {
        kind.__name__: kind
        for kind in (Recipe, Batches, Optimiser, ModelConfig, WhiteningRule, *LABEL_RULES, *LOSSES.values())
    }
    recipe: Recipe = restore(told, kinds)
    return recipe
