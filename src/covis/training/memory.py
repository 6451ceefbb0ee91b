"""The memory of a training step, measured on a real one, and what to do where it does not suffice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from covis.core.errors import InputError
from covis.training.recipe import Recipe

_GIB = 1 << 30


class StepMemory:
    """GiB of weights, gradients, optimiser state and of what a step keeps for its backward pass."""

    def __init__(self, device: torch.device, recipe: Recipe) -> None:
        self.device, self.batches, self.hooks = device, recipe.accumulate, not recipe.compile
        self.kept: dict[int, int] = {}

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Around one step."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with (
            torch.autograd.graph.saved_tensors_hooks(self._note, lambda t: t)
            if self.hooks
            else contextlib.nullcontext()
        ):
            yield

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def gib(self, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> float:
        """What the step took: a GPU's own count, or the sum of what was kept."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / _GIB
        weights = {p.data_ptr(): p.nbytes for p in model.state_dict().values()}
        learned = sum(p.nbytes for group in optimiser.param_groups for p in group["params"])
        state = sum(t.nbytes for s in optimiser.state.values() for t in s.values() if isinstance(t, Tensor))
        own = sum(size for address, size in self.kept.items() if address not in weights)
        return float((sum(weights.values()) + learned + state + own / self.batches) / _GIB)


def too_large(recipe: Recipe, images: int) -> InputError:
    """The error of a step that found no memory for its `images` of one batch on this process."""
    field = "size" if "size" in recipe.batches.__dataclass_fields__ else "places"
    half = max(1, getattr(recipe.batches, field) // 2)
    more = "" if recipe.batches.mined else f" --set accumulate={2 * recipe.accumulate}"
    return InputError(
        f"no memory for the {images} images of a batch; try --set batches.{field}={half}{more}"
        ", --set precision=bfloat16 or fewer trainable blocks"
    )
