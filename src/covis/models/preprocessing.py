"""From a photo to the pixels that a network sees: one definition for training, evaluation and service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covis.models.config import IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True)
class Preprocessing:
    """Resize to `image_size` (height, width), scale to [0, 1], subtract mean, divide by standard deviation."""

    image_size: tuple[int, int]
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name in ("image_size", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def pixels(self, image: Any) -> Tensor:
        """A photo (path, Pillow image or (H, W, 3) uint8 RGB array) → (3, H, W) uint8 of this size."""
        from covis import decoding

        if isinstance(image, (str, Path)):
            resized = decoding.decode(image, self.image_size)
        else:
            array = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
            if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
                raise ValueError(f"an image is (H, W, 3) uint8 RGB, not {array.shape} {array.dtype}")
            resized = decoding.resize(array, self.image_size)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)
