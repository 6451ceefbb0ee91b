"""Local features of photos: found by SIFT, matched, and checked against the geometry of two views.

Matching uses numpy, geometry OpenCV (`pip install 'covis[local]'`), SIFT pycolmap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.reading.decoding import Reject, decode

MOST = 1024
"""Features of a photo that are compared, the strongest first."""
SIDE = 640
"""Photos are scaled so that their longer side has this many pixels before they are compared."""
RATIO = 0.85
"""Largest ratio of a match's distance to that of the second-best (Lowe 2004)."""
MAX_FEATURES = 4096
MAX_SIDE = 1600
"""Pixels of the longer side to which pictures are scaled down for features."""
MAX_ERROR = 0.01
"""How far a match may lie from where the geometry puts it, as a share of the picture's diagonal."""


class LocalFeatures(NamedTuple):
    """Local features of a picture."""

    xy: Floats
    """(K, 2) pixels of the full picture, centre of the first pixel at 0.5."""
    descriptors: NDArray[np.float32]
    """(K, D) unit norm."""
    size: tuple[int, int] = (0, 0)
    """(width, height) of the full picture."""


def sift(path: Path, most: int = MAX_FEATURES, side: int = MAX_SIDE) -> LocalFeatures:
    """SIFT features of a picture, upright as it is shown (square roots of the histograms: RootSIFT)."""
    from PIL import Image

    pycolmap = open_pycolmap("SIFT")
    shown = Image.fromarray(decode(path)).convert("L")
    scale = min(1.0, side / max(shown.size))
    small = shown.resize((round(shown.width * scale), round(shown.height * scale))) if scale < 1 else shown
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features = most
    extractor = pycolmap.FeatureExtractor.create(options, pycolmap.Device.cpu)
    keypoints, descriptors = extractor.extract_from_uint8_array(np.asarray(small, np.uint8))
    values = np.asarray(descriptors.data, np.float32)
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-9)
    xy = np.array([[k.x, k.y] for k in keypoints], np.float64).reshape(-1, 2)
    return LocalFeatures(xy * (np.array(shown.size) / np.array(small.size)), values, shown.size)


def open_pycolmap(what: str) -> Any:
    """The library with its log silenced; `what` is the feature that needs it."""
    try:
        import pycolmap
    except ImportError:
        raise InputError(f"{what} needs pycolmap: pip install 'covis[sfm]'") from None
    pycolmap.logging.minloglevel = 1  # covis reports what matters
    return pycolmap


def match(first: LocalFeatures, second: LocalFeatures, ratio: float | None = RATIO) -> NDArray[np.int64]:
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


def inliers(first: LocalFeatures, second: LocalFeatures, pairs: NDArray[np.int64], max_error: float = MAX_ERROR) -> int:
    """How many of the matched `pairs` (M, 2) one homography explains: a flat scene, or a turned camera.

    max_error: as a share of the larger picture's diagonal. Deterministic: OpenCV draws from a fixed seed.
    """
    if len(pairs) < 4:
        return 0
    try:
        import cv2
    except ImportError:
        raise InputError("geometric verification needs OpenCV: pip install 'covis[local]'") from None
    left, right = first.xy[pairs[:, 0]], second.xy[pairs[:, 1]]
    extent = [np.hypot(*f.size) if any(f.size) else np.hypot(*np.ptp(f.xy, axis=0)) for f in (first, second)]
    limit = max_error * max(1.0, *map(float, extent))
    _, mask = cv2.findHomography(left, right, cv2.USAC_MAGSAC, limit, maxIters=1000, confidence=0.999)
    return 0 if mask is None else int(np.count_nonzero(mask))


def decoded(path: Path) -> NDArray[np.uint8]:
    """The photo as (h, w, 3)."""
    try:
        return decode(path)
    except Reject as reject:
        raise InputError(f"{reject}; replace or remove the file") from None
