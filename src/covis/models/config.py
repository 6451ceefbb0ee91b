"""What a model is made of, and how images are prepared for it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from covis.core import artifacts
from covis.core.errors import InputError, unknown_name
from covis.runtime import ONNX_FILE

if TYPE_CHECKING:
    from torch import Tensor

StrideOn = Literal["conv2", "conv1"]
BatchNormStatistics = Literal["with_block", "frozen", "everywhere"]
Positions = Literal["library", "original"]
Facet = Literal["token", "query", "key", "value"]

MODEL_KIND = "model"
"""The kind that the manifest of a model folder states."""
ORIGIN = ("recipe", "seed", "data", "weights", "licence")
"""Entries of a model's card that say where it came from."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ModelConfig:
    """A place model before it has weights."""

    backbone: str = "resnet50"
    """A name in timm, or `tiny`."""
    pool: str = "gem"
    """A name in `covis.models.POOLS`."""
    image_size: tuple[int, int] = (480, 640)
    """Height, width in pixels that every image is resized to; rounded to whole patches for a transformer."""
    trainable: str = "last2"
    """Which blocks of the backbone learn: `last1`, `last2`, …, `all` or `none`; the pooling always does."""
    weights: str | None = None
    """None = random, "pretrained" (or "pretrained:SHA256") = timm's for this name from the model hub, or a .safetensors file or model directory."""
    stride_on: StrideOn = "conv2"
    """Which convolution of a ResNet bottleneck halves the map: conv2 today, conv1 in networks of 2015."""
    blocks: int = 0
    """How many leading blocks of the backbone are kept; 0 = all. Earlier features tell places apart by finer detail."""
    levels: tuple[int, ...] = ()
    """Blocks whose maps are pooled, each by itself, and joined, such as (6, 8, 10); () pools the last map alone."""
    batchnorm: BatchNormStatistics = "with_block"
    """Running statistics: frozen in frozen blocks and live in trained ones, or `frozen`, or live, `everywhere`."""
    adapters: int = 0
    """Rank of low-rank additions (LoRA) that learn instead of the trainable blocks' weights; 0 = the weights learn."""
    positions: Positions = "library"
    """How a transformer stretches its position embeddings to another image size: timm's way, or that of DINOv2's authors."""
    final_norm: bool = True
    """Whether a transformer ends with its layer norm, a VGG with its ReLU and pooling, a DenseNet with a ReLU."""
    facet: Facet = "token"
    """What is pooled of a transformer's last block: its tokens, or queries, keys or values of its attention."""

    def __post_init__(self) -> None:
        pair = self.image_size if isinstance(self.image_size, Sequence) else ()
        if len(pair) != 2 or min(pair) < 16:
            raise InputError(f"image_size is (height, width) of at least 16 pixels, not {self.image_size}")
        for field in ("image_size", "levels"):
            object.__setattr__(self, field, tuple(int(number) for number in getattr(self, field)))
        if self.adapters < 0 or (self.adapters and self.trainable == "none"):
            raise InputError(
                f"adapters={self.adapters} is the rank of what learns in the trainable blocks: give a rank from 1, and "
                'trainable="last1", "last2" or "all"'
            )
        if self.blocks and self.levels:
            raise InputError(f"levels={self.levels} ends the backbone after the last of them; leave blocks at 0")
        if not re.fullmatch("all|none|last[1-9][0-9]*", str(self.trainable)):
            raise unknown_name("trainable", str(self.trainable), ("last1", "last2", "last4", "all", "none"))
        choices = {
            "stride_on": StrideOn,
            "batchnorm": BatchNormStatistics,
            "positions": Positions,
            "facet": Facet,
        }
        for field, kind in choices.items():
            if getattr(self, field) not in get_args(kind):
                raise unknown_name(field, str(getattr(self, field)), get_args(kind))

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self) | {"image_size": list(self.image_size), "levels": list(self.levels)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Back from `to_dict`; an unknown field is an error that suggests the nearest."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_name("model field", name, known)
        return cls(**values)


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
        """A photo as `covis.reading.inputs` takes it → (3, H, W) uint8 of this size."""
        pixels: Tensor
        [pixels] = self.batch(image)
        return pixels

    def batch(self, images: Any) -> Tensor:
        """One photo or several → (B, 3, H, W) uint8 of this size."""
        import torch

        from covis.reading.inputs import expand_photos

        pixels = [photo.pixels(self.image_size) for photo in expand_photos(images)]
        return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def write_without_weights(
    path: Path,
    fingerprint: str,
    dim: int,
    card: Mapping[str, Any],
    *,
    preprocessing: Preprocessing | None = None,
    network: Path | None = None,
    replace: bool = False,
) -> None:
    """Writes a model folder whose network is an ONNX file or, without one, lies elsewhere; all or nothing.

    card: what is known of the model, at least its `backbone` (a name for people).
    """
    with artifacts.create(path, MODEL_KIND, {"fingerprint": fingerprint, "dim": dim}, replace=replace) as draft:
        if network is not None:
            shutil.copyfile(network, draft.path / ONNX_FILE)
        artifacts.write_json(draft.path / "config.json", {"backbone": card["backbone"], "pool": card.get("pool")})
        if preprocessing is not None:
            artifacts.write_json(draft.path / "preprocessing.json", asdict(preprocessing))
        artifacts.write_json(draft.path / "card.json", {"dim": dim, **card, "fingerprint": fingerprint})
