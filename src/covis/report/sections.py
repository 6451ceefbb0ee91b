"""The parts of a report that are drawn, each made from evaluations or runs; each figure also by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis import artifacts
from covis.errors import InputError
from covis.evaluation import Benchmark, Evaluation, load_benchmark
from covis.evaluation.grades import precision_recall
from covis.evaluation.retrieval import has_grades
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet, Split
from covis.report import drawings, plots, views
from covis.report.gallery import map_data, shot
from covis.report.page import Section, figure, text
from covis.report.views import Groups, Runs, colours, needed_sample, run_recipe, sampled
from covis.training.run import open_sampler

Labelled = tuple[SimilarityGraph, ImageSet, ImageSet]
BATCHES = 200
SIZE_K = 5
"""Recall@k that is drawn against descriptor size."""
EXAMPLES = (0.9, 0.7, POSITIVE, 0.3, 0.1, 0.0)
"""ψ of the example pairs that are shown."""


def lead(evaluations: Groups) -> str:
    """What was scored on what, by which command and which versions."""
    first = next(iter(evaluations.values()))[0]
    f = first.figures
    versions = ", ".join(f"{k} {v}" for k, v in artifacts.versions().items())
    notes = "".join(f"<br>note: {text(n)}" for n in f["notes"])
    return (
        f'<p class="facts">benchmark <b>{text(f["benchmark"])}</b>, protocol <code>{text(f["fingerprint"])}</code>: '
        f"{f['queries']} queries, {f['database']} map images; relevant: {text(f['rule'])}{notes}<br>"
        f"made by <code>{text(artifacts.command())}</code><br>{text(versions)}</p>"
    )


def map_and_gallery(evaluations: Groups, benchmark: Benchmark) -> Section:
    """Where queries were right and wrong, and the worst of the wrong ones."""
    body = (
        '<p><span class="right-ink">●</span> right, <span class="wrong-ink">▼</span> wrong, small dots the map. '
        'Hover or click. <span id="map-models"></span></p>'
        '<div class="row"><div id="map-view"><canvas id="map-canvas"></canvas></div><div id="look"></div></div>'
        '<h3>Wrong, the surest first</h3><div class="gallery" id="gallery-entries"></div>'
        '<p><button id="gallery-more">show more</button></p>'
    )
    data = map_data({name: found[0] for name, found in evaluations.items()}, benchmark)
    return Section("Right and wrong queries", body, "map", data)


def distances(evaluations: Groups, runs: Runs) -> Section | None:
    """Descriptor distance against ψ."""
    if not sampled(evaluations):
        return None
    drawn = plots.svg(distance_figure(evaluations, runs))
    caption = "pairs of the benchmark, half of them similar; ρ stands among the other figures"
    return Section("Distance against similarity", figure(drawn, caption), "distance")


def examples(labelled: Labelled) -> Section | None:
    """Pairs of images with their ψ and fields of view."""
    graph, queries, database = labelled
    if not has_grades(graph):
        return None
    cells = [_example(Split(queries, database), graph, i, j) for i, j in _pairs(graph)]
    return Section("How much two views share", f'<div class="pairs">{"".join(cells)}</div>', "examples")


def _pairs(graph: SimilarityGraph) -> list[tuple[int, int]]:
    """For each ψ of `EXAMPLES` the stored pair closest to it, and one that shares nothing."""
    psi, rows = graph.psi, graph.rows
    found = []
    for wanted in EXAMPLES:
        if wanted > 0:
            k = int(np.argmin(np.abs(psi - wanted)))
            found.append((int(rows[k]), int(graph.indices[k])))
        else:
            row = graph.shape[0] // 2
            free = np.setdiff1d(np.arange(graph.shape[1]), graph.row(row)[0])
            found.append((row, int(free[len(free) // 2])))
    return found


def _example(split: Split, graph: SimilarityGraph, i: int, j: int) -> str:
    sides = ((split.queries, i), (split.database, j))
    poses = [(float(s.poses.xy[k, 0]), float(s.poses.xy[k, 1]), float(s.poses.heading[k])) for s, k in sides]
    # Labels from surfaces have no sectors on the ground to draw.
    sector = [float(np.max(graph.facts[key])) for key in ("radius_m", "fov_deg") if key in graph.facts]
    drawn = plots.svg(drawings.fields_of_view(poses, *sector)) if len(sector) == 2 else ""
    shots = "".join(f'<figure><img alt="{text(s.name(k))}" src="{shot(s, k)}"></figure>' for s, k in sides)
    psi = float(graph.lookup([i], [j])[0])
    return f'<div><div class="shots">{shots}</div>{figure(drawn, f"ψ = {psi:.2f}")}</div>'


def batches(evaluations: Groups, runs: Runs, data: Path | None) -> Section | None:
    """How ψ is distributed in what each loss saw."""
    if not runs:
        return None
    caption = f"the first {BATCHES} batches of each run"
    drawn = plots.svg(batch_figure(evaluations, runs, data))
    return Section("Similarity in the batches", figure(drawn, caption), "batches")


def _batch_psi(run: Path, data: Path | None) -> NDArray[np.float32]:
    sampler = open_sampler(run, data)
    psi = [sampler.batch(*divmod(n, len(sampler))).psi.ravel() for n in range(BATCHES)]
    return np.concatenate(psi)


def sizes(evaluations: Groups) -> Section | None:
    """Recall against descriptor size, where evaluations differ in it."""
    if len({e.figures["dim"] for e in _all(evaluations) if "dim" in e.figures}) < 2:
        return None
    caption = "whitening is fitted on images of the map or of training, as the legend says"
    return Section("Descriptor size", figure(plots.svg(size_figure(evaluations)), caption), "sizes")


# Each figure by itself, for the page and for files


def recall_figure(evaluations: Groups) -> Figure:
    """Recall@k against k."""
    return plots.recall_curves(
        {name: [e.figures["recall_curve"] for e in found] for name, found in evaluations.items()},
        colours(evaluations),
    )


def precision_figure(evaluations: Groups) -> Figure:
    """Precision against recall of each query's best match, accepted up to a distance."""
    curves = {name: [c for e in found for c in _accepted(e)] for name, found in evaluations.items()}
    if not any(curves.values()):
        raise InputError("these evaluations hold no distances, so no match can be accepted by one")
    return plots.precision_curves({name: found for name, found in curves.items() if found}, colours(evaluations))


