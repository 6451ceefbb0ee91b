"""Descriptors on a plane: PCA, and t-SNE where scikit-learn is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats


def pca(vectors: NDArray[np.floating], dims: int = 2) -> Floats:
    """(N, D) → (N, dims): coordinates along the directions of largest variance, each with a fixed sign."""
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    u, s, vt = np.linalg.svd(centred, full_matrices=False)
    sign = np.sign(vt[np.arange(len(vt)), np.abs(vt).argmax(1)])
    projected = (u * s * sign)[:, :dims]
    return np.pad(projected, ((0, 0), (0, dims - projected.shape[1])))


def tsne(vectors: NDArray[np.floating], perplexity: float = 30.0) -> Floats:
    """(N, D) → (N, 2): near vectors stay near; starts from PCA, so the same vectors give the same picture."""
    from sklearn.manifold import TSNE

    model = TSNE(perplexity=min(perplexity, (len(vectors) - 1) / 3), init="pca", random_state=0)
    return np.asarray(model.fit_transform(np.asarray(vectors, np.float64)), np.float64)


def has_tsne() -> bool:
    """Whether scikit-learn (extra `figures`) is installed."""
    return importlib.util.find_spec("sklearn") is not None
