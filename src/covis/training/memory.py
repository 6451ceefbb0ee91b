"""The memory of training: its peak, and what to do where it does not suffice."""

from __future__ import annotations

import resource

import torch

from covis.core.errors import InputError
from covis.training.recipe import Recipe


def peak_gib(device: torch.device) -> float:
    """Peak of the GPU's memory, or of the whole process where there is no GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / (1 << 30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def too_large(recipe: Recipe, images: int) -> InputError:
    """The error of a step that found no memory for its `images` of one batch on this process."""
    field = "size" if "size" in recipe.batches.__dataclass_fields__ else "places"
    half = max(1, getattr(recipe.batches, field) // 2)
    more = "" if recipe.batches.mined else f" --set accumulate={2 * recipe.accumulate}"
    return InputError(
        f"no memory for the {images} images of a batch; try --set batches.{field}={half}{more}"
        ", --set precision=bfloat16 or fewer trainable blocks"
    )
