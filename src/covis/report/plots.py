"""Drawings for reports and for files: matplotlib in, SVG text or a file out."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray

COLOURS = ("#8a94a0", "#c4372c", "#2457a7", "#1b7f4b", "#b5761b", "#6b3fa0")
"""Models take these in turn; a name keeps its colour in all drawings of a report."""
Palette = Mapping[str, str]
_SCATTER = 4000


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in order."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(names))}


def recall_curves(curves: Mapping[str, Sequence[Sequence[float]]], colours: Palette) -> Figure:
    """Recall@k against k for each name; the mean over its curves, with their range shaded."""
    figure, axes = _figure(5.6, 3.6)
    for name, found in curves.items():
        values, colour = np.array(found), colours[name]
        k = np.arange(1, values.shape[1] + 1)
        axes.plot(k, values.mean(0), color=colour, label=name, lw=1.8)
        if len(values) > 1:
            axes.fill_between(k, values.min(0), values.max(0), color=colour, alpha=0.18, lw=0)
    axes.set(xlabel="k", ylabel="Recall@k, %", ylim=(0, 100))
    axes.legend(frameon=False)
    return figure


def distance_against_similarity(
    pairs: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], margin: float | None, colours: Palette
) -> Figure:
    """Descriptor distance against ψ, a panel each name; the line is where GCL puts a pair."""
    figure = Figure(figsize=(3.4 * len(pairs), 3.2), layout="constrained")
    grid = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    rng = np.random.default_rng(0)
    for axes, (name, (psi, distance)) in zip(grid, pairs.items(), strict=True):
        some = rng.permutation(len(psi))[:_SCATTER]
        axes.scatter(psi[some], distance[some], s=3, alpha=0.25, color=colours[name], lw=0, rasterized=True)
        if margin is not None:
            axes.plot([0, 1], [margin, 0], color="k", lw=1, ls="--", label="d = τ(1 − ψ)")
            axes.legend(frameon=False, loc="upper right")
        axes.set(title=name, xlabel="ψ, how much two views share")
    grid[0].set_ylabel("descriptor distance")
    return figure


def batch_histograms(batches: Mapping[str, NDArray[Any]], colours: Palette) -> Figure:
    """How ψ is distributed in the batches that each loss was trained on."""
    figure = Figure(figsize=(3.2 * len(batches), 2.8), layout="constrained")
    grid = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    for axes, (name, psi) in zip(grid, batches.items(), strict=True):
        share = np.full(len(psi), 100 / max(1, len(psi)))
        axes.hist(psi, bins=np.linspace(0, 1, 21), weights=share, color=colours[name])
        axes.set(title=name, xlabel="ψ")
    grid[0].set_ylabel("pairs, %")
    return figure


def fields_of_view(poses: Sequence[tuple[float, float, float]], radius_m: float, fov_deg: float) -> Figure:
    """Two cameras from above: (x, y, heading) each; an unknown heading is a full circle."""
    figure = Figure(figsize=(2.8, 2.4), layout="constrained")
    axes = figure.subplots()
    for (x, y, heading), colour in zip(poses, (COLOURS[1], COLOURS[2]), strict=True):
        opening = 360.0 if np.isnan(heading) else fov_deg
        axis = 90.0 - (0.0 if np.isnan(heading) else heading)
        axes.add_patch(Wedge((x, y), radius_m, axis - opening / 2, axis + opening / 2, color=colour, alpha=0.35, lw=0))
        axes.plot(x, y, "o", color=colour, ms=4)
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.set_xlabel("m")
    return figure


def size_curves(curves: Mapping[str, Sequence[tuple[int, float]]], k: int, colours: Palette) -> Figure:
    """Recall@k against descriptor size, one line each name."""
    figure, axes = _figure(5.2, 3.4)
    for name, points in curves.items():
        sizes, values = zip(*sorted(points), strict=True)
        axes.plot(sizes, values, "o-", color=colours[name], label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="descriptor dimensions", ylabel=f"Recall@{k}, %")
    axes.legend(frameon=False)
    return figure


def differences(
    planes: Mapping[str, Mapping[str, NDArray[Any]]], positive: NDArray[np.bool_], colours: Palette
) -> Figure:
    """Pairs on planes, a row each method and a column each name: positives in the name's colour, negatives crossed."""
    methods = list(planes)
    names = list(planes[methods[0]])
    figure = Figure(figsize=(3.4 * len(names), 3.2 * len(methods)), layout="constrained")
    grid = figure.subplots(len(methods), len(names), squeeze=False)
    for row, method in zip(grid, methods, strict=True):
        for axes, name in zip(row, names, strict=True):
            at = planes[method][name]
            axes.scatter(*at[~positive].T, s=14, marker="x", color="k", alpha=0.45, lw=0.7, label="negative")
            axes.scatter(*at[positive].T, s=14, color=colours[name], alpha=0.7, lw=0, label="positive")
            axes.set(title=f"{name}, {method}", xticks=[], yticks=[])
    grid[0, 0].legend(frameon=False)
    return figure


