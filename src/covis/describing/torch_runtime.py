"""A network in torch on this machine: a batch of pixels to descriptors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covis.core import machine
from covis.core.arrays import Ids
from covis.describing.decoded import BadFile
from covis.describing.loading import Loaded, OnReject, joint_batches
from covis.images import ImageSet
from covis.models import Embedder


class TorchRuntime:
    """A model as a `covis.runtime.Runtime`: by default on the GPU in half precision, else on the CPU in single.

    With half precision pooling and norm stay in float32.
    """

    one_core = False

    def __init__(self, model: Embedder, device: str | None = None, half: bool | None = None) -> None:
        self.device = torch.device(device or machine.device())
        self.half = self.device.type == "cuda" if half is None else half
        self.model = model.eval()
        self.model.to(self.device)
        self.dim = model.dim
        self.image_size = model.preprocessing.image_size

    def vectors(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 → (B, dim) float32 of unit norm, on the device."""
        context = torch.autocast(self.device.type) if self.half else nullcontext()
        with torch.inference_mode(), context:
            vectors: Tensor = self.model(self.model.normalise(images.to(self.device, non_blocking=True)))
            return vectors.float()

    def batches(
        self, images: ImageSet, requests: Iterable[Ids], workers: int, rejects: list[BadFile] | None
    ) -> Iterator[Loaded]:
        """The decoded images of each request; bad files go to `rejects`, or are errors without it."""
        on_reject: OnReject = "raise" if rejects is None else "skip"
        sets = ((ids,) for ids in requests)
        for (loaded,) in joint_batches((images,), sets, self.image_size, workers, on_reject=on_reject, rejects=rejects):
            yield loaded

    def join(self, parts: Sequence[Tensor]) -> NDArray[np.float32]:
        """The vectors of several batches in one array; only here does the host wait for the device."""
        return np.asarray(torch.cat([torch.empty((0, self.dim), device=self.device), *parts]).cpu().numpy(), np.float32)

    def describe(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The same for arrays."""
        vectors = self.vectors(torch.from_numpy(np.ascontiguousarray(pixels)))
        return np.asarray(vectors.cpu().numpy(), np.float32)
