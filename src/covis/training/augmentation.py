"""What changes training images at random, by name: (3, H, W) uint8 → the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covis.core.errors import InputError
from covis.core.foreign import first_line
from covis.core.registry import Registry

AUGMENTATIONS: Registry[Callable[[], Any]] = Registry("augmentation")
"""Name → function that makes the transform; its random numbers must come from torch."""


def _transforms() -> Any:
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"torchvision cannot be imported ({first_line(error)}); install the build that fits your torch, or register "
            "an augmentation of your own"
        ) from None
    return v2


@AUGMENTATIONS.register("randaugment")
def randaugment() -> Any:
    """RandAugment of three operations, as GSV-Cities, MixVPR, SALAD and BoQ train."""
    v2 = _transforms()
    return v2.RandAugment(num_ops=3, interpolation=v2.InterpolationMode.BILINEAR)


@AUGMENTATIONS.register("colour_jitter")
def colour_jitter() -> Any:
    """Brightness, contrast, saturation and hue."""
    return _transforms().ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
