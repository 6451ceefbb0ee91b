"""Plots of evaluations and of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.evaluation import Evaluation
from covis.evaluation.differences import paired_differences
from covis.evaluation.render import mean_interval, name_of
from covis.report.study import NotInStudy, Study, run_recipe
from covis.report.style import (
    COLOURS,
    PAGE_WIDTH,
    SCATTER,
    markers,
    palette,
    panel_width,
    panels,
    single_panel,
    styled,
)
from covis.training.record import has_metrics, read_metrics
from covis.training.run import open_sampler

K = 5
"""Recall@k that is drawn against training steps and descriptor size."""
BATCHES = 200
"""Batches of a run whose similarities are drawn."""


def _legend(axes: Axes) -> None:
    """The names, smaller where they are many."""
    many = len(axes.get_legend_handles_labels()[1]) > 5
    axes.legend(**({"fontsize": 7, "labelspacing": 0.25} if many else {}))


@styled
def recall(study: Study) -> Figure:
    """Recall@k against k, the mean over seeds, with a band at the reported k; between them its width is interpolated."""
    figure, axes = single_panel()
    marker, ks = markers(study.evaluations), sorted(study.first.recall)
    for name, group in study.evaluations.items():
        mean, colour = np.mean([e.figures["recall_curve"] for e in group], axis=0), study.colours[name]
        every, at = np.arange(1, len(mean) + 1), [k - 1 for k in ks if k <= len(mean)]
        axes.plot(every, mean, color=colour, label=name, marker=marker[name], ms=5, markevery=at)
        edges = np.transpose([_band(group, k) for k in ks])
        below, above = (np.interp(every, ks, edge - mean[np.subtract(ks, 1)]) for edge in edges)
        axes.fill_between(every, mean + below, mean + above, color=colour, alpha=0.16, lw=0)
    axes.set(xlabel="k", ylabel="Recall@k, %", ylim=(0, 100))
    axes.set_xticks(ks, [str(k) for k in ks])
    _legend(axes)
    return figure


def _band(group: Sequence[Evaluation], k: int) -> tuple[float, float]:
    """(low, high): the 95 % interval over three seeds or more, the range of two, else the interval over queries."""
    values = [e.recall[k] for e in group]
    mean, half = mean_interval(values)
    if half is None:
        return group[0].figures.recall_interval[k]
    if len(values) < 3:
        return min(values), max(values)
    return max(0.0, mean - half), min(100.0, mean + half)


@styled
def training(study: Study) -> Figure:
    """Loss and validation recall (percent) of each name's first run against optimiser steps."""
    logs = {name: read_metrics(paths[0]) for name, paths in study.runs.items() if has_metrics(paths[0])}
    if not logs:
        raise NotInStudy("training curves come from runs; give run folders, not evaluations")
    column = f"recall@{K}"
    panes = ["loss", *([column] if any(_series(log, column)[0] for log in logs.values()) else [])]
    figure, grid = panels(7.2 if len(panes) == 2 else 4.4, 2.8, 1, len(panes))
    marker = markers(logs)
    for axes, pane in zip(grid[0], panes, strict=True):
        for name, log in logs.items():
            every = {"markevery": 0.2, "lw": 1.2} if pane == "loss" else {}
            steps, values = _series(log, pane)
            axes.plot(steps, values, color=study.colours[name], label=name, marker=marker[name], ms=4, **every)
        axes.set(xlabel="step", ylabel="training loss" if pane == "loss" else f"validation Recall@{K}, %")
    _legend(grid[0, 0])
    return figure


def _series(log: Sequence[Mapping[str, str]], column: str) -> tuple[list[float], list[float]]:
    """Steps and values where a column is filled."""
    filled = [(float(row["step"]), float(row[column])) for row in log if row.get(column)]
    return [step for step, _ in filled], [value for _, value in filled]


