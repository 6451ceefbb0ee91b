"""Descriptors of the photos that are asked about, kept by content, so that no photo is described twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core import files
from covis.geotagging.library import LibraryPhoto
from covis.maps.map import Map
from covis.reading.decoding import Reject
from covis.reading.inputs import Photo

_PIECE = 512
"""Photos that are described, and written, at once: what an interruption may cost."""


class Described:
    """Descriptors in a folder, a file for each piece that was described."""

    def __init__(self, folder: Path, model: Map) -> None:
        self.folder, self.map = folder / model.model_fingerprint, model
        self._vectors: dict[str, NDArray[np.float32]] = {}
        kinds = {"keys": ("S", (None,)), "vectors": ("f", (None, model.dim))}
        for file in sorted(self.folder.glob("*.npz")):
            part = files.load_arrays(file, kinds, f"remove {file}")
            self._vectors |= dict(zip((k.decode() for k in part["keys"]), part["vectors"], strict=True))

    def add(self, photos: Sequence[LibraryPhoto]) -> dict[str, str]:
        """Describes those that are new; returns content → why it cannot be described."""
        new = {photo.key: photo for photo in photos if photo.key not in self._vectors}
        lost: dict[str, str] = {}
        for start in range(0, len(new), _PIECE):
            self._describe(list(new.values())[start : start + _PIECE], lost)
        return lost

    def _describe(self, photos: Sequence[LibraryPhoto], lost: dict[str, str]) -> None:
        chosen: list[tuple[str, Photo]] = []
        for photo in photos:
            try:
                chosen.append((photo.key, photo.picture()))
            except Reject as reject:
                lost[photo.key] = reject.reason
        vectors, bad = self.map.describe([photo for _, photo in chosen])
        lost |= {chosen[i][0]: why for i, why in bad.items()}
        keys = [key for i, (key, _) in enumerate(chosen) if i not in bad]
        self._vectors |= dict(zip(keys, vectors, strict=True))
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob("*.npz")))
        with files.replacing(self.folder / f"{number:06d}.npz") as partial, partial.open("wb") as handle:
            np.savez(handle, keys=np.array(keys, "S64"), vectors=vectors)

    def of(self, photos: Sequence[LibraryPhoto]) -> NDArray[np.float32]:
        """(N, dim) descriptors of photos that were described."""
        rows = [self._vectors[photo.key] for photo in photos]
        return np.stack(rows) if rows else np.zeros((0, self.map.dim), np.float32)
