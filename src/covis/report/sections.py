"""A report: its sections in order, made from evaluations and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.report import tables
from covis.report.examples import examples
from covis.report.figures import FIGURES
from covis.report.query_map import map_and_gallery
from covis.report.study import Study
from covis.report.style import svg
from covis.web.page import Section, rendered, write_page


def write_report(
    path: Path | str,
    evaluations: Mapping[str, Sequence[Evaluation]],
    benchmark: Benchmark,
    *,
    runs: Mapping[str, Sequence[Path]] | None = None,
    data: Path | None = None,
    title: str = "",
) -> None:
    """Writes a report on evaluations of one protocol, grouped by name (those under one name are seeds).

    Models that are still where they were evaluated add differences of descriptors and activation maps; `runs` add what
    training saw: example pairs with their ψ, and the composition of batches. `data` is where the runs' dataset lies.
    """
    scored = [e for group in evaluations.values() for e in group]
    if not scored:
        raise InputError("a report needs at least one evaluation")
    other = {e.fingerprint for e in scored} - {benchmark.fingerprint}
    if other:
        raise InputError(f"evaluations of other protocols ({', '.join(sorted(other))}) do not go into one report")
    study = Study(evaluations, runs or {}, data, benchmark)
    parts = [
        tables.recall(study, [svg(FIGURES["recall"].draw(study))]),
        tables.further(study),
        tables.parts(study),
        _drawn("training", study),
        map_and_gallery(study),
        _drawn("sizes", study),
        _drawn("distance", study),
        _drawn("differences", study),
        _drawn("activations", study),
        examples(study),
        _drawn("overlap", study),
        _drawn("batches", study),
    ]
    shown = [part for part in parts if part is not None]
    write_page(Path(path), title or f"Evaluation on {benchmark.name}", _lead(study), shown)


def _drawn(name: str, study: Study) -> Section | None:
    return FIGURES[name].section(name, study)


def _lead(study: Study) -> str:
    """What was scored on what, by which command and which versions."""
    keys = ("benchmark", "fingerprint", "queries", "database", "rule", "notes")
    versions = ", ".join(f"{k} {v}" for k, v in artifacts.versions().items())
    facts = {key: study.first.figures[key] for key in keys}
    return rendered("lead.html", **facts, command=artifacts.command(), versions=versions)
