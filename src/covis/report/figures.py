"""Every figure of a report by name, to be written to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from covis.evaluation import Benchmark, load_benchmark
from covis.report import pairs, sections
from covis.report.subjects import Groups, Runs, models

FIGURES: dict[str, Callable[[Groups, Runs, Path | None], Figure]] = {
    "recall": lambda evaluations, runs, data: sections.recall_figure(evaluations),
    "precision": lambda evaluations, runs, data: sections.precision_figure(evaluations),
    "radius": lambda evaluations, runs, data: sections.radius_figure(evaluations),
    "distance": lambda evaluations, runs, data: sections.distance_figure(evaluations, runs),
    "sizes": lambda evaluations, runs, data: sections.size_figure(evaluations),
    "differences": lambda evaluations, runs, data: pairs.difference_figure(
        evaluations, models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "activations": lambda evaluations, runs, data: pairs.activation_figure(
        evaluations, models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "overlap": lambda evaluations, runs, data: pairs.overlap_figure(runs, _benchmark(evaluations, data), data),
    "batches": lambda evaluations, runs, data: sections.batch_figure(evaluations, runs, data),
}
"""Made from evaluations by name, runs by name, and the place of the data."""


def _benchmark(evaluations: Groups, data: Path | None) -> Benchmark:
    return load_benchmark(next(iter(evaluations.values()))[0].benchmark, data)
