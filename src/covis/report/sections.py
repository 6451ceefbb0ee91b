"""A report: its sections in order, made from evaluations and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.graph import POSITIVE
from covis.report import tables
from covis.report.activations import activation_figure
from covis.report.differences import EACH, difference_figure
from covis.report.examples import examples
from covis.report.figures import BATCHES, batch_figure, distance_figure, recall_figure, size_figure, training_figure
from covis.report.inputs import EvaluationGroups, Models, Runs, graded_samples, openable_models
from covis.report.overlap import labelled, overlap_against_pose, posed_pairs
from covis.report.query_map import map_and_gallery
from covis.report.style import svg
from covis.training.record import has_metrics
from covis.web.page import Section, figure, rendered, write_page


def lead(evaluations: EvaluationGroups) -> str:
    """What was scored on what, by which command and which versions."""
    f = next(iter(evaluations.values()))[0].figures
    keys = ("benchmark", "fingerprint", "queries", "database", "rule", "notes")
    versions = ", ".join(f"{k} {v}" for k, v in artifacts.versions().items())
    return rendered("lead.html", **{key: f[key] for key in keys}, command=artifacts.command(), versions=versions)


def distances(evaluations: EvaluationGroups, runs: Runs) -> Section | None:
    """Descriptor distance against ψ."""
    if not graded_samples(evaluations):
        return None
    drawn = svg(distance_figure(evaluations, runs))
    caption = "pairs of the benchmark, half of them similar; ρ stands among the other metrics"
    return Section("Distance against similarity", figure(drawn, caption), "distance")


def batch_compositions(evaluations: EvaluationGroups, runs: Runs, data: Path | None) -> Section | None:
    """How ψ is distributed in the batches that each loss saw."""
    if not runs:
        return None
    caption = f"the first {BATCHES} batches of each run"
    drawn = svg(batch_figure(evaluations, runs, data))
    return Section("Similarity in the batches", figure(drawn, caption), "batches")


def size_curve(evaluations: EvaluationGroups) -> Section | None:
    """Recall against descriptor size, where evaluations differ in it."""
    if len({e.figures.dim for group in evaluations.values() for e in group} - {None}) < 2:
        return None
    caption = "whitening is fitted on images of the map or of training, as the legend says"
    return Section("Descriptor size", figure(svg(size_figure(evaluations)), caption), "sizes")


def training(evaluations: EvaluationGroups, runs: Runs) -> Section | None:
    """Loss and validation recall during training."""
    if not any(has_metrics(run) for paths in runs.values() for run in paths):
        return None
    drawn = svg(training_figure(evaluations, runs))
    return Section("Training", figure(drawn, "the first run of each model"), "training")


def descriptor_differences(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Section | None:
    """Differences of descriptors of positive and negative pairs on a plane, one column per model."""
    caption = f"z(query) − z(map) of {EACH} positive (ψ ≥ {POSITIVE}) and {EACH} negative pairs of the benchmark"
    return _model_section(
        "Differences of descriptors", "differences", difference_figure, caption, evaluations, models, benchmark
    )


def activations(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Section | None:
    """Where each model finds two photos alike."""
    caption = "query, map image; bright places add most to the similarity of the pooled descriptors (one scale a pair)"
    return _model_section("Activation maps", "activations", activation_figure, caption, evaluations, models, benchmark)


def pose_overlap(runs: Runs, benchmark: Benchmark, data: Path | None) -> Section | None:
    """How labels depend on the distance and angle between two cameras."""
    pairs = posed_pairs(*labelled(runs, benchmark, data))
    if pairs is None:
        return None
    whose = "training labels" if runs else "the benchmark's graded similarity"
    drawn = svg(overlap_against_pose(*pairs))
    caption = f"{whose}; pairs that share nothing count as ψ = 0"
    return Section("Overlap against distance and angle", figure(drawn, caption), "overlap")


def _model_section(
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
        body = figure(svg(draw(evaluations, models, benchmark)), caption)
    except InputError as reason:
        body = Markup("<p>{}</p>").format(reason)
    return Section(title, body, name)


def write_report(
    path: Path | str,
    evaluations: Mapping[str, Sequence[Evaluation]],
    benchmark: Benchmark,
    *,
    runs: Mapping[str, Sequence[Path]] | None = None,
    data: Path | None = None,
    title: str = "Evaluation",
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
    runs = runs or {}
    models = openable_models(evaluations, runs)
    parts = [
        tables.recall_table(evaluations, [svg(recall_figure(evaluations))]),
        tables.further(evaluations),
        tables.parts(evaluations),
        training(evaluations, runs),
        map_and_gallery(evaluations, benchmark),
        size_curve(evaluations),
        distances(evaluations, runs),
        descriptor_differences(evaluations, models, benchmark),
        activations(evaluations, models, benchmark),
        examples(labelled(runs, benchmark, data)),
        pose_overlap(runs, benchmark, data),
        batch_compositions(evaluations, runs, data),
    ]
    shown = [part for part in parts if part is not None]
    write_page(Path(path), title, lead(evaluations), shown, navigation=True)
