"""Drawings of pairs: their fields of view and labels, and what models make of them (descriptors, activations)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray
from torch import Tensor

from covis import datasets
from covis.core import artifacts
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber
from covis.evaluation import Benchmark
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.labels.fov import Measure, fov_similarity, sides
from covis.labels.rules import Radius
from covis.models import PlaceModel
from covis.poses import angle_between
from covis.reading.decoding import Reject, decode
from covis.report import plots
from covis.report.page import EvaluationGroups, Models, Runs, Section, figure
from covis.report.plots import COLOURS, PAGE_WIDTH, SCATTER, Palette, panel_width, panels, pca, styled, tsne

if TYPE_CHECKING:
    from covis.labels.clouds import PointCloud

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


@styled
def activation_maps(
    photos: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
    captions: Sequence[str],
    shares: Mapping[str, Sequence[Shares]],
) -> Figure:
    """One row per pair: both photos, then for each name both with what every place adds to the similarity."""
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


@styled
def picture_surface(
    cloud: PointCloud, queries: ImageSet, i: int, database: ImageSet, j: int, occlusion: str = "none"
) -> Figure:
    """The cloud's points in three dimensions: seen by one, by the other, by both, by none."""
    from covis.labels.surface import arrange, seen_points

    points = arrange(cloud)
    one, two = (
        np.unpackbits(
            seen_points(points, images.subset([k]), occlusion).words.view(np.uint8), bitorder="little"
        ).astype(bool)
        for images, k in ((queries, i), (database, j))
    )
    figure, axes = _figure(8, 7, projection="3d")
    xyz = np.stack([points.x, points.y, points.z]) + points.middle[:, None]
    kinds = ((~one & ~two, "#aaaaaa", 0.5, "neither"), (one & ~two, _ONE, 2, queries.name(i)),
             (two & ~one, _TWO, 2, database.name(j)), (one & two, _SHARED, 3, "both"))  # fmt: skip
    eyes = np.stack([queries.poses.centre[i], database.poses.centre[j]], axis=1)
    near = _zoom(axes, np.concatenate([xyz[:, one | two], eyes], axis=1), xyz)
    rng = np.random.default_rng(0)
    for seen, colour, size, name in kinds:
        those = np.flatnonzero(seen & ~np.isnan(points.x))  # NaN fills the last block up
        some = rng.permutation(those[near[those]])[:_MOST_DOTS]
        axes.scatter(*xyz[:, some], s=size, c=colour, linewidths=0, label=f"{name} ({len(those)})", rasterized=True)
    for eye, colour in zip(eyes.T, (_ONE, _TWO), strict=True):
        axes.scatter(*eye, s=40, c=colour, marker="^")
    share = (one & two).sum() / max(1, (one | two).sum())
    axes.set(title=f"iou {share:.3f}", xlabel="east (m)", ylabel="north (m)", zlabel="up (m)")
    axes.legend(loc="upper right", fontsize="small", markerscale=4)
    return figure


def _zoom(axes: Any, shown: Floats, xyz: Floats) -> NDArray[np.bool_]:
    """Fits the axes around the (3, N) points `shown` at equal scales; returns which of `xyz` then lie inside."""
    low, high = shown.min(axis=1), shown.max(axis=1)
    slack = 0.03 * float((high - low).max()) + 1e-6
    low, high = low - slack, high + slack
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    extent = high - low
    axes.set_box_aspect(extent)
    for axis, length in zip("xyz", extent, strict=True):
        axes.locator_params(axis=axis, nbins=max(2, round(7 * float(length / extent.max()))))
    inside: NDArray[np.bool_] = ((xyz >= low[:, None]) & (xyz <= high[:, None])).all(axis=0)
    return inside


def _figure(width: float, height: float, columns: int = 1, projection: str | None = None) -> tuple[Figure, Any]:
    """A figure of its own, outside pyplot's list of open ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, subplot_kw={"projection": projection})


def _title(graph: SimilarityGraph) -> str:
    facing = ", facing weighed" if graph.facts.get("facing") else ""
    return f"ψ ({graph.facts.get('measure', 'similarity')}{facing})"


# What a model sees: its runs, differences of descriptors, activations, ψ against poses


MOST_MODELS = 4
"""Most columns of figures that show models side by side."""


def models(evaluations: EvaluationGroups, runs: Runs) -> dict[str, Path]:
    """The first models that can be opened: those of runs, else evaluated folders that still hold the same model.

    A model that was evaluated several times (whitened to several sizes) counts once.
    """
    models = {name: paths[0] / "model" for name, paths in runs.items()}
    seen = {_fingerprint(folder) for folder in models.values()}
    for name, group in evaluations.items():
        folder = Path(str(group[0].subject.get("folder", "")))
        mark = group[0].subject.get("fingerprint")
        if name not in models and mark not in seen and mark == _fingerprint(folder):
            models[name] = folder
            seen.add(mark)
    order = [name for name in (*evaluations, *models) if name in models]
    return {name: models[name] for name in list(dict.fromkeys(order))[:MOST_MODELS]}


def _fingerprint(folder: Path) -> object:
    record = folder / artifacts.MANIFEST
    return artifacts.read_json(record).get("fingerprint") if record.is_file() else None


def colours(evaluations: EvaluationGroups, further: Iterable[str] = ()) -> dict[str, str]:
    """The colour of each name, the same in every figure of a report."""
    return plots.palette([*evaluations, *further])


def graded_samples(evaluations: EvaluationGroups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """The arrays of the first evaluation of each name, where it has sampled pairs of graded similarity."""
    return {name: group[0].arrays for name, group in evaluations.items() if "pair_psi" in group[0].arrays}


def needed_sample(evaluations: EvaluationGroups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """`graded_samples`, or an error where there are none."""
    samples = graded_samples(evaluations)
    if not samples:
        raise InputError("these evaluations hold no sampled pairs with graded similarity")
    return samples


def run_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as JSON."""
    recipe: dict[str, Any] = artifacts.read_json(run / "run.json")["config"]["recipe"]
    return recipe


