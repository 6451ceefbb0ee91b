"""The figures of a report by name: on its page, or each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from covis.core.errors import InputError
from covis.graph import POSITIVE
from covis.report import plots
from covis.report.activations import activations
from covis.report.differences import EACH, differences
from covis.report.overlap import overlap
from covis.report.study import NotInStudy, Study
from covis.report.style import svg
from covis.web.page import Section, figure


@dataclass(frozen=True)
class Drawing:
    """A figure of a report, with the heading and caption of its section."""

    draw: Callable[[Study], Figure]
    title: str = ""
    caption: str = ""

    def section(self, name: str, study: Study) -> Section | None:
        """The section on the page, or why it cannot be drawn; None where the study has nothing of it."""
        try:
            body = figure(svg(self.draw(study)), self.caption)
        except NotInStudy:
            return None
        except InputError as reason:
            body = Markup("<p>{}</p>").format(reason)
        return Section(self.title, body, name)


FIGURES = {
    "recall": Drawing(plots.recall),
    "training": Drawing(plots.training, "Training", "the first run of each model"),
    "sizes": Drawing(
        plots.sizes,
        "Descriptor size",
        "whitening is fitted on images of the map or of training, as the legend says",
    ),
    "distance": Drawing(
        plots.distance,
        "Distance against similarity",
        "pairs of the benchmark, half of them similar; ρ stands among the other metrics",
    ),
    "gains": Drawing(plots.gains),
    "differences": Drawing(
        differences,
        "Differences of descriptors",
        f"z(query) − z(map) of {EACH} positive (ψ ≥ {POSITIVE}) and {EACH} negative pairs of the benchmark",
    ),
    "activations": Drawing(
        activations,
        "Activation maps",
        "query, map image; bright places add most to the similarity of the pooled descriptors (one scale a pair)",
    ),
    "overlap": Drawing(
        overlap,
        "Overlap against distance and angle",
        "training labels, or without runs the benchmark's graded similarity; pairs that share nothing count as ψ = 0",
    ),
    "batches": Drawing(plots.batches, "Similarity in the batches", f"the first {plots.BATCHES} batches of each run"),
}
"""By the name that `covis report --figure` takes."""
