"""A module of the user's own as a backbone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covis.core.errors import InputError
from covis.models.backbone import Backbone
from covis.models.plan import WHOLE, Plan


def wrapped_name(module: nn.Module) -> str:
    """What a module of the user's own is called."""
    return f"wrapped {type(module).__name__}"


class Wrapped(Backbone):
    """A module of the user's own that gives vectors: one step, and a map of a single place."""

    def __init__(self, module: nn.Module, image_size: tuple[int, int]) -> None:
        nn.Module.__init__(self)
        self.name, self.net = wrapped_name(module), module.eval()
        self.patch, self.prefix_tokens, self.taps, self.positions = (1, 1), 0, (), "library"
        self.plan = Plan((WHOLE,), ())
        with torch.inference_mode():
            self.level_channels = (int(self.run(torch.zeros(1, 3, *image_size), 0, 1, image_size).shape[1]),)

    def run(self, x: Tensor, start: int, stop: int, grid: tuple[int, int]) -> Tensor:
        """The whole module, if it is among the steps: (B, 3, H, W) → (B, dim, 1, 1)."""
        if start >= stop:
            return x
        vectors = self.net(x)
        vectors = vectors[0] if isinstance(vectors, tuple) else vectors
        if not isinstance(vectors, Tensor) or vectors.ndim != 2:
            raise InputError(
                f"{self.name} must give one vector per image, (B, dim), not {getattr(vectors, 'shape', vectors)}"
            )
        return vectors[:, :, None, None]
