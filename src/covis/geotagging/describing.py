"""Descriptors of the photos that are asked about, kept by content, so that no photo is described twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from covis.core import files
from covis.core.arrays import Descriptors
from covis.geotagging.library import LibraryPhoto
from covis.geotagging.raw import picture_of
from covis.maps.map import Map
from covis.reading.decoding import Reject

_PIECE = 512
"""Photos that are described, and written, at once: what an interruption may cost."""


def describe(model: Map, photos: Sequence[LibraryPhoto], folder: Path) -> tuple[dict[str, Descriptors], dict[str, str]]:
    """Content → its descriptor, and content → why it has none; a file of `folder` for each piece that was described."""
    folder = folder / model.model_fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    vectors: dict[str, Descriptors] = {}
    kinds = {"keys": ("S", (None,)), "vectors": ("f", (None, model.dim))}
    stored = sorted(folder.glob("*.npz"))
    for file in stored:
        part = files.load_arrays(file, kinds, f"remove {file}")
        vectors |= dict(zip((k.decode() for k in part["keys"]), part["vectors"], strict=True))
    new = list({photo.key: photo for photo in photos if photo.key not in vectors}.values())
    lost: dict[str, str] = {}
    for number, start in enumerate(range(0, len(new), _PIECE), len(stored)):
        pictures = {}
        for photo in new[start : start + _PIECE]:
            try:
                pictures[photo.key] = picture_of(Path(photo.file))
            except Reject as reject:
                lost[photo.key] = reject.reason
        found, bad = model.describe(list(pictures.values()))
        keys = list(pictures)
        lost |= {keys[i]: why for i, why in bad.items()}
        keys = [key for i, key in enumerate(keys) if i not in bad]
        vectors |= dict(zip(keys, found, strict=True))
        with files.replacing(folder / f"{number:06d}.npz") as partial, partial.open("wb") as handle:
            np.savez(handle, keys=np.array(keys, "S64"), vectors=found)
    return vectors, lost
