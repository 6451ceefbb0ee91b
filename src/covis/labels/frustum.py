"""Overlap of viewing frustums: which share of the space in front of one camera another camera sees too.

A grid of rays of each camera, each with points at several depths, is projected into the other. Needs 6DOF poses and
intrinsics, but neither depth maps nor a cloud.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.core.settings import above, at_least, one_of
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.assembly import Advance
from covis.labels.fov import MEASURES, Measure
from covis.labels.rules import RULES, LabelRule, require_positions

_PAIRS_A_BLOCK = 4096


@RULES.register("frustum")
@dataclass(frozen=True)
class FrustumOverlap(LabelRule):
    """ψ = how much the viewing frustums of two cameras with 6DOF poses and intrinsics share (RelocNet's label)."""

    near_m: float = 0.1
    """Where a frustum begins, in metres in front of the camera."""
    far_m: float = 4.0
    """Where it ends."""
    measure: Measure = "overlap"
    """`overlap`: mean share of both frustums; `query_overlap`: the query's; `iou`: from that mean s, s / (2 − s)."""
    samples: tuple[int, int, int] = (8, 6, 8)
    """Points across, down and along the depth of a frustum."""
    within_group: bool = False
    """Only pairs of one group."""

    def __post_init__(self) -> None:
        above(0, near_m=self.near_m, far_m=self.far_m - self.near_m)
        at_least(1, samples=min(self.samples))
        one_of(MEASURES, measure=self.measure)

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """Labels of every pair."""
        require_positions(queries, database, metres=True)
        i, j = self._near(queries, database)
        psi = np.concatenate(
            [np.zeros(0)]
            + [
                self._overlap(queries, i[k : k + _PAIRS_A_BLOCK], database, j[k : k + _PAIRS_A_BLOCK])
                for k in range(0, len(i), _PAIRS_A_BLOCK)
            ]
        )
        if advance is not None:
            advance(len(queries))
        shape = (len(queries), len(database))
        return SimilarityGraph.from_edges(i, j, psi, shape, self.facts(queries, database))

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph."""
        return super().facts(queries, database) | {"samples": list(self.samples)}

    def _near(self, queries: ImageSet, database: ImageSet) -> tuple[Ids, Ids]:
        """Pairs whose frustums may meet: cameras within twice the length of a frustum's longest edge."""
        for images in (queries, database):
            if images.intrinsics is None or images.poses.rotation is None:
                raise InputError(
                    f"{images.root}: frustums need 6DOF poses and intrinsics; label by fov or radius instead"
                )
        reach = self.far_m * max(_longest(images) for images in (queries, database) if len(images))
        from scipy.spatial import cKDTree

        trees = [cKDTree(images.poses.centre) for images in (queries, database)]
        near = trees[0].sparse_distance_matrix(trees[1], 2 * reach, output_type="ndarray")
        i, j = near["i"].astype(np.int64), near["j"].astype(np.int64)
        keep = i != j if queries is database else np.ones(len(i), np.bool_)
        if self.within_group:
            names = [np.array(images.group_names)[images.group] for images in (queries, database)]
            keep &= names[0][i] == names[1][j]
        return i[keep], j[keep]

    def _overlap(self, queries: ImageSet, i: Ids, database: ImageSet, j: Ids) -> Floats:
        """(K,) ψ of aligned pairs."""
        own = self._share(queries, i, database, j)
        if self.measure == "query_overlap":
            return own
        mean = 0.5 * (own + self._share(database, j, queries, i))
        return mean if self.measure == "overlap" else mean / (2 - mean)

    def _share(self, seeing: ImageSet, i: Ids, other: ImageSet, j: Ids) -> Floats:
        """(K,) which share of the frustum of camera i lies in that of camera j."""
        points = self._points(seeing.intrinsics[i])  # type: ignore[index]
        world = np.einsum("kab,kpb->kpa", seeing.poses.rotation[i], points)  # type: ignore[index]
        world += seeing.poses.centre[i][:, None] - other.poses.centre[j][:, None]
        local = np.einsum("kba,kpb->kpa", other.poses.rotation[j], world)  # type: ignore[index]
        fx, fy, cx, cy, width, height = other.intrinsics[j].T[:, :, None]  # type: ignore[index]
        z = np.where(local[..., 2] > 0, local[..., 2], np.inf)
        u, v = fx * local[..., 0] / z + cx, fy * local[..., 1] / z + cy
        inside = (local[..., 2] >= self.near_m) & (local[..., 2] <= self.far_m)
        return np.asarray((inside & (u >= 0) & (u <= width) & (v >= 0) & (v <= height)).mean(axis=1))

    def _points(self, intrinsics: Floats) -> Floats:
        """(K, P, 3) points in front of cameras, spread evenly over the volume: densest where a frustum is widest."""
        across, down, along = ((np.arange(n) + 0.5) / n for n in self.samples)
        cubes = self.near_m**3 + along * (self.far_m**3 - self.near_m**3)
        x, y, z = (grid.ravel() for grid in np.meshgrid(across, down, np.cbrt(cubes), indexing="ij"))
        fx, fy, cx, cy, width, height = intrinsics.T[:, :, None]
        return np.stack(
            [(x * width - cx) / fx * z, (y * height - cy) / fy * z, np.broadcast_to(z, (len(fx), len(z)))], -1
        )


def _longest(images: ImageSet) -> float:
    """The length of a frustum's longest edge at a depth of one."""
    assert images.intrinsics is not None
    fx, fy, cx, cy, width, height = images.intrinsics.T
    x, y = np.maximum(cx, width - cx) / fx, np.maximum(cy, height - cy) / fy
    return float(np.sqrt(1 + x * x + y * y).max())