@styled
def distance(study: Study) -> Figure:
    """Descriptor distance against ψ, one panel per name; solid: the median, dashed: where GCL puts a pair."""
    samples = study.samples
    margins = [run_recipe(run)["loss"].get("margin") for paths in study.runs.values() for run in paths]
    margin = margins[0] if margins else None
    columns = min(4, len(samples))
    rows = -(-len(samples) // columns)
    figure, grid = panels(panel_width(columns) * columns, 3.0 * rows, rows, columns, sharey=True)
    rng = np.random.default_rng(0)
    for axes, (name, arrays) in zip(grid.ravel(), samples.items(), strict=False):
        psi, apart = np.asarray(arrays["pair_psi"]), np.asarray(arrays["pair_distance"])
        some = rng.permutation(len(psi))[:SCATTER]
        axes.scatter(psi[some], apart[some], s=3, alpha=0.25, color=study.colours[name], lw=0, rasterized=True)
        axes.plot(*_medians(psi, apart), color="k", lw=1.4, label="median")
        if margin is not None:
            axes.plot([0, 1], [margin, 0], color="k", lw=1, ls="--", label="d = τ(1 − ψ)")
        axes.set(title=name, xlabel="ψ, how much two views share")
    for axes in grid.ravel()[len(samples) :]:
        axes.set_axis_off()
    grid[0, 0].legend(loc="upper right")
    far = [float(np.quantile(arrays["pair_distance"], q)) for arrays in samples.values() for q in (0, 1)]
    grid[0, 0].set_ylim(0 if margin is not None else 0.95 * min(far), 1.05 * max(far))
    for axes in grid[:, 0]:
        axes.set_ylabel("descriptor distance")
    return figure


def _medians(psi: NDArray[Any], apart: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Median distance of the pairs without overlap and of those in each tenth of ψ, where there are some."""
    at = np.ceil(psi * 10).astype(int)
    bins = [b for b in range(11) if (at == b).sum() >= 5]
    return [max(0.0, b / 10 - 0.05) for b in bins], [float(np.median(apart[at == b])) for b in bins]


@styled
def batches(study: Study) -> Figure:
    """How ψ is distributed in the batches of each name's first run."""
    if not study.runs:
        raise NotInStudy("batches come from runs; give run folders, not evaluations")
    count = len(study.runs)
    figure, grid = panels(panel_width(count) * count, 2.6, 1, count, sharey=True)
    for axes, (name, paths) in zip(grid[0], study.runs.items(), strict=True):
        psi = _batch_psi(paths[0], study.data)
        share = np.full(len(psi), 100 / max(1, len(psi)))
        axes.hist(psi, bins=np.linspace(0, 1, 21), weights=share, color=study.colours[name])
        axes.set(title=name, xlabel="ψ")
    grid[0, 0].set_ylabel("pairs, %")
    return figure


def _batch_psi(run: Path, data: Path | None) -> NDArray[np.float32]:
    sampler = open_sampler(run, data)
    return np.concatenate([sampler.batch(*divmod(n, len(sampler))).psi.ravel() for n in range(BATCHES)])


@styled
def sizes(study: Study) -> Figure:
    """Recall against descriptor size, one line for each model and each set that its whitening was fitted on."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for e in (e for group in study.evaluations.values() for e in group):
        if e.figures.get("dim") is not None:
            curves.setdefault(_family(e), []).append((e.figures["dim"], e.recall[K]))
    dims = sorted({size for points in curves.values() for size, _ in points})
    if len(dims) < 2:
        raise NotInStudy("these evaluations are of one descriptor size; evaluate with --whiten sweep")
    figure, axes = single_panel(5.2, 3.2)
    marker, colours = markers(curves), palette(curves)
    for name, points in curves.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker=marker[name], ms=4, color=colours[name], label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="descriptor dimensions", ylabel=f"Recall@{K}, %")
    ticks = [dims[0]]
    for size in dims:
        ticks += [size] if size >= 1.4 * ticks[-1] else []  # labels need room
    axes.set_xticks(ticks, [f"{size:g}" for size in ticks])
    axes.set_xticks([], minor=True)
    _legend(axes)
    return figure


def _family(evaluation: Evaluation) -> str:
    """What evaluations of several sizes have in common."""
    whitening = evaluation.subject.get("whitening")
    name = evaluation.label.split(", whitened")[0]
    return name if whitening is None else f"{name}, whitened ({whitening['fit']})"


@styled
def gains(study: Study) -> Figure:
    """What each model gains over the first: a panel for each figure, with intervals over places and seeds."""
    first, *others = study.evaluations
    if not others:
        raise InputError("gains compare with another model; give evaluations of two or more models")
    found = {name: paired_differences(study.evaluations[first], study.evaluations[name]) for name in others}
    keys = list(found[others[0]])
    columns = min(4, len(keys))
    rows = -(-len(keys) // columns)
    figure, grid = panels(PAGE_WIDTH, rows * (0.7 + 0.24 * len(found)), rows, columns, sharey=True)
    height = np.arange(len(found))[::-1]
    for key, axes in zip(keys, grid.ravel(), strict=False):
        name = name_of(key)
        middle, low, high = (
            np.array([entry[key][part] for entry in found.values()]) for part in ("difference", "low", "high")
        )
        better, clear = (middle < 0) == name.lower_is_better, (low > 0) | (high < 0)
        for colour, mask in ((COLOURS[3], better & clear), (COLOURS[1], ~better & clear), (COLOURS[0], ~clear)):
            spans = np.stack([middle - low, high - middle])[:, mask].clip(min=0)
            axes.errorbar(middle[mask], height[mask], xerr=spans, fmt="o", ms=4, color=colour)
        axes.axvline(0, color=COLOURS[0], lw=0.8)
        axes.set_title(f"{name.text}{f', {name.unit}' if name.unit else ''}", fontsize=8)
        axes.set_yticks(height, list(found), fontsize=8)
        axes.set_ylim(-0.6, len(found) - 0.4)
    for axes in grid.ravel()[len(keys) :]:
        axes.set_visible(False)
    figure.suptitle(f"difference to “{first}”, 95 % intervals over places and seeds", fontsize=9)
    return figure
