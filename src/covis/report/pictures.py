"""Drawings of pairs: fields of view, differences on a plane, activation maps, ψ against poses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray

from covis.report.plots import COLOURS, PAGE_WIDTH, SCATTER, Palette, panel_width, panels, styled

Shares = tuple[NDArray[Any], NDArray[Any]]


@styled
def fields_of_view(poses: Sequence[tuple[float, float, float]], radius_m: float, fov_deg: float) -> Figure:
    """Two cameras from above, north up: (x, y, heading) each; an unknown heading is a full circle."""
    figure, grid = panels(2.8, 2.2)
    axes: Axes = grid[0, 0]
    axes.set_axis_off()
    for (x, y, heading), colour in zip(poses, (COLOURS[1], COLOURS[2]), strict=True):
        opening = 360.0 if np.isnan(heading) else fov_deg
        axis = 90.0 - (0.0 if np.isnan(heading) else heading)
        axes.add_patch(Wedge((x, y), radius_m, axis - opening / 2, axis + opening / 2, color=colour, alpha=0.4, lw=0))
        axes.plot(x, y, "o", color=colour, ms=5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    bar = 10.0 ** np.floor(np.log10(radius_m))
    axes.plot([left, left + bar], [bottom, bottom], color="k", lw=1.5)
    axes.annotate(f"{bar:g} m", (left + bar, bottom), (4, -3), textcoords="offset points")
    return figure


@styled
def differences(
    planes: Mapping[str, Mapping[str, NDArray[Any]]], positive: NDArray[np.bool_], colours: Palette
) -> Figure:
    """Pairs on planes, a row each method and a column each name: positives in the name's colour, negatives crossed."""
    drawn = [(method, name, at) for method, found in planes.items() for name, at in found.items()]
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


@styled
def activation_maps(
    photos: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
    captions: Sequence[str],
    shares: Mapping[str, Sequence[Shares]],
) -> Figure:
    """A row each pair: both photos, then for each name both with what every place adds to the similarity."""
    aspect = np.mean([side.shape[0] / side.shape[1] for pair in photos for side in pair])
    columns = 2 * (1 + len(shares))
    width = min(1.9, PAGE_WIDTH / columns)
    figure, grid = panels(width * columns, (width * aspect + 0.06) * len(photos) + 0.3, len(photos), columns)
    for axes in grid.ravel():
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.grid(False)
    for i, pair in enumerate(photos):
        grid[i, 0].set_ylabel(captions[i])
        for side in (0, 1):
            grid[i, side].imshow(pair[side])
            for column, name in enumerate(shares, start=1):
                _overlay(grid[i, 2 * column + side], pair[side], shares[name][i], side)
    for column, name in enumerate(("photos", *shares)):
        grid[0, 2 * column].set_title(name, loc="left")
    return figure


def _overlay(axes: Axes, photo: NDArray[np.uint8], shares: Shares, side: int) -> None:
    """Heat over a grey photo, on one scale for both of a pair; places that speak against the match stay cold."""
    height, width = photo.shape[:2]
    most = max(1e-12, *(float(part.max()) for part in shares))
    heat = np.maximum(0.0, shares[side]) / most
    axes.imshow(photo.mean(2), cmap="gray", vmin=0, vmax=255)
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    visible = 0.1 + 0.7 * np.sqrt(heat)  # cold places show the photo
    axes.imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=visible, extent=extent, interpolation="bilinear")


@styled
def overlap_against_pose(metres: NDArray[Any], degrees: NDArray[Any], psi: NDArray[Any], reach_m: float) -> Figure:
    """ψ of pairs against how far apart two cameras stand (m) and how far they are turned (degrees)."""
    figure, [[left, right]] = panels(PAGE_WIDTH, 3.6, 1, 2)
    some = np.random.default_rng(0).permutation(len(psi))[:SCATTER]
    drawn = left.scatter(
        metres[some], psi[some], c=degrees[some], s=4, cmap="viridis", vmin=0, vmax=180, lw=0, rasterized=True
    )
    figure.colorbar(drawn, ax=left, label="degrees between headings", ticks=[0, 45, 90, 135, 180])
    left.set(xlabel="metres between cameras", ylabel="ψ", xlim=(0, reach_m), ylim=(-0.02, 1.02))
    edges = np.linspace(0, reach_m, 26), np.linspace(0, 180, 19)
    total = np.histogram2d(metres, degrees, edges, weights=psi)[0]
    count = np.histogram2d(metres, degrees, edges)[0]
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    mesh = right.pcolormesh(*edges, mean.T, cmap="magma", vmin=0, vmax=1, rasterized=True)
    figure.colorbar(mesh, ax=right, label="mean ψ")
    right.set(xlabel="metres between cameras", ylabel="degrees between headings", yticks=[0, 45, 90, 135, 180])
    return figure
