"""XFeat as an ONNX file of the user's: `covis --import evidence evaluate … --rerank local:xfeat=FILE`.

On photographs it found no more at rank 1 than no re-ranking, and answered no more photos than SIFT (`docs/evidence.md`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import sha256
from covis.runtime import open_session
from covis.search.local import EXTRACTORS
from covis.search.local_features import MOST, SIDE, LocalFeatures, decoded

_CELL = 32
"""Sides of the network's input are multiples of this."""
_OUTPUTS = ["descriptors", "keypoint_logits", "reliability"]


@EXTRACTORS.register("xfeat")
class XFeat:
    """XFeat (Potje et al., CVPR 2024) as an ONNX file that gives descriptors, key-point logits and reliability."""

    radius, threshold, stride = 2, 0.05, 8
    ratio = None

    def __init__(self, file: Path | None) -> None:
        if file is None:
            raise InputError("local:xfeat needs its network: local:xfeat=FILE.onnx")
        self.file = file.expanduser()
        if not self.file.is_file():
            raise InputError(f"{self.file} does not exist; give the network as local:xfeat=FILE")
        self.session = open_session(self.file, remedy="download it again")
        lacking = sorted(set(_OUTPUTS) - {output.name for output in self.session.get_outputs()})
        if lacking:
            raise InputError(
                f"{self.file} has no output {lacking[0]!r}; give an export of XFeat with the outputs {', '.join(_OUTPUTS)}"
            )

    def facts(self) -> dict[str, Any]:
        """Name, weights and bounds."""
        return {"features": "xfeat", "weights": sha256(self.file), "most": MOST, "side": SIDE}

    def __call__(self, path: Path) -> LocalFeatures:
        """Up to `MOST` features, by how sure the network is of the place and of the descriptor."""
        pixels, size = _pixels(path)
        descriptors, logits, reliability = (v[0] for v in self.session.run(_OUTPUTS, {"input": pixels[None]}))
        xy, value = peaks(_heat(logits, self.stride), self.radius, self.threshold)
        at = xy.astype(np.float64) + 0.5
        sure = np.asarray(value * sampled(reliability, at, self.stride)[:, 0], np.float32)
        return _strongest(at, sure, descriptors, self.stride, pixels, size)


def _heat(logits: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """(side² + 1, h, w) logits of the pixels of each cell, and of none → (h·side, w·side) probabilities."""
    odds = np.exp(logits - logits.max(axis=0, keepdims=True))
    share = (odds / odds.sum(axis=0, keepdims=True))[: side * side]
    _, rows, columns = share.shape
    cells = share.reshape(side, side, rows, columns).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(cells.reshape(rows * side, columns * side))


def peaks(score: NDArray[np.float32], radius: int, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(K, 2) pixels (column, row) that score highest within `radius` and above `threshold`, and their scores (K,)."""
    from scipy.ndimage import maximum_filter

    highest = (score == maximum_filter(score, 2 * radius + 1, mode="constant")) & (score > threshold)
    row, column = np.nonzero(highest)
    return np.column_stack([column, row]), score[row, column]


def sampled(maps: NDArray[np.float32], xy: Floats, stride: float) -> NDArray[np.float32]:
    """(K, C) values of maps (C, h, w), bilinear, at points (K, 2) of a picture whose cells have `stride` pixels."""
    _, rows, columns = maps.shape
    x = np.clip(xy[:, 0] / stride - 0.5, 0, columns - 1)
    y = np.clip(xy[:, 1] / stride - 0.5, 0, rows - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, bottom = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    across, down = (x - left).astype(np.float32), (y - top).astype(np.float32)
    upper = maps[:, top, left] * (1 - across) + maps[:, top, right] * across
    lower = maps[:, bottom, left] * (1 - across) + maps[:, bottom, right] * across
    return np.ascontiguousarray((upper * (1 - down) + lower * down).T)


def _pixels(path: Path) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """The photo as (3, h, w) in [0, 1], its longer side about `SIDE`, both multiples of 32; and its own (width, height)."""
    from PIL import Image

    full = decoded(path)
    height, width = full.shape[:2]
    scale = min(2.0, SIDE / max(height, width))
    rows, columns = (max(_CELL, round(side * scale / _CELL) * _CELL) for side in (height, width))
    small = Image.fromarray(full).resize((columns, rows), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small, np.float32).transpose(2, 0, 1) / 255), (width, height)


def _strongest(
    at: Floats,
    value: NDArray[np.float32],
    descriptors: NDArray[np.float32],
    stride: int,
    pixels: NDArray[np.float32],
    size: tuple[int, int],
) -> LocalFeatures:
    """The `MOST` surest points with their descriptors, in pixels of the full picture."""
    best = np.argsort(-value, kind="stable")[:MOST]
    vectors = sampled(descriptors, at[best], stride)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return LocalFeatures(at[best] * (np.array(size) / pixels.shape[:0:-1]), vectors, size)
