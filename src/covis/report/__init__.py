"""Reports: one self-contained HTML file from evaluations and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from covis.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.report import pairs, sections
from covis.report.page import Section, write_page

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

    `runs` adds what training and models show: differences of descriptors, activation maps, example pairs with their ψ,
    overlap against poses and the composition of batches; `data` is where the runs' dataset lies.
    """
    found = [e for group in evaluations.values() for e in group]
    if not found:
        raise InputError("a report needs at least one evaluation")
    other = {e.fingerprint for e in found} - {benchmark.fingerprint}
    if other:
        raise InputError(f"evaluations of other protocols ({', '.join(sorted(other))}) do not go into one report")
    parts = [
        sections.recalls(evaluations),
        sections.map_and_gallery(evaluations, benchmark),
        sections.distances(evaluations, runs or {}),
        sections.sizes(evaluations),
        *(_of_runs(evaluations, benchmark, runs, data) if runs else []),
        sections.published(evaluations),
    ]
    write_page(Path(path), title, sections.lead(evaluations), [part for part in parts if part is not None])


def _of_runs(
    evaluations: Mapping[str, Sequence[Evaluation]],
    benchmark: Benchmark,
    runs: Mapping[str, Sequence[Path]],
    data: Path | None,
) -> list[Section | None]:
    return [
        pairs.differences(evaluations, runs, benchmark),
        pairs.activations(evaluations, runs, benchmark),
        sections.examples(_last(runs), data),
        pairs.overlap(_last(runs), data),
        sections.batches(evaluations, runs, data),
    ]


def _last(runs: Mapping[str, Sequence[Path]]) -> Path:
    return list(runs.values())[-1][0]
