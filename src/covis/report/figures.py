"""Each figure of a report by itself, drawn from evaluations and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation, load_benchmark
from covis.evaluation.differences import paired_differences
from covis.evaluation.render import mean_interval
from covis.report import plots
from covis.report.activations import activation_figure
from covis.report.differences import difference_figure
from covis.report.inputs import EvaluationGroups, Runs, colours, needed_sample, openable_models, run_recipe
from covis.report.overlap import overlap_figure
from covis.report.style import palette
from covis.training.record import has_metrics, read_metrics
from covis.training.run import open_sampler

SIZE_K = 5
"""Recall@k that is drawn against descriptor size."""
BATCHES = 200


def recall_figure(evaluations: EvaluationGroups) -> Figure:
    """Recall@k against k, with the interval over seeds, or over queries where there is one evaluation."""
    first = next(iter(evaluations.values()))[0]
    return plots.recall_curves(
        {name: [e.figures.recall_curve for e in group] for name, group in evaluations.items()},
        {name: _band(group) for name, group in evaluations.items()},
        sorted(first.recall),
        colours(evaluations),
    )


def _band(group: Sequence[Evaluation]) -> list[tuple[float, float]]:
    """(low, high) at each k: the 95 % interval over three seeds or more, the range of two, else that over queries."""
    band = []
    for k in sorted(group[0].recall):
        values = [e.recall[k] for e in group]
        mean, half = mean_interval(values)
        if half is None:
            low, high = group[0].figures.recall_interval[k]
        elif len(values) < 3:
            low, high = min(values), max(values)
        else:
            low, high = max(0.0, mean - half), min(100.0, mean + half)
        band.append((low, high))
    return band


def training_figure(evaluations: EvaluationGroups, runs: Runs) -> Figure:
    """Loss and validation recall of each name's first run."""
    logs = {name: read_metrics(paths[0]) for name, paths in runs.items() if has_metrics(paths[0])}
    if not logs:
        raise InputError("training curves come from runs; give run folders, not evaluations")
    column = f"recall@{SIZE_K}"
    losses = {name: _series(log, "loss") for name, log in logs.items()}
    recalls = {name: _series(log, column) for name, log in logs.items() if _series(log, column)[0]}
    return plots.training_curves(losses, recalls, SIZE_K, colours(evaluations, runs))


def _series(log: Sequence[Mapping[str, str]], column: str) -> tuple[list[float], list[float]]:
    """Steps and values where a column is filled."""
    filled = [(float(row["step"]), float(row[column])) for row in log if row.get(column)]
    return [step for step, _ in filled], [value for _, value in filled]


def distance_figure(evaluations: EvaluationGroups, runs: Runs) -> Figure:
    """Distance against ψ, with the line of the first run's margin."""
    pairs = {
        name: (np.asarray(arrays["pair_psi"]), np.asarray(arrays["pair_distance"]))
        for name, arrays in needed_sample(evaluations).items()
    }
    margins = [run_recipe(run)["loss"].get("margin") for paths in runs.values() for run in paths]
    return plots.distance_against_similarity(pairs, margins[0] if margins else None, colours(evaluations))


def batch_figure(evaluations: EvaluationGroups, runs: Runs, data: Path | None) -> Figure:
    """Histograms of ψ in the batches of each run."""
    if not runs:
        raise InputError("batches come from runs; give run folders, not evaluations")
    similarities = {name: _batch_psi(paths[0], data) for name, paths in runs.items()}
    return plots.batch_histograms(similarities, colours(evaluations, runs))


def _batch_psi(run: Path, data: Path | None) -> NDArray[np.float32]:
    sampler = open_sampler(run, data)
    psi = [sampler.batch(*divmod(n, len(sampler))).psi.ravel() for n in range(BATCHES)]
    return np.concatenate(psi)


def size_figure(evaluations: EvaluationGroups) -> Figure:
    """Recall against descriptor size, one line for each model and each set that its whitening was fitted on."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for e in _all(evaluations):
        if e.figures.dim is not None:
            curves.setdefault(_family(e), []).append((e.figures.dim, e.recall[SIZE_K]))
    return plots.size_curves(curves, SIZE_K, palette(curves))


def gain_figure(evaluations: EvaluationGroups) -> Figure:
    """What each model gains over the first, figure by figure, with intervals over places and seeds."""
    names = list(evaluations)
    if len(names) < 2:
        raise InputError("gains compare with another model; give evaluations of two or more models")
    gains = {name: paired_differences(evaluations[names[0]], evaluations[name]) for name in names[1:]}
    return plots.gain_intervals(gains, names[0])


def _family(evaluation: Evaluation) -> str:
    """What evaluations of several sizes have in common."""
    whitening = evaluation.subject.get("whitening")
    name = evaluation.label.split(", whitened")[0]
    return name if whitening is None else f"{name}, whitened ({whitening['fit']})"


def _all(evaluations: EvaluationGroups) -> list[Evaluation]:
    return [e for group in evaluations.values() for e in group]


FIGURES: dict[str, Callable[[EvaluationGroups, Runs, Path | None], Figure]] = {
    "recall": lambda evaluations, runs, data: recall_figure(evaluations),
    "distance": lambda evaluations, runs, data: distance_figure(evaluations, runs),
    "sizes": lambda evaluations, runs, data: size_figure(evaluations),
    "differences": lambda evaluations, runs, data: difference_figure(
        evaluations, openable_models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "gains": lambda evaluations, runs, data: gain_figure(evaluations),
    "activations": lambda evaluations, runs, data: activation_figure(
        evaluations, openable_models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "overlap": lambda evaluations, runs, data: overlap_figure(runs, _benchmark(evaluations, data), data),
    "batches": lambda evaluations, runs, data: batch_figure(evaluations, runs, data),
    "training": lambda evaluations, runs, data: training_figure(evaluations, runs),
}
"""Figure name → function of evaluations by name, runs by name and the path of the data."""


def _benchmark(evaluations: EvaluationGroups, data: Path | None) -> Benchmark:
    first = next(iter(evaluations.values()))[0]
    return load_benchmark(first.benchmark, data, frame=first.protocol.get("frame", ""))
