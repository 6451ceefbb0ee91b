"""Differences of the descriptors of positive and negative pairs, on planes."""

from __future__ import annotations

import importlib.util

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber
from covis.graph import POSITIVE
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.report.study import Study
from covis.report.style import panel_width, panels, styled

EACH = 120
"""Number of positive pairs, and of negative pairs, that are drawn."""


@styled
def differences(study: Study) -> Figure:
    """Sampled pairs on planes by PCA and (with the extra `figures`) t-SNE, a column per model.

    Positive pairs have the model's colour, negative ones are crosses.
    """
    rows, columns, positive = _sampled(study)
    vectors = {
        name: _descriptors(model, study.benchmark.queries, rows)
        - _descriptors(model, study.benchmark.database, columns)
        for name, model in study.models.items()
    }
    methods = {"PCA": pca} | ({"t-SNE": tsne} if importlib.util.find_spec("sklearn") else {})
    drawn = [(method, name, project(v)) for method, project in methods.items() for name, v in vectors.items()]
    wide = len(vectors) if len(vectors) > 1 else len(methods)
    high = len(drawn) // wide
    figure, grid = panels(panel_width(wide) * wide, 2.9 * high, high, wide)
    for axes, (method, name, at) in zip(grid.ravel(), drawn, strict=True):
        axes.scatter(*at[~positive].T, s=14, marker="x", color="k", alpha=0.5, lw=0.7, label="negative")
        axes.scatter(*at[positive].T, s=16, color=study.colours[name], alpha=0.75, lw=0, label="positive")
        axes.set(title=f"{name}, {method}", xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.spines[:].set_alpha(0.25)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    return figure


def _sampled(study: Study) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Queries, map images and which are positive: `EACH` of either kind, or as many as both kinds have."""
    psi, query, match = (np.asarray(study.sample[f"pair_{part}"]) for part in ("psi", "query", "map"))
    positive = psi >= POSITIVE
    rng = np.random.default_rng(0)
    kinds = [rng.permutation(np.flatnonzero(kind)) for kind in (positive, ~positive)]
    each = min(EACH, *map(len, kinds))
    chosen = np.concatenate([kind[:each] for kind in kinds])
    return query[chosen], match[chosen], positive[chosen]


def _descriptors(model: PlaceModel, images: ImageSet, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """(N, dim) descriptors of the images at `ids`, each embedded once and kept in the cache."""
    distinct, at = np.unique(ids, return_inverse=True)
    vectors, lost = ModelDescriber(model, workers=0).describe(images.subset(distinct))
    if lost.any():
        raise InputError(f"{images.path(int(distinct[lost][0]))} cannot be read; fix it or evaluate again without it")
    return vectors[at]


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
