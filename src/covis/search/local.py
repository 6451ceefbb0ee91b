"""Local features of pictures: found, matched, and checked against the geometry of two views.

Two pictures of one place share many points that one homography (a flat scene, or a turned camera) or one fundamental
matrix (any scene) explains; the number of such points is the score of a re-ranking. Matching is numpy's, geometry
OpenCV's (`pip install 'covis[local]'`), SIFT pycolmap's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError
from covis.ranking import Ranking
from covis.search.rerank import RERANK_DEPTH, reordered

RATIO = 0.85
"""A match's distance to that of the second-best, at most (Lowe 2004)."""
MAX_FEATURES = 4096
MAX_SIDE = 1600
"""Pictures are scaled down to this for features."""
Geometry = Literal["homography", "fundamental", "both"]
MAX_ERROR = 0.01
"""How far a match may lie from where the geometry puts it, as a share of the picture's diagonal."""
_TRIALS, _CONFIDENCE = 1000, 0.999
_LEAST = {"homography": 4, "fundamental": 8}


class Features(NamedTuple):
    """Local features of a picture."""

    xy: Floats
    """(K, 2) pixels of the full picture, centre of the first pixel at 0.5."""
    descriptors: NDArray[np.float32]
    """(K, D) unit norm."""
    size: tuple[int, int] = (0, 0)
    """(width, height) of the full picture."""


Matcher = Callable[[Features, Features], NDArray[np.int64]]
"""Features of two pictures → (M, 2) which belong together."""


def sift(path: Path, most: int = MAX_FEATURES, side: int = MAX_SIDE) -> Features:
    """SIFT features of a picture, upright as it is shown (square roots of the histograms: RootSIFT)."""
    from PIL import Image, ImageOps

    pycolmap = open_pycolmap("SIFT")
    with Image.open(path) as image:
        shown = ImageOps.exif_transpose(image).convert("L")
    scale = min(1.0, side / max(shown.size))
    small = shown.resize((round(shown.width * scale), round(shown.height * scale))) if scale < 1 else shown
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features = most
    extractor = pycolmap.FeatureExtractor.create(options, pycolmap.Device.cpu)
    keypoints, descriptors = extractor.extract_from_uint8_array(np.asarray(small, np.uint8))
    values = np.asarray(descriptors.data, np.float32)
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-9)
    xy = np.array([[k.x, k.y] for k in keypoints], np.float64).reshape(-1, 2)
    return Features(xy * (np.array(shown.size) / np.array(small.size)), values, shown.size)


def open_pycolmap(what: str) -> Any:
    """The library, silenced; `what` needs it."""
    try:
        import pycolmap
    except ImportError:
        raise InputError(f"{what} needs pycolmap: pip install 'covis[sfm]'") from None
    pycolmap.logging.minloglevel = 1  # covis reports what matters
    return pycolmap


def match(first: Features, second: Features, ratio: float | None = RATIO) -> NDArray[np.int64]:
    """(M, 2) mutual nearest features that are clearly nearer than the second-best; without `ratio`, all mutual ones."""
    if len(first.xy) < 2 or len(second.xy) < 2:
        return np.zeros((0, 2), np.int64)
    alike = first.descriptors @ second.descriptors.T
    best = alike.argmax(axis=1)
    chosen = alike.argmax(axis=0)[best] == np.arange(len(best))
    if ratio is not None:
        top = np.partition(alike, -2, axis=1)[:, -2:]
        distance = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * top))
        chosen &= distance[:, 1] < ratio * distance[:, 0]
    use = np.flatnonzero(chosen)
    return np.column_stack([use, best[use]])


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


def inliers(
    first: Features, second: Features, pairs: NDArray[np.int64], geometry: Geometry = "homography",
    max_error: float = MAX_ERROR,
) -> int:  # fmt: skip
    """How many of the matched `pairs` (M, 2) one geometry of two views explains; "both" takes the larger of the two.

    max_error: of the larger picture's diagonal. Deterministic: OpenCV draws from a fixed seed.
    """
    least = min(_LEAST[kind] for kind in (_LEAST if geometry == "both" else (geometry,)))
    if len(pairs) < least:
        return 0
    cv2 = _opencv()
    here, there = first.xy[pairs[:, 0]], second.xy[pairs[:, 1]]
    extent = [np.hypot(*f.size) if any(f.size) else np.hypot(*np.ptp(f.xy, axis=0)) for f in (first, second)]
    limit = max_error * max(1.0, *map(float, extent))
    best = 0
    for kind in ("homography", "fundamental") if geometry == "both" else (geometry,):
        if len(pairs) < _LEAST[kind]:
            continue
        if kind == "homography":
            _, mask = cv2.findHomography(here, there, cv2.USAC_MAGSAC, limit, maxIters=_TRIALS, confidence=_CONFIDENCE)
        else:
            _, mask = cv2.findFundamentalMat(here, there, cv2.USAC_MAGSAC, limit, _CONFIDENCE, _TRIALS)
        best = max(best, 0 if mask is None else int(np.count_nonzero(mask)))
    return best


def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        raise InputError("geometric verification needs OpenCV: pip install 'covis[local]'") from None
    return cv2


@dataclass(frozen=True, eq=False)
class LocalRerank:
    """Orders the first `depth` results of each query by how many local features agree on one geometry."""

    query_features: Callable[[int], Features]
    map_features: Callable[[int], Features]
    depth: int = RERANK_DEPTH
    matcher: Matcher = match
    geometry: Geometry = "homography"
    counts: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """After a call: inliers of each query's head, in the order of the ranking that was given."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head by inliers, equal ones as they were; distances stay those of the descriptors."""
        return reordered(ranking, self.depth, self._scores)

    def _scores(self, query: int, ids: NDArray[np.int64], distances: NDArray[np.floating]) -> Floats:
        own = self.query_features(query)
        found = [self.agreeing(own, self.map_features(int(i))) for i in ids]
        self.counts[query] = np.array(found, np.int64)
        return self.counts[query].astype(np.float64)

    def agreeing(self, own: Features, other: Features) -> int:
        """Inliers of one pair of pictures."""
        return inliers(own, other, self.matcher(own, other), self.geometry)
