"""Example pairs of images with their ψ and fields of view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge

from covis.graph import POSITIVE, SimilarityGraph
from covis.images import Split
from covis.report.study import Study
from covis.report.style import COLOURS, panels, styled, svg
from covis.web.page import Section, figure, rendered
from covis.web.thumbnails import data_url

_THUMBNAIL_PIXELS = 180
EXAMPLES = (0.9, 0.7, POSITIVE, 0.3, 0.1)
"""ψ of the example pairs that are shown, beside one that shares nothing."""


def examples(study: Study) -> Section | None:
    """Pairs of images with their ψ and fields of view."""
    graph, queries, database = study.labels
    if not graph.has_grades:
        return None
    cells = [_example(Split(queries, database), graph, i, j) for i, j in _pairs(graph)]
    return Section("How much two views share", rendered("pairs.html", pairs=cells), "examples")


def _pairs(graph: SimilarityGraph) -> list[tuple[int, int]]:
    """For each ψ of `EXAMPLES` the stored pair closest to it, and one that shares nothing."""
    nearest = [int(np.argmin(np.abs(graph.psi - wanted))) for wanted in EXAMPLES]
    row = graph.shape[0] // 2
    free = np.setdiff1d(np.arange(graph.shape[1]), graph.row(row)[0])
    return [*((int(graph.rows[k]), int(graph.indices[k])) for k in nearest), (row, int(free[len(free) // 2]))]


def _example(split: Split, graph: SimilarityGraph, i: int, j: int) -> dict[str, Any]:
    sides = ((split.queries, i), (split.database, j))
    poses = [(float(s.poses.xy[k, 0]), float(s.poses.xy[k, 1]), float(s.poses.heading[k])) for s, k in sides]
    psi = float(graph.lookup([i], [j])[0])
    # Labels from surfaces have no sectors on the ground to draw.
    sector = [float(np.max(graph.facts[key])) for key in ("radius_m", "fov_deg") if key in graph.facts]
    title = f"Fields of view of two cameras from above that share {psi:.0%}"
    drawn = svg(fields_of_view(poses, *sector), title) if len(sector) == 2 else ""
    shots = [
        {"alt": f"{what} {s.name(k)}", "source": data_url(s.path(k), _THUMBNAIL_PIXELS)}
        for what, (s, k) in zip(("photo", "the other photo"), sides, strict=True)
    ]
    return {"shots": shots, "drawing": Markup(figure(drawn, f"ψ = {psi:.2f}"))}


@styled
def fields_of_view(poses: Sequence[tuple[float, float, float]], radius_m: float, fov_deg: float) -> Figure:
    """Two cameras from above, north up: (x, y, heading) each; an unknown heading is a full circle."""
    figure, grid = panels(2.8, 2.2)
    axes: Axes = grid[0, 0]
    axes.set_axis_off()
    for (x, y, heading), colour in zip(poses, (COLOURS[1], COLOURS[2]), strict=True):
        opening = 360.0 if np.isnan(heading) else fov_deg
        axis = 90.0 - (0.0 if np.isnan(heading) else heading)
        axes.add_patch(Wedge((x, y), radius_m, axis - opening / 2, axis + opening / 2, color=colour, alpha=0.4, lw=0))
        axes.plot(x, y, "o", color=colour, ms=5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    bar = 10.0 ** np.floor(np.log10(radius_m))
    axes.plot([left, left + bar], [bottom, bottom], color="k", lw=1.5)
    axes.annotate(f"{bar:g} m", (left + bar, bottom), (4, -3), textcoords="offset points")
    return figure
