"""One step of training: batches to descriptors to losses to gradients to new weights.

`Step` is open: a subclass that overrides a method trains differently, by `train(recipe, run, step=MyStep)`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from covis.core.errors import InputError, unknown_name
from covis.describing.features import Fetched, low_precision
from covis.models import PlaceModel
from covis.sampling.composition import count_bands
from covis.training.batch_images import BatchImages
from covis.training.batch_statistics import SharedStatistics
from covis.training.callbacks import work
from covis.training.data import TrainingData
from covis.training.ranks import Ranks
from covis.training.recipe import Recipe


class Step:
    """A step of the optimiser, over one batch or several whose gradients add up."""

    def __init__(self, recipe: Recipe, model: PlaceModel, data: TrainingData, ranks: Ranks, seed: int) -> None:
        self.recipe, self.model, self.data, self.ranks, self.seed = recipe, model, data, ranks, seed
        self.composition = Counter[str]()
        self.optimiser = make_optimiser(recipe, model)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=recipe.precision == "float16")
        alone: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.statistics = SharedStatistics(ranks.gather_equal) if ranks.world > 1 else alone
        self.trained = _trained_module(recipe, model, ranks)

    def __call__(self, number: int, rate: float, batches: Sequence[tuple[BatchImages, Fetched]]) -> float:
        """Does the run's step `number` at a learning rate; returns its loss. A loss that is not finite changes nothing."""
        torch.manual_seed(int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0]))
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        total_weight = sum(images.batch.total_weight for images, _ in batches)
        losses = [
            self.backward(images, fetched, total_weight, last=k == len(batches) - 1)
            for k, (images, fetched) in enumerate(batches)
        ]
        with work("wait for the GPU"):  # the only time in a step
            loss = float(torch.stack(losses).sum())
        if np.isfinite(loss):
            with work("update"):
                self.update()
        return loss

    def backward(self, images: BatchImages, fetched: Fetched, total_weight: float, *, last: bool) -> Tensor:
        """Adds the gradients of one batch; ranks exchange them only with the `last` batch of a step. Returns its loss."""
        ids = self.ranks.gather_ids(np.concatenate(fetched.ids), len(images))
        images = images.relabelled(ids, self.data.labels)
        self.composition += count_bands(images.batch.psi)
        alone = isinstance(self.trained, DistributedDataParallel) and not last
        with self.trained.no_sync() if alone else contextlib.nullcontext():  # type: ignore[operator]
            with work("forward"), low_precision(self.ranks.device, self.recipe.precision), self.statistics:
                descriptors = self.describe(self.trained, fetched.features)
            with work("exchange of descriptors"):
                descriptors = self.ranks.gather(descriptors, len(images))
            with work("loss and backward"):
                loss = images.loss(self.recipe.loss, descriptors) / total_weight
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Changes the weights by their gradients."""
        if self.recipe.optimiser.clip:
            self.scaler.unscale_(self.optimiser)
            parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.recipe.optimiser.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()

    def describe(self, trained: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
        """What the loss compares: (B, dim)."""
        return trained(features).float()


class _TrainedPart(nn.Module):
    """The trained part as the module that is stepped, compiled and kept equal across ranks."""

    def __init__(self, model: PlaceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        return self.model.suffix(features)


def _trained_module(recipe: Recipe, model: PlaceModel, ranks: Ranks) -> nn.Module:
    trained: nn.Module = _TrainedPart(model)
    if recipe.compile:
        language, *compilers = (
            ("C++", "g++", "clang++", "c++") if ranks.device.type == "cpu" else ("C", "gcc", "clang", "cc")
        )
        compilers.append(os.environ.get("CXX" if language == "C++" else "CC", ""))
        if not any(map(shutil.which, compilers)):
            raise InputError(
                f"compile=true needs a {language} compiler, and there is none; install one or set compile=false"
            )
        trained = torch.compile(trained, dynamic=True)  # type: ignore[assignment]  # batches differ in their images
    if ranks.world == 1:
        return trained
    # Kernels of 1×1 have several ways to say the same strides; nothing is copied because of it.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    return DistributedDataParallel(trained)


def make_optimiser(recipe: Recipe, model: PlaceModel) -> torch.optim.Optimizer:
    """The optimiser of all parameters that learn, in groups of one `factor` on the learning rate, by `layer_decay`."""
    o = recipe.optimiser
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.trained_parameters():
        factor = 1.0 if name.startswith("pool.") else o.layer_decay ** model.backbone.plan.depth(name)
        groups.setdefault(factor, []).append(parameter)
    if not groups:
        raise InputError("nothing in this model learns; choose trainable=last1, last2 or all, or a pooling that learns")
    kind = _optimiser_class(o.name)
    known = inspect.signature(kind).parameters
    given = {"momentum": o.momentum, "weight_decay": o.weight_decay}
    unknown = [key for key, value in given.items() if value and key not in known]
    if unknown:
        raise InputError(f"optimiser {o.name} has no {unknown[0]}; set optimiser.{unknown[0]}=0")
    settings = {key: value for key, value in given.items() if key in known}
    parameters = [{"params": params, "factor": factor} for factor, params in groups.items()]
    made: torch.optim.Optimizer = kind(parameters, lr=o.learning_rate, **settings)
    return made


def _optimiser_class(name: str) -> Any:
    """The class of `torch.optim` whose name this is, in any case."""
    kinds = {
        k.lower(): v for k, v in vars(torch.optim).items() if isinstance(v, type) and k not in ("Optimizer", "LBFGS")
    }
    if name.lower() not in kinds:
        raise unknown_name("optimiser", name, kinds)
    return kinds[name.lower()]
