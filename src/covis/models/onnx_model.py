"""A model in ONNX Runtime, the fastest on a CPU; it needs no torch."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core.machine import cpu_count
from covis.models.config import ORIGIN, Preprocessing, write_without_weights
from covis.runtime import OnnxSession

if TYPE_CHECKING:
    from torch import Tensor


class OnnxPlaceModel:
    """An exported model in ONNX Runtime, called like a `PlaceModel`: `model(model.normalise(uint8 batch))`."""

    one_core = False

    def __init__(self, session: OnnxSession, path: Path, threads: int = 1) -> None:
        """`session` uses one core; this many `threads` describe photos in parallel."""
        self._session, self.path = session, path
        self._map = ThreadPoolExecutor(threads).map if threads > 1 else map
        self.dim, self.facts, self.image_size = session.dim, session.facts, session.image_size
        self.preprocessing = Preprocessing(**session.facts["preprocessing"])

    @classmethod
    def open(cls, path: Path | str, threads: int | None = None) -> OnnxPlaceModel:
        """Opens a file that `export_onnx` wrote; by default with one thread per core, or OMP_NUM_THREADS."""
        return cls(OnnxSession.open(path, 1), Path(path), threads or _threads())

    def preprocess(self, image: Any) -> Tensor:
        """A photo (path, Pillow image, array, tensor, bytes or file) → (3, H, W), ready for the model."""
        return self.preprocessing.pixels(image)

    def normalise(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 as it is: normalisation is part of the exported file."""
        return images

    def __call__(self, pixels: Any) -> Tensor:
        """(B, 3, H, W) uint8, or photos of any form that is no tensor → (B, dim), unit norm."""
        import torch

        batch = pixels if isinstance(pixels, torch.Tensor) else self.preprocessing.batch(pixels)
        return torch.from_numpy(self.describe(batch.numpy()))

    def describe(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The same for arrays, without torch."""
        parts = self._map(self._session.describe, pixels[:, None])
        return np.concatenate([np.zeros((0, self.dim), np.float32), *parts])

    def fingerprint(self) -> str:
        """That of the model it was exported from: their descriptors are interchangeable."""
        return self._session.fingerprint

    def origin(self) -> dict[str, Any]:
        """Architecture, whitening, and where the weights came from, as far as the file says."""
        return dict(self.facts.get("origin", {}))

    def save(self, path: Path | str, *, replace: bool = False) -> None:
        """Writes a model folder that holds the ONNX file instead of weights."""
        origin = self.origin()
        known = {key: origin[key] for key in ORIGIN if key in origin}
        card = {"backbone": self.facts["backbone"], "pool": self.facts["pool"], **known}
        card |= {"whitening": origin.get("model_whitening"), "training": self.facts.get("training")}
        write_without_weights(
            Path(path), self.fingerprint(), self.dim, card,
            preprocessing=self.preprocessing, network=self.path, replace=replace,
        )  # fmt: skip


def _threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else cpu_count()
