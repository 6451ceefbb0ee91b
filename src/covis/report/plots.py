"""Plots of evaluations and of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.evaluation.render import name_of
from covis.report.style import COLOURS, PAGE_WIDTH, SCATTER, Palette, markers, panel_width, panels, single_panel, styled


def _ticks(axes: Axes, values: Sequence[float], apart: float) -> None:
    """Some of the values as ticks of a logarithmic axis: labels need a factor `apart` between them."""
    ticks: list[float] = []
    for value in values:
        ticks += [value] if not ticks or value >= apart * ticks[-1] else []
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.set_xticks([], minor=True)


def _legend(axes: Axes, **options: Any) -> None:
    """The names, smaller where they are many."""
    many = len(axes.get_legend_handles_labels()[1]) > 5
    axes.legend(**options, **({"fontsize": 7, "labelspacing": 0.25} if many else {}))


@styled
def recall_curves(
    curves: Mapping[str, Sequence[Sequence[float]]],
    bands: Mapping[str, Sequence[tuple[float, float]]],
    ks: Sequence[int],
    colours: Palette,
) -> Figure:
    """Recall@k against k for each name, the mean over its curves; `bands` (low, high) at each of `ks` are shaded.

    Between reported k the distances of the bands from the curve are interpolated.
    """
    figure, axes = single_panel()
    marker = markers(curves)
    for name, curve in curves.items():
        mean, colour = np.mean(curve, axis=0), colours[name]
        at = [k - 1 for k in ks if k <= len(mean)]
        axes.plot(np.arange(1, len(mean) + 1), mean, color=colour, label=name, marker=marker[name], ms=5, markevery=at)
        if name in bands:
            every = np.arange(1, len(mean) + 1)
            below, above = (
                np.interp(every, ks, np.subtract(edge, mean[np.subtract(ks, 1)])) for edge in np.transpose(bands[name])
            )
            axes.fill_between(every, mean + below, mean + above, color=colour, alpha=0.16, lw=0)
    axes.set(xlabel="k", ylabel="Recall@k, %", ylim=(0, 100), title="recall")
    axes.set_xticks(ks, [str(k) for k in ks])
    _legend(axes)
    return figure


@styled
def training_curves(
    losses: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    recalls: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    k: int,
    colours: Palette,
) -> Figure:
    """Loss and validation Recall@k (percent) against optimiser steps, one line per run."""
    figure, grid = panels(7.2 if recalls else 4.4, 2.8, 1, 2 if recalls else 1)
    marker = markers([*losses, *recalls])
    for name, (steps, values) in losses.items():
        grid[0, 0].plot(
            steps, values, color=colours[name], label=name, lw=1.2, marker=marker[name], ms=4, markevery=0.2
        )
    grid[0, 0].set(xlabel="step", ylabel="loss", title="training loss")
    _legend(grid[0, 0])
    if recalls:
        for name, (steps, values) in recalls.items():
            grid[0, 1].plot(steps, values, color=colours[name], marker=marker[name], ms=4, label=name)
        grid[0, 1].set(xlabel="step", ylabel=f"validation Recall@{k}, %", title="validation")
    return figure


@styled
def distance_against_similarity(
    pairs: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], margin: float | None, colours: Palette
) -> Figure:
    """Descriptor distance against ψ, one panel per name; solid: the median, dashed: where GCL puts a pair."""
    columns = min(4, len(pairs))
    rows = -(-len(pairs) // columns)
    figure, grid = panels(panel_width(columns) * columns, 3.0 * rows, rows, columns, sharey=True)
    rng = np.random.default_rng(0)
    for axes, (name, (psi, distance)) in zip(grid.ravel(), pairs.items(), strict=False):
        some = rng.permutation(len(psi))[:SCATTER]
        axes.scatter(psi[some], distance[some], s=3, alpha=0.25, color=colours[name], lw=0, rasterized=True)
        axes.plot(*_medians(psi, distance), color="k", lw=1.4, label="median")
        if margin is not None:
            axes.plot([0, 1], [margin, 0], color="k", lw=1, ls="--", label="d = τ(1 − ψ)")
        axes.set(title=name, xlabel="ψ, how much two views share")
    for axes in grid.ravel()[len(pairs) :]:
        axes.set_axis_off()
    grid[0, 0].legend(loc="upper right")
    far = [float(np.quantile(distance, q)) for _, distance in pairs.values() for q in (0, 1)]
    grid[0, 0].set_ylim(0 if margin is not None else 0.95 * min(far), 1.05 * max(far))
    for axes in grid[:, 0]:
        axes.set_ylabel("descriptor distance")
    return figure


def _medians(psi: NDArray[Any], distance: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Median distance of the pairs without overlap and of those in each tenth of ψ, where there are some."""
    at = np.ceil(psi * 10).astype(int)
    bins = [b for b in range(11) if (at == b).sum() >= 5]
    return [max(0.0, b / 10 - 0.05) for b in bins], [float(np.median(distance[at == b])) for b in bins]