EACH = 120
"""Number of positive pairs, and of negative pairs, that are drawn."""
CHOSEN = (0.9, 0.6, 0.3, 0.0)
"""ψ of the pairs whose activation maps are shown."""
_POSE_PAIRS = 4_000_000


# Differences of descriptors


def descriptor_differences(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Section | None:
    """Differences of descriptors of positive and negative pairs on a plane, one column per model."""
    caption = f"z(query) − z(map) of {EACH} positive (ψ ≥ {POSITIVE}) and {EACH} negative pairs of the benchmark"
    return _section(
        "Differences of descriptors", "differences", difference_figure, caption, evaluations, models, benchmark
    )


def difference_figure(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Figure:
    """PCA and t-SNE of the differences of sampled pairs, for each model."""
    opened = _opened(models)
    rows, columns, positive = _balanced(_sample(evaluations, benchmark))
    curves = {
        name: _described(model, benchmark.queries, rows) - _described(model, benchmark.database, columns)
        for name, model in opened.items()
    }
    planes = {
        "PCA": {name: pca(vectors) for name, vectors in curves.items()},
        "t-SNE": {name: tsne(vectors) for name, vectors in curves.items()},
    }
    return difference_planes(planes, positive, colours(evaluations, models))


def _balanced(sample: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Queries, map images and which are positive: `EACH` of either kind, or as many as both kinds have."""
    positive = np.asarray(sample["pair_psi"]) >= POSITIVE
    rng = np.random.default_rng(0)
    kinds = [rng.permutation(np.flatnonzero(kind)) for kind in (positive, ~positive)]
    each = min(EACH, *map(len, kinds))
    chosen = np.concatenate([kind[:each] for kind in kinds])
    return np.asarray(sample["pair_query"])[chosen], np.asarray(sample["pair_map"])[chosen], positive[chosen]


def _described(model: PlaceModel, images: ImageSet, ids: NDArray[Any]) -> NDArray[np.float32]:
    """(N, dim) descriptors of the images at `ids`, each embedded once and kept in the cache."""
    distinct, at = np.unique(ids, return_inverse=True)
    vectors, lost = ModelDescriber(model, workers=0).describe(images.subset(distinct))
    if lost.any():
        raise InputError(f"{images.path(int(distinct[lost][0]))} cannot be read; fix it or evaluate again without it")
    return vectors[at]


# Activation maps


def activations(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Section | None:
    """Where each model finds two photos alike."""
    caption = "query, map image; bright places add most to the similarity of the pooled descriptors (one scale a pair)"
    return _section("Activation maps", "activations", activation_figure, caption, evaluations, models, benchmark)


def activation_figure(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Figure:
    """Sampled pairs with ψ near `CHOSEN`, seen by each model."""
    opened = _opened(models)
    sample = _sample(evaluations, benchmark)
    psi = np.asarray(sample["pair_psi"])
    at = [int(np.argmin(np.abs(psi - wanted))) for wanted in CHOSEN]
    pairs = [(int(sample["pair_query"][k]), int(sample["pair_map"][k])) for k in at]
    captions = [f"ψ = {psi[k]:.2f}" for k in at]
    return pair_activations(opened, benchmark.queries, benchmark.database, pairs, captions)


def pair_activations(
    models: Mapping[str, PlaceModel],
    queries: ImageSet,
    database: ImageSet,
    pairs: list[tuple[int, int]],
    captions: list[str],
) -> Figure:
    """Activation maps of chosen pairs (query id, map id), one column per model."""
    paths = [(queries.path(i), database.path(j)) for i, j in pairs]
    try:
        photos = [(_photo(a), _photo(b)) for a, b in paths]
        shares = {
            name: [contributions(m, m.preprocessing.pixels(a), m.preprocessing.pixels(b)) for a, b in paths]
            for name, m in models.items()
        }
    except Reject as reject:
        raise InputError(f"{reject}; fix the file or evaluate again without it") from reject
    return activation_maps(photos, captions, shares)


def _photo(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    picture = Image.fromarray(decode(path))
    picture.thumbnail((200, 200))
    return np.asarray(picture)


# ψ against poses


Labelled = tuple[SimilarityGraph, ImageSet, ImageSet]
Posed = tuple[NDArray[Any], NDArray[Any], NDArray[Any], float]


def pose_overlap(runs: Runs, benchmark: Benchmark, data: Path | None) -> Section | None:
    """How labels depend on the distance and angle between two cameras."""
    pairs = _posed_pairs(*labelled(runs, benchmark, data))
    if pairs is None:
        return None
    whose = "training labels" if runs else "the benchmark's graded similarity"
    drawn = plots.svg(overlap_against_pose(*pairs))
    caption = f"{whose}; pairs that share nothing count as ψ = 0"
    return Section("Overlap against distance and angle", figure(drawn, caption), "overlap")


def overlap_figure(runs: Runs, benchmark: Benchmark, data: Path | None) -> Figure:
    """ψ against metres and degrees."""
    pairs = _posed_pairs(*labelled(runs, benchmark, data))
    if pairs is None:
        raise InputError("there is no pair of graded similarity with known positions and headings")
    return overlap_against_pose(*pairs)


def labelled(runs: Runs, benchmark: Benchmark, data: Path | None) -> Labelled:
    """The labels of the last name's first run with their images; without runs, the benchmark's own."""
    if not runs:
        return benchmark.graded, benchmark.queries, benchmark.database
    run = list(runs.values())[-1][0]
    recipe = run_recipe(run)
    split = datasets.load(recipe["dataset"], data, recipe["split"])
    return SimilarityGraph.open(run / "labels"), split.queries, split.database


def _posed_pairs(graph: SimilarityGraph, a: ImageSet, b: ImageSet) -> Posed | None:
    """Metres, degrees and ψ of the pairs of evenly drawn queries within the labels' reach, and that reach in metres."""
    if not graph.has_grades:
        return None
    reach = _reach(graph, a, b)
    most = max(1, _POSE_PAIRS // max(1, len(b)))
    parts = []
    for i in np.unique(np.linspace(0, len(a) - 1, min(most, len(a))).astype(int)):
        metres = np.hypot(*(b.poses.xy - a.poses.xy[i]).T)
        degrees = angle_between(a.poses.heading[i], b.poses.heading)
        near = (metres <= reach) & ~np.isnan(degrees)
        if graph.facts.get("within_group"):
            near &= np.array(b.group_names)[b.group] == a.group_names[a.group[i]]
        if a is b:
            near[i] = False
        j = np.flatnonzero(near)
        parts.append(np.stack([metres[j], degrees[j], graph.lookup(np.full(len(j), i), j)]))
    metres, degrees, psi = np.concatenate(parts, axis=1)
    return (metres, degrees, psi, reach) if len(psi) else None


def _reach(graph: SimilarityGraph, a: ImageSet, b: ImageSet) -> float:
    """Metres within which pairs can share something, judged by the stored pairs."""
    some = slice(None, None, max(1, graph.pairs // 100_000))
    apart = a.poses.xy[graph.rows[some]] - b.poses.xy[graph.indices[some]]
    metres = np.hypot(*apart.T)
    return float(np.nanmax(metres, initial=0.0)) or 1.0


# Sections of figures, and the samples and models that they need


def _section(
    title: str,
    name: str,
    draw: Callable[[EvaluationGroups, Models, Benchmark], Figure],
    caption: str,
    evaluations: EvaluationGroups,
    models: Models,
    benchmark: Benchmark,
) -> Section | None:
    """A section with a figure of models, or why it cannot be drawn (such as a pooling that ignores the map)."""
    if not models or not graded_samples(evaluations):
        return None
    try:
        body = figure(plots.svg(draw(evaluations, models, benchmark)), caption)
    except InputError as reason:
        body = Markup("<p>{}</p>").format(reason)
    return Section(title, body, name)


def _sample(evaluations: EvaluationGroups, benchmark: Benchmark) -> Mapping[str, NDArray[Any]]:
    """The sampled pairs of the first evaluation that has some; ids are those of the benchmark's images."""
    name, arrays = next(iter(needed_sample(evaluations).items()))
    if evaluations[name][0].fingerprint != benchmark.fingerprint:
        raise InputError(f"the evaluation's {benchmark.name!r} differs from the one in the data; evaluate again")
    return arrays


def _opened(models: Models) -> dict[str, PlaceModel]:
    if not models:
        raise InputError("this figure needs models; give run folders, or evaluations whose model is still there")
    return {name: PlaceModel.load(folder) for name, folder in models.items()}


def contributions(model: PlaceModel, first: Tensor, second: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
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
