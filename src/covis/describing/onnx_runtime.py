"""An exported model on this machine: batches of decoded images to descriptors, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from covis.core import machine
from covis.core.arrays import Ids
from covis.describing.decoded import BadFile, DecodedBatch, decoded_batches
from covis.images import ImageSet
from covis.models.onnx_model import OnnxPlaceModel


class OnnxRuntime:
    """What `embed` needs of a model, by ONNX Runtime."""

    half = False

    def __init__(self, model: OnnxPlaceModel, device: str | None = None) -> None:
        self.model = model.to(device or machine.device())
        self.dim = model.dim
        self.image_size = model.preprocessing.image_size

    def vectors(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, 3, H, W) uint8 → (B, dim) of unit norm."""
        return self.model.describe(images)

    describe = vectors

    def batches(
        self, images: ImageSet, requests: Iterable[Ids], workers: int, rejects: list[BadFile] | None
    ) -> Iterator[DecodedBatch]:
        """The decoded images of each request; bad files go to `rejects`, or are errors without it."""
        return decoded_batches(images, requests, self.image_size, workers, rejects=rejects)

    def join(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The vectors of several batches in one array."""
        return np.concatenate([np.zeros((0, self.dim), np.float32), *parts])
