"""Vectors on a plane: principal components, and exact t-SNE for some hundred of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats

MOST = 500
"""Exact t-SNE is quadratic: more vectors than this are refused."""
_EXAGGERATION, _EARLY = 12.0, 100
_TINY = 1e-12


def pca(vectors: NDArray[np.floating], dims: int = 2) -> Floats:
    """(N, D) → (N, dims): coordinates along the directions of largest variance, each with a fixed sign."""
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    u, s, vt = np.linalg.svd(centred, full_matrices=False)
    sign = np.sign(vt[np.arange(len(vt)), np.abs(vt).argmax(1)])
    found = (u * s * sign)[:, :dims]
    return np.pad(found, ((0, 0), (0, dims - found.shape[1])))


def tsne(vectors: NDArray[np.floating], perplexity: float = 30.0, steps: int = 500) -> Floats:
    """(N, D) → (N, 2): near vectors stay near (van der Maaten and Hinton, 2008). N ≤ `MOST`; starts from PCA.

    No draws: the same vectors give the same picture.
    """
    n = len(vectors)
    if not 4 <= n <= MOST:
        raise ValueError(f"t-SNE takes 4 to {MOST} vectors, not {n}")
    p = _affinities(_squared(np.asarray(vectors, np.float64)), min(perplexity, (n - 1) / 3))
    y = pca(vectors)
    y *= 1e-4 / max(_TINY, float(y[:, 0].std()))
    step, gain = np.zeros_like(y), np.ones_like(y)
    rate = max(50.0, n / _EXAGGERATION / 4)
    for i in range(steps):
        early = i < _EARLY
        kernel = 1.0 / (1.0 + _squared(y))
        np.fill_diagonal(kernel, 0.0)
        pull = ((_EXAGGERATION if early else 1.0) * p - kernel / kernel.sum()) * kernel
        slope = 4.0 * (pull.sum(1)[:, None] * y - pull @ y)
        gain = np.maximum(0.01, np.where(slope * step < 0, gain + 0.2, gain * 0.8))
        step = (0.5 if early else 0.8) * step - rate * gain * slope
        y = y + step
    return np.asarray(y - y.mean(0))


def _affinities(squared: Floats, perplexity: float) -> Floats:
    """Symmetric neighbour probabilities (N, N), every row's width found by bisection to the wanted perplexity."""
    n = len(squared)
    away = squared + np.diag(np.full(n, np.inf))
    away -= away.min(1, keepdims=True)  # the nearest neighbour's weight is then 1, whatever the scale
    low, high, beta = np.zeros(n), np.full(n, np.inf), 1.0 / np.maximum(_TINY, np.median(squared, axis=1))
    for _ in range(60):
        weight = np.exp(-beta[:, None] * away)
        p = weight / weight.sum(1, keepdims=True)
        wide = -(p * np.log(np.maximum(p, _TINY))).sum(1) > np.log(perplexity)
        low, high = np.where(wide, beta, low), np.where(wide, high, beta)
        beta = np.where(np.isinf(high), low * 2, (low + high) / 2)
    return np.asarray(np.maximum((p + p.T) / (2 * n), _TINY))


def _squared(x: Floats) -> Floats:
    norms = (x * x).sum(1)
    return np.asarray(np.maximum(0.0, norms[:, None] + norms[None] - 2 * x @ x.T))
