"""What a run will cost, before it starts: one step on a copy of the model, measured."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from covis.progress import duration
from covis.training.batches import needed, weight_of, weighted_loss
from covis.training.loop import Loop

GIB = 1 << 30


@dataclass(frozen=True)
class Plan:
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


def make_plan(loop: Loop) -> Plan:
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
                loss = weighted_loss(recipe.loss, wanted, model.suffix(fetched.features).float())
            (loss / weight_of(wanted.batch)).backward()  # type: ignore[no-untyped-call]
            if not measured:
                kept.clear()
    seconds = (time.monotonic() - started) * recipe.accumulate / loop.ranks.world
    weights = sum(t.nbytes for t in model.state_dict().values())
    trained = sum(p.numel() for _, p in model.trained_parameters())
    state = {"sgd": 1 + bool(recipe.optimiser.momentum), "adamw": 3}[recipe.optimiser.name] * 4 * trained
    batches = loop.total * recipe.accumulate
    return Plan(
        pairs=batches * len(wanted.batch),
        steps=loop.total,
        images_per_step=wanted.images * recipe.accumulate,
        trained_parameters=trained,
        memory_gib=(weights + state + sum(kept.values())) / GIB,
        seconds_per_step=seconds,
        hours=(loop.total - loop.progress.step) * seconds / 3600,
    )
