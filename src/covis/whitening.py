"""PCA-whitening of descriptors, worked out in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.artifacts import read_json, write_json
from covis.errors import InputError

RANK_TOLERANCE = 1e-10
"""Directions whose variance is below this share of the largest hold rounding noise and are dropped."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """Subtract the mean, turn into the leading directions, divide each by its standard deviation."""

    mean: NDArray[np.float64]
    """(D,)"""
    projection: NDArray[np.float64]
    """(D, dim): eigenvectors over the square root of their variance."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it was fitted: samples, rank, shrinkage and what the caller adds (data, fingerprint)."""

    @property
    def dim(self) -> int:
        """Length after whitening."""
        return int(self.projection.shape[1])

    @classmethod
    def fit(
        cls,
        descriptors: ArrayLike,
        dim: int,
        *,
        shrinkage: float = 0.0,
        facts: Mapping[str, Any] | None = None,
    ) -> Whitening:
        """Fits on (N, D) descriptors, keeping `dim` directions.

        `shrinkage` in [0, 1] moves every variance towards their mean by that share, which tames directions that few
        samples have hardly seen.
        """
        x = np.asarray(descriptors)
        _check(x, dim, shrinkage)
        mean = x.mean(0, dtype=np.float64)
        variances, directions = _principal(x, mean)
        rank = int((variances > RANK_TOLERANCE * variances[0]).sum()) if variances[0] > 0 else 0
        if dim > rank:
            raise InputError(
                f"whitening to {dim} dims needs descriptors that span as many; {len(x)} descriptors of {x.shape[1]} "
                f"dims span {rank}: ask for at most {rank}, or fit on more images"
            )
        total = variances[:rank].sum() / x.shape[1]
        kept = (1 - shrinkage) * variances[:dim] + shrinkage * total
        record = {"samples": len(x), "rank": rank, "shrinkage": shrinkage, **(facts or {})}
        return cls(mean, directions[:, :dim] / np.sqrt(kept), record)

    def __call__(self, descriptors: ArrayLike) -> NDArray[np.float32]:
        """(N, D) → (N, dim) whitened, unit norm."""
        turned = (np.asarray(descriptors, np.float64) - self.mean) @ self.projection
        norms = np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-12)
        return np.asarray(turned / norms, np.float32)

    def save(self, path: Path) -> None:
        """Writes a .safetensors file."""
        from safetensors.numpy import save_file

        save_file({"mean": self.mean, "projection": np.ascontiguousarray(self.projection)}, path)
        write_json(path.with_suffix(".json"), dict(self.facts))

    @classmethod
    def open(cls, path: Path) -> Whitening:
        """Reads what `save` wrote."""
        from safetensors.numpy import load_file

        arrays = load_file(path)
        return cls(arrays["mean"], arrays["projection"], read_json(path.with_suffix(".json")))


def _check(x: NDArray[Any], dim: int, shrinkage: float) -> None:
    if x.ndim != 2 or len(x) < 2:
        raise InputError(f"whitening is fitted on (N, D) descriptors with N of at least 2, not on {x.shape}")
    if not 1 <= dim <= x.shape[1]:
        raise InputError(f"whitening to {dim} dims: descriptors have {x.shape[1]}; ask for 1 to {x.shape[1]}")
    if not 0 <= shrinkage <= 1:
        raise InputError(f"whitening shrinkage is a share in [0, 1], not {shrinkage}")
    if not np.isfinite(x).all():
        raise InputError("whitening was given descriptors that are not finite; look for them with np.isfinite")


def _principal(x: NDArray[Any], mean: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variances, largest first, and directions (D, k) of the rows of `x`; signs fixed so that a refit is equal."""
    n, d = x.shape
    if n <= d:  # through the small Gram matrix; its directions are turned back into the space of descriptors
        centred = x.astype(np.float64) - mean
        values, inner = np.linalg.eigh(centred @ centred.T)
        values, inner = values[::-1].clip(min=0), inner[:, ::-1]
        directions = centred.T @ inner
        directions /= np.maximum(np.linalg.norm(directions, axis=0), np.finfo(np.float64).tiny)
    else:
        values, directions = np.linalg.eigh(_scatter(x, mean))
        values, directions = values[::-1].clip(min=0), directions[:, ::-1]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(directions.shape[1])])
    return values / (n - 1), directions * np.where(signs == 0, 1.0, signs)


def _scatter(x: NDArray[Any], mean: NDArray[np.float64], rows: int = 16_384) -> NDArray[np.float64]:
    """(D, D) sum of outer products, in pieces so that a memory-mapped matrix is never copied whole."""
    total = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), rows):
        part = x[start : start + rows].astype(np.float64) - mean
        total += part.T @ part
    return total