@styled
def batch_histograms(batches: Mapping[str, NDArray[Any]], colours: Palette) -> Figure:
    """How ψ is distributed in the batches that each loss was trained on."""
    figure, grid = panels(panel_width(len(batches)) * len(batches), 2.6, 1, len(batches), sharey=True)
    for axes, (name, psi) in zip(grid[0], batches.items(), strict=True):
        share = np.full(len(psi), 100 / max(1, len(psi)))
        axes.hist(psi, bins=np.linspace(0, 1, 21), weights=share, color=colours[name])
        axes.set(title=name, xlabel="ψ")
    grid[0, 0].set_ylabel("pairs, %")
    return figure


@styled
def size_curves(curves: Mapping[str, Sequence[tuple[int, float]]], k: int, colours: Palette) -> Figure:
    """Recall@k against descriptor size, one line per name."""
    figure, axes = single_panel(5.2, 3.2)
    sizes = sorted({size for points in curves.values() for size, _ in points})
    marker = markers(curves)
    for name, points in curves.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker=marker[name], ms=4, color=colours[name], label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="descriptor dimensions", ylabel=f"Recall@{k}, %")
    _ticks(axes, sizes, 1.4)
    _legend(axes)
    return figure


@styled
def gain_intervals(gains: Mapping[str, Mapping[str, Mapping[str, float]]], first: str) -> Figure:
    """A panel for each figure: the difference of each name to `first`, with its interval (`paired_differences`)."""
    keys = list(next(iter(gains.values())))
    columns = min(4, len(keys))
    rows = -(-len(keys) // columns)
    figure, grid = panels(PAGE_WIDTH, rows * (0.7 + 0.24 * len(gains)), rows, columns, sharey=True)
    height = np.arange(len(gains))[::-1]
    for key, axes in zip(keys, grid.ravel(), strict=False):
        name, single = name_of(key), [differences[key] for differences in gains.values()]
        middle = np.array([entry["difference"] for entry in single])
        spans = np.array(
            [[entry["difference"] - entry["low"], entry["high"] - entry["difference"]] for entry in single]
        )
        better = (middle < 0) == name.lower_is_better
        clear = np.array([not entry["low"] <= 0 <= entry["high"] for entry in single])
        for colour, mask in ((COLOURS[3], better & clear), (COLOURS[1], ~better & clear), (COLOURS[0], ~clear)):
            axes.errorbar(middle[mask], height[mask], xerr=spans[mask].T.clip(min=0), fmt="o", ms=4, color=colour)
        axes.axvline(0, color=COLOURS[0], lw=0.8)
        axes.set_title(f"{name.text}{f', {name.unit}' if name.unit else ''}", fontsize=8)
        axes.set_yticks(height, list(gains), fontsize=8)
        axes.set_ylim(-0.6, len(gains) - 0.4)
    for axes in grid.ravel()[len(keys) :]:
        axes.set_visible(False)
    figure.suptitle(f"difference to “{first}”, 95 % intervals over places and seeds", fontsize=9)
    return figure