def _accepted(evaluation: Evaluation) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    distance = np.asarray(evaluation.arrays["distances"])[:, 0]
    given = np.isfinite(distance)
    if not given.any():
        return []
    right = np.asarray(evaluation.arrays["first_hit"]) == 1
    curve = precision_recall(distance[given], right[given], int((evaluation.arrays["relevant"] > 0).sum()))
    return [(curve.recall, curve.precision)]


def radius_figure(evaluations: Groups) -> Figure:
    """Recall@1 against the radius that counts as right."""
    curves = {
        name: [e.figures["recall_by_radius"] for e in found if "recall_by_radius" in e.figures]
        for name, found in evaluations.items()
    }
    known = [c for found in curves.values() for c in found]
    if not known:
        raise InputError("these evaluations are of images without positions, so no radius can be drawn")
    recall = {name: [c["recall"] for c in found] for name, found in curves.items() if found}
    return plots.radius_curves(recall, known[0]["radius_m"], known[0]["possible"], colours(evaluations))


def distance_figure(evaluations: Groups, runs: Runs) -> Figure:
    """Distance against ψ, with the line of the first run's margin."""
    pairs = {
        name: (np.asarray(arrays["pair_psi"]), np.asarray(arrays["pair_distance"]))
        for name, arrays in needed_sample(evaluations).items()
    }
    margins = [run_recipe(run)["loss"].get("margin") for found in runs.values() for run in found]
    return plots.distance_against_similarity(pairs, margins[0] if margins else None, colours(evaluations))


def batch_figure(evaluations: Groups, runs: Runs, data: Path | None) -> Figure:
    """Histograms of ψ in the batches of each run."""
    if not runs:
        raise InputError("batches are those of a run; give run folders, not evaluations")
    found = {name: _batch_psi(paths[0], data) for name, paths in runs.items()}
    return plots.batch_histograms(found, colours(evaluations, runs))


def size_figure(evaluations: Groups) -> Figure:
    """Recall against descriptor size, one line each model and what its whitening was fitted on."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for e in _all(evaluations):
        curves.setdefault(_family(e), []).append((int(e.figures["dim"]), e.recall[SIZE_K]))
    return plots.size_curves(curves, SIZE_K, plots.palette(curves))


def _family(evaluation: Evaluation) -> str:
    """What evaluations of several sizes have in common."""
    whitening = evaluation.subject.get("whitening")
    name = evaluation.label.split(", whitened")[0]
    return name if whitening is None else f"{name}, whitened ({whitening['fit']})"


def _all(evaluations: Groups) -> list[Evaluation]:
    return [e for found in evaluations.values() for e in found]


FIGURES: dict[str, Callable[[Groups, Runs, Path | None], Figure]] = {
    "recall": lambda evaluations, runs, data: recall_figure(evaluations),
    "precision": lambda evaluations, runs, data: precision_figure(evaluations),
    "radius": lambda evaluations, runs, data: radius_figure(evaluations),
    "distance": lambda evaluations, runs, data: distance_figure(evaluations, runs),
    "sizes": lambda evaluations, runs, data: size_figure(evaluations),
    "differences": lambda evaluations, runs, data: views.difference_figure(
        evaluations, views.models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "activations": lambda evaluations, runs, data: views.activation_figure(
        evaluations, views.models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "overlap": lambda evaluations, runs, data: views.overlap_figure(runs, _benchmark(evaluations, data), data),
    "batches": lambda evaluations, runs, data: batch_figure(evaluations, runs, data),
}
"""Made from evaluations by name, runs by name, and the place of the data."""


def _benchmark(evaluations: Groups, data: Path | None) -> Benchmark:
    return load_benchmark(next(iter(evaluations.values()))[0].benchmark, data)
