"""One step of training: batches to descriptors to losses to gradients to new weights.

`Step` is open: a subclass that overrides a method trains differently, by `train(recipe, run, step=MyStep)`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from covis.core.errors import InputError
from covis.describing.features import Fetched
from covis.models import PlaceModel
from covis.sampling.composition import count_bands
from covis.training.batch_images import BatchImages
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
        self.trained = _trained_module(recipe, model, ranks)

    def __call__(self, number: int, rate: float, batches: Sequence[tuple[BatchImages, Fetched]]) -> float:
        """Does the run's step `number` at a learning rate; returns its loss. A loss that is not finite changes nothing."""
        torch.manual_seed(int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0]))
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        total_weight = sum(images.batch.total_weight for images, _ in batches)
        loss = 0.0
        for k, (images, fetched) in enumerate(batches):
            loss += self.backward(images, fetched, total_weight, last=k == len(batches) - 1)
        if np.isfinite(loss):
            self.scaler.step(self.optimiser)
            self.scaler.update()
        return loss

    def backward(self, images: BatchImages, fetched: Fetched, total_weight: float, *, last: bool) -> float:
        """Adds the gradients of one batch; ranks exchange them only with the `last` batch of a step. Returns its loss."""
        mixed = self.recipe.precision != "float32"
        alone = isinstance(self.trained, DistributedDataParallel) and not last
        with self.trained.no_sync() if alone else contextlib.nullcontext():  # type: ignore[operator]
            with torch.autocast(self.ranks.device.type, getattr(torch, self.recipe.precision), enabled=mixed):
                descriptors = self.describe(self.trained, fetched.features)
            descriptors = self.ranks.gather(descriptors, len(images))
            ids = self.ranks.gather_ids(np.concatenate(fetched.ids), len(images))
            images = images.relabelled(ids, self.data.labels)
            self.composition += count_bands(images.batch.psi)
            loss = images.loss(self.recipe.loss, descriptors) / total_weight
            if torch.isfinite(loss):
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

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
        compilers = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
        if ranks.device.type == "cpu" and not any(map(shutil.which, compilers)):
            raise InputError("compile=true needs a C++ compiler on a CPU, and there is none; set compile=false")
        trained = torch.compile(trained)  # type: ignore[assignment]
    return DistributedDataParallel(trained) if ranks.world > 1 else trained


def make_optimiser(recipe: Recipe, model: PlaceModel) -> torch.optim.Optimizer:
    """The optimiser of all parameters that learn; those of the pooling have their own factor."""
    o = recipe.optimiser
    named = list(model.trained_parameters())
    groups = [
        {"params": [p for n, p in named if not n.startswith("pool.")], "factor": 1.0},
        {"params": [p for n, p in named if n.startswith("pool.")], "factor": o.head_rate},
    ]
    groups = [g for g in groups if g["params"]]
    if not groups:
        raise InputError("nothing in this model learns; choose trainable=last1, last2 or all, or a pooling that learns")
    if o.name == "sgd":
        return torch.optim.SGD(groups, lr=o.learning_rate, momentum=o.momentum, weight_decay=o.weight_decay)
    return torch.optim.AdamW(groups, lr=o.learning_rate, weight_decay=o.weight_decay)
