"""Reports: one self-contained HTML file from evaluations and runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from covis.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.report import page, plots, sections, tables
from covis.report.page import models, write_page

__all__ = ["write_report"]


def write_report(
    path: Path | str,
    evaluations: Mapping[str, Sequence[Evaluation]],
    benchmark: Benchmark,
    *,
    runs: Mapping[str, Sequence[Path]] | None = None,
    data: Path | None = None,
    title: str = "Evaluation",
) -> None:
    """Writes a report on evaluations of one protocol, grouped by name (several of a name are seeds of one thing).

    Models that are still where they were evaluated add differences of descriptors and activation maps; `runs` add what
    training saw: example pairs with their ψ, and the composition of batches. `data` is where the runs' dataset lies.
    """
    found = [e for group in evaluations.values() for e in group]
    if not found:
        raise InputError("a report needs at least one evaluation")
    other = {e.fingerprint for e in found} - {benchmark.fingerprint}
    if other:
        raise InputError(f"evaluations of other protocols ({', '.join(sorted(other))}) do not go into one report")
    runs = runs or {}
    found_models = models(evaluations, runs)
    parts = [
        tables.recalls(evaluations, _curves(evaluations)),
        tables.further(evaluations),
        tables.parts(evaluations),
        tables.published(evaluations),
        sections.training(evaluations, runs),
        sections.map_and_gallery(evaluations, benchmark),
        sections.sizes(evaluations),
        sections.distances(evaluations, runs),
        page.differences(evaluations, found_models, benchmark),
        page.activations(evaluations, found_models, benchmark),
        sections.examples(page.labelled(runs, benchmark, data)),
        page.overlap(runs, benchmark, data),
        sections.batches(evaluations, runs, data),
    ]
    shown = [part for part in parts if part is not None]
    write_page(Path(path), title, sections.lead(evaluations), shown, navigation=True)


def _curves(evaluations: Mapping[str, Sequence[Evaluation]]) -> list[str]:
    """Recall against k, precision against recall and recall against radius, as far as the evaluations have them."""
    drawn = []
    for make in (sections.recall_figure, sections.precision_figure, sections.radius_figure):
        with contextlib.suppress(InputError):
            drawn.append(plots.svg(make(evaluations)))
    return drawn
