"""Activation maps: what every place of two photos adds to the similarity of their descriptors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from covis.core.errors import InputError
from covis.models import PlaceModel
from covis.reading.decoding import Reject, decode
from covis.report.study import Study
from covis.report.style import PAGE_WIDTH, panels, styled

Shares = tuple[NDArray[np.float32], NDArray[np.float32]]
CHOSEN = (0.9, 0.6, 0.3, 0.0)
"""ψ of the pairs whose activation maps are shown."""


@styled
def activations(study: Study) -> Figure:
    """A row for each of some pairs: both photos, then for each model what every place adds."""
    queries, database = study.benchmark.queries, study.benchmark.database
    chosen = pairs_to_show(study)
    paths = [(queries.path(query), database.path(match)) for _, query, match in chosen]
    try:
        photos = [(_small(a), _small(b)) for a, b in paths]
        shares = {
            name: [contributions(m, m.preprocessing.pixels(a), m.preprocessing.pixels(b)) for a, b in paths]
            for name, m in study.models.items()
        }
    except Reject as reject:
        raise InputError(f"{reject}; fix the file or evaluate again without it") from reject
    aspect = np.mean([side.shape[0] / side.shape[1] for pair in photos for side in pair])
    columns = 2 * (1 + len(shares))
    width = min(1.9, PAGE_WIDTH / columns)
    figure, grid = panels(width * columns, (width * aspect + 0.06) * len(photos) + 0.3, len(photos), columns)
    for axes in grid.ravel():
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.grid(False)
    for i, pair in enumerate(photos):
        grid[i, 0].set_ylabel(chosen[i][0])
        for side in (0, 1):
            grid[i, side].imshow(pair[side])
            for column, found in enumerate(shares.values(), start=1):
                _overlay(grid[i, 2 * column + side], pair[side], found[i], side)
    for column, name in enumerate(("photos", *shares)):
        grid[0, 2 * column].set_title(name, loc="left")
    return figure


def pairs_to_show(study: Study) -> list[tuple[str, int, int]]:
    """Label, query and map image of sampled pairs with ψ near `CHOSEN`; of positives, where nothing is graded."""
    if study.benchmark.graded.has_grades:
        psi, query, match = (study.sample[f"pair_{part}"] for part in ("psi", "query", "map"))
        nearest = [int(np.argmin(np.abs(psi - wanted))) for wanted in CHOSEN]
        return [(f"ψ = {psi[k]:.2f}", int(query[k]), int(match[k])) for k in nearest]
    positives = study.benchmark.positives
    having = np.flatnonzero(np.diff(positives.indptr))
    spread = having[np.linspace(0, len(having) - 1, len(CHOSEN)).astype(int)]
    return [("same place", int(query), int(positives.row(int(query))[0][0])) for query in spread]


def _small(path: Path) -> NDArray[np.uint8]:
    picture = Image.fromarray(decode(path))
    picture.thumbnail((200, 200))
    return np.asarray(picture)


def contributions(model: PlaceModel, first: Tensor, second: Tensor) -> Shares:
    """What every place of the map adds to the cosine of two pooled photos (3, H, W) uint8; each (h, w).

    Feature × gradient with the vectors' lengths held fixed: for pooling by mean, maximum or generalised mean the places
    of each photo sum to the cosine itself; for other poolings it is the linear part. Whitening is not applied.
    """
    model.eval()
    with torch.no_grad():
        space, summary = model.pooling_input(model.normalise(torch.stack([first, second])))
    space = space.detach().float().requires_grad_()
    with torch.enable_grad():
        pooled = model.pool(space, summary.detach())
        length = pooled.detach().norm(dim=-1).clamp(min=1e-12)
        cosine = (pooled[0] * pooled[1]).sum() / (length[0] * length[1])
        [slope] = torch.autograd.grad(cosine, [space], allow_unused=True) if cosine.requires_grad else [None]
    if slope is None:
        raise InputError(f"pooling {model.config.pool!r} takes nothing from the map, so it has no activation map")
    shares = (space * slope).sum(1).detach().cpu().numpy()
    return shares[0], shares[1]


def _overlay(axes: Axes, photo: NDArray[np.uint8], shares: Shares, side: int) -> None:
    """Heat over a grey photo, on one scale for both of a pair; places that speak against the match stay cold."""
    height, width = photo.shape[:2]
    most = max(1e-12, *(float(part.max()) for part in shares))
    heat = np.maximum(0.0, shares[side]) / most
    axes.imshow(photo.mean(2), cmap="gray", vmin=0, vmax=255)
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    visible = 0.1 + 0.7 * np.sqrt(heat)  # cold places show the photo
    axes.imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=visible, extent=extent, interpolation="bilinear")
