"""How labels depend on the distance and angle between two cameras."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from covis.core.arrays import Floats
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import angle_between
from covis.report.study import NotInStudy, Study
from covis.report.style import PAGE_WIDTH, SCATTER, panels, styled

_POSE_PAIRS = 4_000_000


@styled
def overlap(study: Study) -> Figure:
    """ψ of pairs against how far apart two cameras stand (m) and how far they are turned (degrees)."""
    metres, degrees, psi, reach_m = _posed_pairs(*study.labels)
    figure, [[left, right]] = panels(PAGE_WIDTH, 3.6, 1, 2)
    some = np.random.default_rng(0).permutation(len(psi))[:SCATTER]
    drawn = left.scatter(
        metres[some], psi[some], c=degrees[some], s=4, cmap="viridis", vmin=0, vmax=180, lw=0, rasterized=True
    )
    figure.colorbar(drawn, ax=left, label="degrees between headings", ticks=[0, 45, 90, 135, 180])
    left.set(xlabel="metres between cameras", ylabel="ψ", xlim=(0, reach_m), ylim=(-0.02, 1.02))
    edges = np.linspace(0, reach_m, 26), np.linspace(0, 180, 19)
    total = np.histogram2d(metres, degrees, edges, weights=psi)[0]
    count = np.histogram2d(metres, degrees, edges)[0]
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    mesh = right.pcolormesh(*edges, mean.T, cmap="magma", vmin=0, vmax=1, rasterized=True)
    figure.colorbar(mesh, ax=right, label="mean ψ")
    right.set(xlabel="metres between cameras", ylabel="degrees between headings", yticks=[0, 45, 90, 135, 180])
    return figure


def _posed_pairs(graph: SimilarityGraph, a: ImageSet, b: ImageSet) -> tuple[Floats, Floats, Floats, float]:
    """Metres, degrees and ψ of the pairs of evenly drawn queries within the labels' reach, and that reach in metres."""
    none = NotInStudy("there is no pair of graded similarity with known positions and headings")
    if not graph.has_grades:
        raise none
    reach = _reach(graph, a, b)
    most = max(1, _POSE_PAIRS // max(1, len(b)))
    parts = []
    for i in np.unique(np.linspace(0, len(a) - 1, min(most, len(a))).astype(int)):
        metres = np.hypot(*(b.poses.xy - a.poses.xy[i]).T)
        degrees = angle_between(a.poses.heading[i], b.poses.heading)
        near = (metres <= reach) & ~np.isnan(degrees)
        if graph.facts.get("within_group"):
            near &= np.array(b.group_names)[b.group] == a.group_names[a.group[i]]
        if a is b:
            near[i] = False
        j = np.flatnonzero(near)
        parts.append(np.stack([metres[j], degrees[j], graph.lookup(np.full(len(j), i), j)]))
    metres, degrees, psi = np.concatenate(parts, axis=1)
    if not len(psi):
        raise none
    return metres, degrees, psi, reach


def _reach(graph: SimilarityGraph, a: ImageSet, b: ImageSet) -> float:
    """Metres within which pairs can share something, judged by the stored pairs."""
    some = slice(None, None, max(1, graph.pairs // 100_000))
    offset = a.poses.xy[graph.rows[some]] - b.poses.xy[graph.indices[some]]
    return float(np.nanmax(np.hypot(*offset.T), initial=0.0)) or 1.0
