"""Plots of evaluations in one style, on the page and as files."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.evaluation.render import name_of

MOST = 500
"""Exact t-SNE is quadratic: more vectors than this are refused."""
_EXAGGERATION, _EARLY = 12.0, 100
_TINY = 1e-12


def pca(vectors: NDArray[np.floating], dims: int = 2) -> Floats:
    """(N, D) → (N, dims): coordinates along the directions of largest variance, each with a fixed sign."""
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    u, s, vt = np.linalg.svd(centred, full_matrices=False)
    sign = np.sign(vt[np.arange(len(vt)), np.abs(vt).argmax(1)])
    projected = (u * s * sign)[:, :dims]
    return np.pad(projected, ((0, 0), (0, dims - projected.shape[1])))


def tsne(vectors: NDArray[np.floating], perplexity: float = 30.0, steps: int = 500) -> Floats:
    """(N, D) → (N, 2): near vectors stay near (van der Maaten and Hinton, 2008). N ≤ `MOST`; starts from PCA.

    Nothing is random: the same vectors give the same picture.
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


# Plots of evaluations in one style, on the page and as files.


COLOURS = ("#8a94a0", "#d1493e", "#3577cf", "#2a9d62", "#c98a1f", "#8a5cc7", "#1c9aa8", "#c75c9c")
"""Models take these in turn, legible on white and on black; a name keeps its colour in all drawings of a report."""
Palette = Mapping[str, str]
P = ParamSpec("P")
PAGE_WIDTH = 11.6
"""Width of a report's page in inches."""
SCATTER = 4000
"""Most points that a cloud shows."""
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "covis",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: journals and conferences refuse Type 3
    "ps.fonttype": 42,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Used with colours, so that lines can be distinguished in print and by every reader."""
_BLACK = "#000000"


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in order; grey for the first where it is the one that others are compared with."""
    distinct = list(dict.fromkeys(names))
    colours = COLOURS if len(distinct) > 2 else COLOURS[1:]
    return {name: colours[i % len(colours)] for i, name in enumerate(distinct)}


def markers(names: Iterable[str]) -> dict[str, str]:
    """A marker for each name, in order."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(dict.fromkeys(names))}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Makes a function draw in the project's style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, *, sharey: bool = False
) -> tuple[Figure, NDArray[Any]]:
    """A figure of `width` × `height` inches and its axes (rows, columns)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid: NDArray[Any] = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    return figure, grid


def _one(width: float = 4.4, height: float = 3.2) -> tuple[Figure, Axes]:
    figure, grid = panels(width, height)
    axes: Axes = grid[0, 0]
    return figure, axes


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


def panel_width(count: int) -> float:
    """Width in inches at which `count` panels side by side still fit the page at full size."""
    return min(3.6, PAGE_WIDTH / count)


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
    figure, axes = _one()
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
def precision_curves(curves: Mapping[str, Sequence[tuple[NDArray[Any], NDArray[Any]]]], colours: Palette) -> Figure:
    """Precision against recall (each in [0, 1]) of best matches accepted up to a distance, one line per evaluation."""
    figure, axes = _one()
    marker = markers(curves)
    for name, curve in curves.items():
        for i, (recall, precision) in enumerate(curve):
            axes.plot(
                100 * recall, 100 * precision, color=colours[name], label=None if i else name, drawstyle="steps-pre",
                marker=marker[name], ms=4, markevery=0.2,
            )  # fmt: skip
    axes.set(xlabel="recall, %", ylabel="precision, %", xlim=(0, 100), ylim=(0, 102), title="accepted matches")
    _legend(axes)
    return figure


@styled
def radius_curves(
    curves: Mapping[str, Sequence[Sequence[float]]],
    radii_m: Sequence[float],
    possible: Sequence[float],
    colours: Palette,
) -> Figure:
    """Recall@1 against the radius in metres that counts as correct; dashed: the most that any ranking could reach."""
    figure, axes = _one()
    marker = markers(curves)
    axes.plot(radii_m, possible, color="k", lw=1, ls="--", label="possible")
    for name, curve in curves.items():
        axes.plot(radii_m, np.mean(curve, axis=0), marker=marker[name], ms=4, color=colours[name], label=name)
    axes.set(xlabel="radius, m", ylabel="Recall@1, %", ylim=(0, 102), xscale="log", title="correct within a radius")
    _ticks(axes, radii_m, 1.6)
    _legend(axes)
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
    figure, axes = _one(5.2, 3.2)
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


def svg(figure: Figure, title: str = "") -> str:
    """The drawing as an SVG element with a title for screen readers; the same drawing gives the same text.

    Black becomes the page's text colour, and the background is left out.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(_BLACK, "currentColor")
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    return drawn.replace("<svg", '<svg role="img"', 1).replace(
        ">", Markup("><title>{}</title>").format(title or described(figure)), 1
    )


def described(figure: Figure) -> str:
    """A drawing in words: its panels' titles, axes and the names in its legends."""
    parts = []
    for axes in figure.axes:
        about = ", ".join(filter(None, (axes.get_title() or axes.get_title(loc="left"), axes.get_ylabel())))
        against = f" against {axes.get_xlabel()}" if axes.get_xlabel() else ""
        names = [str(label) for label in axes.get_legend_handles_labels()[1]]
        parts.append(f"{about}{against}{': ' + ', '.join(names) if names else ''}")
    return "; ".join(part for part in dict.fromkeys(parts) if part) or "drawing"


def save(figure: Figure, path: Path, *, width_in: float | None = None, titles: bool = True) -> None:
    """Writes the drawing as PNG, SVG or PDF, by the file's ending, with fonts that papers take.

    width_in: width in inches; the height scales in proportion, letters keep their size. titles: whether to draw titles.
    """
    if not titles:
        for axes in figure.axes:
            axes.set_title("")
            axes.set_title("", loc="left")
    if width_in is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width_in, height * width_in / width)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=160 if path.suffix != ".png" else 300)


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