Shares = tuple[NDArray[Any], NDArray[Any]]


def activation_maps(
    photos: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
    captions: Sequence[str],
    shares: Mapping[str, Sequence[Shares]],
) -> Figure:
    """A row each pair: both photos, then for each name both with what every place adds to the similarity."""
    figure = Figure(figsize=(2.6 * (1 + len(shares)), 1.25 * len(photos) + 0.4), layout="constrained")
    grid = figure.subplots(len(photos), 2 * (1 + len(shares)), squeeze=False)
    for axes in grid.ravel():
        axes.set(xticks=[], yticks=[])
    for i, pair in enumerate(photos):
        grid[i, 0].set_ylabel(captions[i])
        for side in (0, 1):
            grid[i, side].imshow(pair[side])
            for column, name in enumerate(shares, start=1):
                _overlay(grid[i, 2 * column + side], pair[side], shares[name][i], side)
    for column, name in enumerate(("photos", *shares)):
        grid[0, 2 * column].set_title(name, loc="left")
    return figure


def _overlay(axes: Any, photo: NDArray[np.uint8], shares: Shares, side: int) -> None:
    """Heat over a grey photo, on one scale for both of a pair; places that speak against the match stay cold."""
    height, width = photo.shape[:2]
    most = max(float(part.max()) for part in shares)
    axes.imshow(photo.mean(2), cmap="gray", vmin=0, vmax=255)
    heat = np.maximum(0.0, shares[side])
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(heat, cmap="inferno", vmin=0, vmax=max(most, 1e-12), alpha=0.6, extent=extent, interpolation="bilinear")


def overlap_against_pose(metres: NDArray[Any], degrees: NDArray[Any], psi: NDArray[Any], reach_m: float) -> Figure:
    """ψ of pairs against how far apart two cameras stand (m) and how far they are turned (degrees)."""
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    some = np.random.default_rng(0).permutation(len(psi))[:_SCATTER]
    drawn = left.scatter(
        metres[some], psi[some], c=degrees[some], s=4, cmap="viridis", vmin=0, vmax=180, lw=0, rasterized=True
    )
    figure.colorbar(drawn, ax=left, label="degrees between headings")
    left.set(xlabel="metres between cameras", ylabel="ψ", xlim=(0, reach_m), ylim=(-0.02, 1.02))
    edges = np.linspace(0, reach_m, 26), np.linspace(0, 180, 19)
    total = np.histogram2d(metres, degrees, edges, weights=psi)[0]
    count = np.histogram2d(metres, degrees, edges)[0]
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    mesh = right.pcolormesh(*edges, mean.T, cmap="magma", vmin=0, vmax=1, rasterized=True)
    figure.colorbar(mesh, ax=right, label="mean ψ")
    right.set(xlabel="metres between cameras", ylabel="degrees between headings")
    return figure


def svg(figure: Figure) -> str:
    """The drawing as an SVG element, the same text each time, with ids that do not clash on one page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "covis", "svg.fonttype": "none", "font.size": 9}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=False)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)


def save(figure: Figure, path: Path) -> None:
    """Writes the drawing as PNG, SVG or PDF, by the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
