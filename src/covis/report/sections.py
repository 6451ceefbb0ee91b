"""The parts of a report, each made from evaluations or runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis import artifacts, datasets
from covis.datasets import Split
from covis.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.evaluation.published import beside
from covis.graph import POSITIVE, SimilarityGraph
from covis.report import plots
from covis.report.gallery import map_data, thumbnail
from covis.report.page import Section, figure, table, text
from covis.training.run import open_sampler

Groups = Mapping[str, Sequence[Evaluation]]
Runs = Mapping[str, Sequence[Path]]
KS = (1, 5, 10)
BATCHES = 200
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


def recalls(evaluations: Groups) -> Section:
    """Recall@k, mean and spread over the evaluations of a name, and the curve."""
    rows = []
    for name, found in evaluations.items():
        row: dict[str, Any] = {"model": name, "runs": len(found)}
        for k in KS:
            values = [e.recall[k] for e in found]
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            row[f"Recall@{k} %"] = f"{np.mean(values):.1f}{spread}"
        rows.append(row)
    drawn = plots.svg(recall_figure(evaluations))
    caption = "± is the standard deviation over runs; the band is their range"
    return Section("Recall", table(rows, "recall") + figure(drawn, caption), "recall")


def map_and_gallery(evaluations: Groups, benchmark: Benchmark) -> Section:
    """Where queries were right and wrong, and the worst of the wrong ones."""
    body = (
        '<p>Circles are right, triangles wrong; dots are the map. Hover or click. Model: <span id="map-models"></span></p>'
        '<div class="row"><div id="map-view"><canvas id="map-canvas"></canvas></div><div id="look"></div></div>'
        '<h2>Wrong, the surest first</h2><div class="gallery" id="gallery-entries"></div>'
    )
    data = map_data({name: found[0] for name, found in evaluations.items()}, benchmark)
    return Section("Right and wrong queries", body, "map", data)


def distances(evaluations: Groups, runs: Runs) -> Section | None:
    """Descriptor distance against ψ."""
    pairs = _sampled(evaluations)
    if not pairs:
        return None
    rows = [
        {"model": name, "Spearman ρ of ψ and distance": f"{found[0].figures['spearman_psi_distance']:.3f}"}
        for name, found in evaluations.items()
        if name in pairs
    ]
    drawn = plots.svg(distance_figure(evaluations, runs))
    return Section("Distance against similarity", table(rows, "spearman") + figure(drawn), "distance")


def examples(run: Path, data: Path | None) -> Section:
    """Pairs of training images with their ψ and fields of view."""
    recipe = run_recipe(run)
    split = datasets.load(recipe["dataset"], data, recipe["split"])
    graph = SimilarityGraph.open(run / "labels")
    cells = [_example(split, graph, i, j) for i, j in _pairs(graph)]
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
    drawn = plots.svg(plots.fields_of_view(poses, *sector)) if len(sector) == 2 else ""
    shots = "".join(f'<figure><img alt="{text(s.name(k))}" src="{thumbnail(s, k)}"></figure>' for s, k in sides)
    psi = float(graph.lookup([i], [j])[0])
    return f'<div><div class="shots">{shots}</div>{figure(drawn, f"ψ = {psi:.2f}")}</div>'


def batches(evaluations: Groups, runs: Runs, data: Path | None) -> Section:
    """How ψ is distributed in what each loss saw."""
    caption = f"the first {BATCHES} batches of each run"
    drawn = plots.svg(batch_figure(evaluations, runs, data))
    return Section("Similarity in the batches", figure(drawn, caption), "batches")


def _batch_psi(run: Path, data: Path | None) -> NDArray[np.float32]:
    sampler = open_sampler(run, data)
    psi = [sampler.batch(*divmod(n, len(sampler))).psi.ravel() for n in range(BATCHES)]
    return np.concatenate(psi)


def published(evaluations: Groups) -> Section | None:
    """The method's published figures beside ours, where the protocol is the same."""
    rows = [{"ours is": name, **row} for name, found in evaluations.items() for row in beside(found[0])]
    return Section("Published, ours, difference", table(rows, "published"), "published") if rows else None


def run_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as JSON."""
    recipe: dict[str, Any] = artifacts.read_json(run / "run.json")["config"]["recipe"]
    return recipe


def sizes(evaluations: Groups) -> Section | None:
    """Recall against descriptor size, where evaluations differ in it."""
    if len({e.figures["dim"] for e in _all(evaluations) if "dim" in e.figures}) < 2:
        return None
    return Section("Descriptor size", figure(plots.svg(size_figure(evaluations))), "sizes")


# Each figure by itself, for the page and for files


def recall_figure(evaluations: Groups) -> Figure:
    """Recall@k against k."""
    return plots.recall_curves(
        {name: [e.figures["recall_curve"] for e in found] for name, found in evaluations.items()},
        colours(evaluations),
    )


def distance_figure(evaluations: Groups, runs: Runs) -> Figure:
    """Distance against ψ, with the line of the first run's margin."""
    pairs = _sampled(evaluations)
    if not pairs:
        raise InputError("these evaluations hold no sampled pairs with graded similarity")
    margins = [run_recipe(run)["loss"].get("margin") for found in runs.values() for run in found]
    return plots.distance_against_similarity(pairs, margins[0] if margins else None, colours(evaluations))


def batch_figure(evaluations: Groups, runs: Runs, data: Path | None) -> Figure:
    """Histograms of ψ in the batches of each run."""
    if not runs:
        raise InputError("batches are those of a run; give run folders, not evaluations")
    found = {name: _batch_psi(paths[0], data) for name, paths in runs.items()}
    return plots.batch_histograms(found, colours(evaluations, runs))


def size_figure(evaluations: Groups) -> Figure:
    """Recall@5 against descriptor size, one line each model, whitened or not."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for e in _all(evaluations):
        name = e.label.split(",")[0]
        curves.setdefault(name, []).append((int(e.figures["dim"]), e.recall[5]))
    return plots.size_curves(curves, 5, colours(evaluations, curves))


def colours(evaluations: Groups, further: Iterable[str] = ()) -> dict[str, str]:
    """The colour of each name, the same in every figure of a report."""
    return plots.palette([*evaluations, *further])


def _sampled(evaluations: Groups) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    return {
        name: (np.asarray(found[0].arrays["pair_psi"]), np.asarray(found[0].arrays["pair_distance"]))
        for name, found in evaluations.items()
        if "pair_psi" in found[0].arrays
    }


def _all(evaluations: Groups) -> list[Evaluation]:
    return [e for found in evaluations.values() for e in found]
