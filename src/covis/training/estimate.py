"""What a run will cost, estimated from one batch before it starts."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from covis.core.progress import duration
from covis.training.batch_images import BatchImages
from covis.training.loop import Loop


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


def estimate_run(loop: Loop) -> RunEstimate:
    """Measures one batch of the run on a copy of its model; the run itself is untouched."""
    recipe, model = loop.recipe, copy.deepcopy(loop.model)
    images = BatchImages.of(loop.data.batch(0), loop.data.one_set)
    fetched = next(iter(loop.source.fetch([images.request])))
    model.train()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.random.fork_rng(devices=[]):
        for measured in (False, True):  # the first pass pays for one-off set-up
            started = time.monotonic()
            with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
                loss = images.loss(recipe.loss, loop.step.describe(model.suffix, fetched.features))
            (loss / images.batch.total_weight).backward()  # type: ignore[no-untyped-call]
            if not measured:
                kept.clear()
    seconds = (time.monotonic() - started) * recipe.accumulate / loop.ranks.world
    weights = sum(t.nbytes for t in model.state_dict().values())
    trained = sum(p.numel() for _, p in model.trained_parameters())
    state = {"sgd": 1 + bool(recipe.optimiser.momentum), "adamw": 3}[recipe.optimiser.name] * 4 * trained
    batches = loop.total * recipe.accumulate
    return RunEstimate(
        pairs=batches * len(images.batch),
        steps=loop.total,
        images_per_step=len(images) * recipe.accumulate,
        trained_parameters=trained,
        memory_gib=(weights + state + sum(kept.values())) / (1 << 30),
        seconds_per_step=seconds,
        hours=(loop.total - loop.progress.step) * seconds / 3600,
    )
