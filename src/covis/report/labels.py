"""Pictures of labels: fields of view, and ψ against distance and angle."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.labels.fov import Measure, fov_similarity, sides
from covis.labels.rules import Radius
from covis.poses import angle_between
from covis.report.style import (
    styled,
)

_ONE, _TWO, _SHARED = "#2c6fbb", "#d9662b", "#3a9a5b"
_MOST_QUERIES = 2000
_MOST_DOTS = 20_000


@styled
def picture_pair(
    queries: ImageSet,
    i: int,
    database: ImageSet,
    j: int,
    *,
    radius_m: float | tuple[float, float] = 50.0,
    fov_deg: float | tuple[float, float] = 90.0,
    measure: Measure = "overlap",
    facing: bool = False,
) -> Figure:
    """The fields of view of query i and map image j, with what they share; `facing` as in `FovOverlap`."""
    from covis.labels.city import facing_weight

    figure, axes = _figure(6, 6)
    a, b = queries.poses, database.poses
    psi = fov_similarity(
        a.xy[[i]], a.heading[[i]], b.xy[[j]], b.heading[[j]], radius_m=radius_m, fov_deg=fov_deg, measure=measure
    )[0]
    middle = 0.5 * (a.xy[i] + b.xy[j])
    radius, fov = sides(radius_m), sides(fov_deg)
    outlines = [
        sector_outline(p.xy[k] - middle, p.heading[k], r, f)
        for p, k, r, f in ((a, i, radius[0], fov[0]), (b, j, radius[1], fov[1]))
    ]
    _fill_shared(axes, outlines)
    for outline, colour, name in zip(outlines, (_ONE, _TWO), (queries.name(i), database.name(j)), strict=True):
        axes.plot(*np.vstack([outline, outline[:1]]).T, color=colour, label=name)
        axes.plot(*outline[0], "o", color=colour)
    apart, turn = np.hypot(*(a.xy[i] - b.xy[j])), angle_between(a.heading[i], b.heading[j])
    if facing and not np.isnan(turn):
        psi *= facing_weight(float(turn))
    title = f"{measure}, facing weighed" if facing else measure
    turned = "unknown heading" if np.isnan(turn) else f"{turn:.0f}° apart in heading"
    axes.set(title=f"{title} {psi:.3f}: {apart:.1f} m and {turned}", xlabel="east (m)", ylabel="north (m)", aspect=1)
    axes.legend(loc="upper right", fontsize="small")
    return figure


def sector_outline(xy: Floats, heading: float, radius_m: Any, fov_deg: Any) -> Floats:
    """(N, 2) outline of a field of view; a full circle where the heading is unknown."""
    opening = 360.0 if np.isnan(heading) else float(fov_deg)
    angle = np.radians((0.0 if np.isnan(heading) else heading) + opening * np.linspace(-0.5, 0.5, 181))
    arc = xy + float(radius_m) * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return arc if opening == 360.0 else np.vstack([xy, arc])


def _fill_shared(axes: Axes, outlines: list[Floats]) -> None:
    """Colours the points inside both outlines; pixels are exact enough for a picture."""
    from matplotlib.path import Path as Outline

    low = np.max([o.min(axis=0) for o in outlines], axis=0)
    high = np.min([o.max(axis=0) for o in outlines], axis=0)
    for outline, colour in zip(outlines, (_ONE, _TWO), strict=True):
        axes.fill(*outline.T, color=colour, alpha=0.12, linewidth=0)
    if (high <= low).any():
        return
    x, y = (np.linspace(a, b, 300) for a, b in zip(low, high, strict=True))
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    inside = np.all([Outline(o).contains_points(grid) for o in outlines], axis=0).reshape(300, 300)
    if inside.any():
        axes.contourf(x, y, inside.astype(float), levels=[0.5, 1.5], colors=[_SHARED], alpha=0.6)


@styled
def picture_scatter(
    graph: SimilarityGraph, queries: ImageSet, database: ImageSet, *, reach_m: float | None = None
) -> Figure:
    """ψ against distance (coloured by angle) and against angle (coloured by distance)."""
    apart, turn, psi = near_pairs(graph, queries, database, reach_m)
    keep = np.random.default_rng(0).permutation(len(psi))[:_MOST_DOTS]
    apart, turn, psi = apart[keep], turn[keep], psi[keep]
    figure, axes = _figure(12, 5, columns=2)
    for panel, x, colour, label, caption in (
        (axes[0], apart, turn, "distance (m)", "heading difference (°)"),
        (axes[1], turn, apart, "heading difference (°)", "distance (m)"),
    ):
        dots = panel.scatter(x, psi, c=colour, s=3, cmap="viridis", linewidths=0, rasterized=True)
        panel.axhline(POSITIVE, color="grey", linewidth=0.8)
        panel.set(xlabel=label, ylabel=_title(graph), ylim=(-0.02, 1.02))
        figure.colorbar(dots, ax=panel, label=caption)
    return figure


@styled
def picture_heatmap(
    graph: SimilarityGraph, queries: ImageSet, database: ImageSet, *, reach_m: float | None = None
) -> Figure:
    """Mean ψ of pairs by distance and by angle between headings."""
    apart, turn, psi = near_pairs(graph, queries, database, reach_m)
    known = ~np.isnan(turn)
    edges = np.linspace(0, apart.max(initial=1.0), 41), np.linspace(0, 180, 37)
    number, _, _ = np.histogram2d(apart[known], turn[known], edges)
    total, _, _ = np.histogram2d(apart[known], turn[known], edges, weights=psi[known])
    figure, axes = _figure(7.5, 5.5)
    with np.errstate(invalid="ignore"):
        image = axes.pcolormesh(*edges, (total / number).T, vmin=0, vmax=1, cmap="viridis")
    axes.set(xlabel="distance (m)", ylabel="heading difference (°)", title=f"{int(known.sum())} pairs")
    figure.colorbar(image, ax=axes, label=f"mean {_title(graph)}")
    return figure


def near_pairs(
    graph: SimilarityGraph, queries: ImageSet, database: ImageSet, reach_m: float | None
) -> tuple[Floats, Floats, Floats]:
    """Distance, angle and ψ of the pairs within `reach_m`, including ψ = 0, for an even sample of the queries."""
    if reach_m is None:
        rows, columns = graph.rows, graph.indices
        if not graph.pairs:
            raise InputError("the graph holds no pair; there is nothing to draw")
        reach_m = float(np.hypot(*(queries.poses.xy[rows] - database.poses.xy[columns]).T).max()) or 1.0
    some = np.unique(np.linspace(0, len(queries) - 1, min(_MOST_QUERIES, len(queries))).astype(np.int64))
    near = Radius(reach_m)(queries.subset(some), database)
    i, j = some[near.rows], near.indices
    if queries is database:
        i, j = i[i != j], j[i != j]
    apart = np.hypot(*(queries.poses.xy[i] - database.poses.xy[j]).T)
    return (
        apart,
        angle_between(queries.poses.heading[i], database.poses.heading[j]),
        graph.lookup(i, j).astype(np.float64),
    )


@styled
def picture_map(graph: SimilarityGraph, queries: ImageSet) -> Figure:
    """Where the queries are, coloured by their number of positives; hollow where there is none."""
    positives = np.diff(graph.band(POSITIVE, 1.0).indptr)
    xy, none = queries.poses.xy, positives == 0
    figure, axes = _figure(8, 7)
    axes.scatter(*xy[none].T, s=10, facecolors="none", edgecolors="#999999", linewidths=0.6)
    dots = axes.scatter(*xy[~none].T, c=positives[~none], s=6, cmap="viridis", norm="log", linewidths=0)
    if (~none).any():
        ticks = [t for d in range(7) for t in (10**d, 2 * 10**d, 5 * 10**d) if t <= positives.max()]
        bar = figure.colorbar(dots, ax=axes, label=f"positives (ψ ≥ {POSITIVE})", ticks=ticks)
        bar.ax.set_yticklabels([f"{tick:,}" for tick in ticks])
        bar.ax.minorticks_off()
    axes.set(
        xlabel="east (m)", ylabel="north (m)", aspect=1,
        title=f"{len(queries)} queries, {int(none.sum())} without a positive (hollow)",
    )  # fmt: skip
    return figure


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure of its own, outside pyplot's list of open ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _title(graph: SimilarityGraph) -> str:
    facing = ", facing weighed" if graph.facts.get("facing") else ""
    return f"ψ ({graph.facts.get('measure', 'similarity')}{facing})"
