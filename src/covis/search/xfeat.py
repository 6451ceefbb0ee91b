"""XFeat and its matcher LighterGlue, as ONNX files of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import sha256
from covis.runtime import open_session
from covis.search.local_features import MOST, SIDE, LocalFeatures, decoded

_CELL = 32
"""Sides of the network's input are multiples of this."""


class XFeat:
    """XFeat (Potje et al., CVPR 2024) as an ONNX file that gives descriptors, key-point logits and reliability."""

    radius, threshold, stride = 2, 0.05, 8
    ratio = None

    def __init__(self, file: Path | None) -> None:
        if file is None:
            raise InputError("local:xfeat needs its network: local:xfeat=FILE.onnx")
        self.file = file.expanduser()
        self.session = _session(self.file, {"descriptors", "keypoint_logits", "reliability"}, "local:xfeat=FILE")

    def facts(self) -> dict[str, Any]:
        """Name, weights and bounds."""
        return {"features": "xfeat", "weights": sha256(self.file), "most": MOST, "side": SIDE}

    def __call__(self, path: Path) -> LocalFeatures:
        """Up to `MOST` features, by how sure the network is of the place and of the descriptor."""
        pixels, size = _pixels(path)
        outputs = ["descriptors", "keypoint_logits", "reliability"]
        descriptors, logits, reliability = (v[0] for v in self.session.run(outputs, {"input": pixels[None]}))
        xy, value = peaks(_heat(logits, self.stride), self.radius, self.threshold)
        at = xy.astype(np.float64) + 0.5
        sure = np.asarray(value * sampled(reliability, at, self.stride)[:, 0], np.float32)
        return _strongest(at, sure, descriptors, self.stride, pixels, size)


class LighterGlue:
    """LighterGlue, the matcher that was trained for XFeat, as an ONNX file (key points in [0, 1] of the picture)."""

    least = 0.1

    def __init__(self, file: Path) -> None:
        self.file = file.expanduser()
        self.session = _session(self.file, {"matches", "scores"}, "local:xfeat=FILE+lighterglue=FILE")

    def facts(self) -> dict[str, Any]:
        """Name and weights."""
        return {"matcher": "lighterglue", "weights": sha256(self.file)}

    def __call__(self, first: LocalFeatures, second: LocalFeatures) -> NDArray[np.int64]:
        """(M, 2) matches that the network gives at least 10 %."""
        if not len(first.xy) or not len(second.xy):
            return np.zeros((0, 2), np.int64)
        given: dict[str, NDArray[np.float32]] = {}
        for k, side in enumerate((first, second)):
            given[f"kpts{k}"] = (side.xy / np.maximum(side.size, 1)).astype(np.float32)[None]
            given[f"desc{k}"] = side.descriptors.astype(np.float32)[None]
        pairs, scores = self.session.run(["matches", "scores"], given)
        return np.asarray(pairs, np.int64).reshape(-1, 2)[np.asarray(scores).reshape(-1) >= self.least]


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


def _session(path: Path, outputs: set[str], usage: str) -> Any:
    """A session of someone else's ONNX file that has these outputs."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give the network as {usage}")
    session = open_session(path, remedy="download it again")
    lacking = sorted(outputs - {output.name for output in session.get_outputs()})
    if lacking:
        raise InputError(f"{path} has no output {lacking[0]!r}; docs/search.md says which file is meant")
    return session
