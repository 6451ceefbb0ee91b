"""A network in torch on this machine: a batch of pixels to descriptors."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from covis.core import machine
from covis.models import PlaceModel


class TorchRuntime:
    """A model as a `covis.runtime.Runtime`: on the GPU in half precision (pooling and norm in single), or on the CPU in single."""

    one_core = False

    def __init__(self, model: PlaceModel) -> None:
        self.device = torch.device(machine.device())
        self.model = model.eval().to(self.device)
        self.dim, self.image_size = model.dim, model.preprocessing.image_size

    def describe(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, 3, H, W) uint8 → (B, dim) float32 of unit norm."""
        images = torch.from_numpy(pixels).to(self.device, non_blocking=True)
        half = torch.autocast(self.device.type) if self.device.type == "cuda" else nullcontext()
        with torch.inference_mode(), half:
            return np.asarray(self.model(self.model.normalise(images)).float().cpu().numpy())
