"""Drawings for reports and for files: matplotlib in, SVG text or a file out."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray

COLOURS = ("#8a94a0", "#c4372c", "#2457a7", "#1b7f4b", "#b5761b", "#6b3fa0")
_SCATTER = 4000


def recall_curves(curves: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Recall@k against k for each name; the mean over its curves, with their range shaded."""
    figure, axes = _figure(5.6, 3.6)
    for (name, found), colour in zip(curves.items(), _colours(), strict=False):
        values = np.array(found)
        k = np.arange(1, values.shape[1] + 1)
        axes.plot(k, values.mean(0), color=colour, label=name, lw=1.8)
        if len(values) > 1:
            axes.fill_between(k, values.min(0), values.max(0), color=colour, alpha=0.18, lw=0)
    axes.set(xlabel="k", ylabel="Recall@k, %", ylim=(0, 100))
    axes.legend(frameon=False)
    return figure


def distance_against_similarity(pairs: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], margin: float | None) -> Figure:
    """Descriptor distance against ψ, a panel each name; the line is where GCL puts a pair."""
    figure = Figure(figsize=(3.4 * len(pairs), 3.2), layout="constrained")
    grid = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    rng = np.random.default_rng(0)
    for axes, (name, (psi, distance)), colour in zip(grid, pairs.items(), _colours(), strict=False):
        some = rng.permutation(len(psi))[:_SCATTER]
        axes.scatter(psi[some], distance[some], s=3, alpha=0.25, color=colour, lw=0, rasterized=True)
        if margin is not None:
            axes.plot([0, 1], [margin, 0], color="k", lw=1, ls="--", label="d = τ(1 − ψ)")
            axes.legend(frameon=False, loc="upper right")
        axes.set(title=name, xlabel="ψ, how much two views share")
    grid[0].set_ylabel("descriptor distance")
    return figure


def batch_histograms(batches: Mapping[str, NDArray[Any]]) -> Figure:
    """How ψ is distributed in the batches that each loss was trained on."""
    figure = Figure(figsize=(3.2 * len(batches), 2.8), layout="constrained")
    grid = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    for axes, (name, psi), colour in zip(grid, batches.items(), _colours(), strict=False):
        axes.hist(psi, bins=np.linspace(0, 1, 21), weights=np.full(len(psi), 100 / max(1, len(psi))), color=colour)
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


def size_curves(curves: Mapping[str, Sequence[tuple[int, float]]], k: int) -> Figure:
    """Recall@k against descriptor size, one line each name."""
    figure, axes = _figure(5.2, 3.4)
    for (name, points), colour in zip(curves.items(), _colours(), strict=False):
        sizes, values = zip(*sorted(points), strict=True)
        axes.plot(sizes, values, "o-", color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="descriptor dimensions", ylabel=f"Recall@{k}, %")
    axes.legend(frameon=False)
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


def _colours() -> list[str]:
    return [*COLOURS] * 4
