"""Every figure of a report by name, to be written to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from covis.evaluation import Benchmark, load_benchmark
from covis.report import pairs, sections
from covis.report.sections import Groups, Runs

FIGURES: dict[str, Callable[[Groups, Runs, Path | None], Figure]] = {
    "recall": lambda evaluations, runs, data: sections.recall_figure(evaluations),
    "distance": lambda evaluations, runs, data: sections.distance_figure(evaluations, runs),
    "batches": lambda evaluations, runs, data: sections.batch_figure(evaluations, runs, data),
    "sizes": lambda evaluations, runs, data: sections.size_figure(evaluations),
    "differences": lambda evaluations, runs, data: pairs.difference_figure(
        evaluations, runs, _benchmark(evaluations, data)
    ),
    "activations": lambda evaluations, runs, data: pairs.activation_figure(
        evaluations, runs, _benchmark(evaluations, data)
    ),
    "overlap": lambda evaluations, runs, data: pairs.overlap_figure(runs, data),
}
"""Made from evaluations by name, runs by name, and the place of the data."""


def _benchmark(evaluations: Groups, data: Path | None) -> Benchmark:
    return load_benchmark(next(iter(evaluations.values()))[0].benchmark, data)
