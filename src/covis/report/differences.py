"""Differences of the descriptors of positive and negative pairs, on planes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber
from covis.evaluation import Benchmark
from covis.graph import POSITIVE
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.report.inputs import EvaluationGroups, Models, colours, open_models, sampled_pairs
from covis.report.projections import has_tsne, pca, tsne
from covis.report.style import Palette, panel_width, panels, styled

EACH = 120
"""Number of positive pairs, and of negative pairs, that are drawn."""


@styled
def difference_planes(
    planes: Mapping[str, Mapping[str, NDArray[Any]]], positive: NDArray[np.bool_], colours: Palette
) -> Figure:
    """Pairs on planes, a row per method and a column per name: positives in the name's colour, negatives as crosses."""
    drawn = [(method, name, at) for method, plane in planes.items() for name, at in plane.items()]
    names = len(drawn) // len(planes)
    columns = names if names > 1 else len(planes)
    rows = len(drawn) // columns
    figure, grid = panels(panel_width(columns) * columns, 2.9 * rows, rows, columns)
    for axes, (method, name, at) in zip(grid.ravel(), drawn, strict=True):
        axes.scatter(*at[~positive].T, s=14, marker="x", color="k", alpha=0.5, lw=0.7, label="negative")
        axes.scatter(*at[positive].T, s=16, color=colours[name], alpha=0.75, lw=0, label="positive")
        axes.set(title=f"{name}, {method}", xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.spines[:].set_alpha(0.25)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    return figure


def difference_figure(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Figure:
    """PCA (and t-SNE, with the extra `figures`) of the differences of sampled pairs, for each model."""
    opened = open_models(models)
    rows, columns, positive = _balanced(sampled_pairs(evaluations, benchmark))
    differences = {
        name: _descriptors(model, benchmark.queries, rows) - _descriptors(model, benchmark.database, columns)
        for name, model in opened.items()
    }
    planes = {"PCA": {name: pca(vectors) for name, vectors in differences.items()}}
    if has_tsne():
        planes["t-SNE"] = {name: tsne(vectors) for name, vectors in differences.items()}
    return difference_planes(planes, positive, colours(evaluations, models))


def _balanced(sample: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Queries, map images and which are positive: `EACH` of either kind, or as many as both kinds have."""
    positive = np.asarray(sample["pair_psi"]) >= POSITIVE
    rng = np.random.default_rng(0)
    kinds = [rng.permutation(np.flatnonzero(kind)) for kind in (positive, ~positive)]
    each = min(EACH, *map(len, kinds))
    chosen = np.concatenate([kind[:each] for kind in kinds])
    return np.asarray(sample["pair_query"])[chosen], np.asarray(sample["pair_map"])[chosen], positive[chosen]


def _descriptors(model: PlaceModel, images: ImageSet, ids: NDArray[Any]) -> NDArray[np.float32]:
    """(N, dim) descriptors of the images at `ids`, each embedded once and kept in the cache."""
    distinct, at = np.unique(ids, return_inverse=True)
    vectors, lost = ModelDescriber(model, workers=0).describe(images.subset(distinct))
    if lost.any():
        raise InputError(f"{images.path(int(distinct[lost][0]))} cannot be read; fix it or evaluate again without it")
    return vectors[at]
