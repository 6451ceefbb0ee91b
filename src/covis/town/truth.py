"""What a simulated world knows exactly: depth, surfaces, and which of them two cameras share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.arrays import Floats
from covis.fields import above
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.building import Advance
from covis.labels.rules import RULES, Estimate, LabelRule, estimated, require_positions
from covis.machine import cpu_count
from covis.town import solids
from covis.town.config import TownConfig
from covis.town.dataset import folder_config
from covis.town.layout import Scene
from covis.town.render import View, intrinsics
from covis.town.traversals import MAP

_SKY = -2
_SAMPLE = 8


class PointCloud(NamedTuple):
    """Points on what never moves: houses, ground, trees, lamps."""

    points: Floats
    """(P, 3) metres."""
    normals: Floats
    """(P, 3) unit vectors out of the surface."""
    items: NDArray[np.int32]
    """(P,) which wall or solid of the district a point lies on; −1 = ground."""


def picture(images: ImageSet, i: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """(height, width, 3) image `i` of a town's set again, at any `size` (width, height)."""
    view, frame = _frame(images, i)
    return view.image(frame, size)


def depth(images: ImageSet, i: int, size: tuple[int, int] | None = None, *, movers: bool = True) -> Floats:
    """(height, width) metres along the optical axis at each pixel's centre, inf = sky; `movers` = with passers-by."""
    view, frame = _frame(images, i)
    return view.measure(frame, size, movers)[0]


def point_cloud(
    split: str, config: TownConfig | None = None, *, spacing_m: float = 1.0, size: tuple[int, int] = (48, 36)
) -> PointCloud:
    """The surfaces that the map of `split` saw, one point in each cube of `spacing_m`."""
    view = View.of(config or TownConfig(), split, MAP.name)
    with ThreadPoolExecutor(cpu_count()) as pool:
        parts = list(pool.map(lambda i: _surface(view, i, size), range(len(view.drive))))
    points, normals, items = (np.concatenate(part) for part in zip(*parts, strict=True))
    _, first = np.unique(np.floor(points / spacing_m).astype(np.int64), axis=0, return_index=True)
    first.sort()
    return PointCloud(points[first], normals[first], items[first])


def covisibility(
    queries: ImageSet, database: ImageSet, pairs: ArrayLike, *, size: tuple[int, int] = (32, 24)
) -> Floats:
    """(P, 2) for each of the (P, 2) index pairs: the share of either image's fixed surfaces that the other one sees.

    Exact but for the raster: each of `size` = (width, height) rays of one camera ends on a surface point, and a ray of
    the other camera finds out whether anything, houses or passing cars, stands between.
    """
    ids = np.asarray(pairs, np.int64).reshape(-1, 2)
    eyes = {(side, i): None for side, column in enumerate(ids.T) for i in np.unique(column).tolist()}
    sets = (queries, database)
    with ThreadPoolExecutor(cpu_count()) as pool:
        found = dict(zip(eyes, pool.map(lambda key: _eye(sets[key[0]], key[1], size), eyes), strict=True))
        rows = pool.map(lambda ij: _share(found[0, ij[0]], found[1, ij[1]]), ids.tolist())
        return np.array(list(rows), np.float64).reshape(-1, 2)


@RULES.register("town")
@dataclass(frozen=True)
class TrueCovisibility(LabelRule):
    """Label rule of the town: ψ = mean of both shares of surface seen by the other camera."""

    radius_m: float = 100.0
    """Cameras farther apart count as sharing nothing."""
    size: tuple[int, int] = (24, 18)
    """Rays across and down each image."""

    def __post_init__(self) -> None:
        above(0, radius_m=self.radius_m, rays=min(self.size))

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """True labels of every pair within `radius_m`; one set gives both directions and no diagonal."""
        from scipy.spatial import cKDTree

        require_positions(queries, database)
        one_set = queries is database
        near = cKDTree(queries.poses.xy).sparse_distance_matrix(
            cKDTree(database.poses.xy), self.radius_m, output_type="ndarray"
        )
        pairs = np.column_stack([near["i"], near["j"]])
        pairs = pairs[pairs[:, 0] < pairs[:, 1]] if one_set else pairs
        psi = covisibility(queries, database, pairs, size=self.size).mean(axis=1)
        if one_set:
            pairs, psi = np.concatenate([pairs, pairs[:, ::-1]]), np.tile(psi, 2)
        if advance is not None:
            advance(len(queries))
        shape, facts = (len(queries), len(database)), self.facts(queries, database)
        return SimilarityGraph.from_edges(pairs[:, 0], pairs[:, 1], psi, shape, facts)

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph."""
        return super().facts(queries, database) | {"measure": "true-covisibility", "size": list(self.size)}

    def estimate(self, queries: ImageSet, database: ImageSet, *, quantised: bool = False) -> Estimate:
        """By few queries: every pair is traced."""
        return estimated(self, queries, database, quantised=quantised, sample=_SAMPLE)


class _Eye(NamedTuple):
    """One camera, what it stands in, and the points that it sees."""

    scene: Scene
    movers: Floats
    leaves: float
    position: Floats
    rotation: Floats
    camera: Floats
    points: Floats


def _eye(images: ImageSet, i: int, size: tuple[int, int]) -> _Eye:
    view, frame = _frame(images, i)
    drive = view.drive
    return _Eye(
        view.scene,
        view.movers(frame),
        drive.condition.leaves,
        drive.position[frame],
        drive.rotation[frame],
        intrinsics(view.config, size),
        _surface(view, frame, size)[0],
    )


def _share(a: _Eye, b: _Eye) -> tuple[float, float]:
    from covis.town.render import sees

    return tuple(  # type: ignore[return-value]
        float(sees(e.scene, e.movers, e.position, e.rotation, e.camera, e.leaves, p).mean()) if len(p) else 0.0
        for e, p in ((b, a.points), (a, b.points))
    )


def _surface(view: View, frame: int, size: tuple[int, int]) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Points, normals and items of the fixed surfaces in one image."""
    depth_m, items, normals = view.measure(frame, size)
    keep = fixed(view.scene, items)
    fx, fy, cx, cy, _, _ = intrinsics(view.config, size)
    row, column = np.nonzero(keep)
    z = depth_m[keep]
    local = np.column_stack([(column + 0.5 - cx) / fx * z, (row + 0.5 - cy) / fy * z, z])
    points = view.drive.position[frame] + local @ view.drive.rotation[frame].T
    return points, normals[keep], items[keep]


def fixed(scene: Scene, items: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which items are there in every traversal: neither sky nor cars nor people."""
    first = len(scene.walls)
    movable = np.concatenate([scene.solids[:, solids.MATERIAL] >= solids.MOVABLE, [True]])
    goes: NDArray[np.bool_] = (items >= first) & movable[np.clip(items - first, 0, len(scene.solids))]
    return (items > _SKY) & ~goes


def _frame(images: ImageSet, i: int) -> tuple[View, int]:
    """The view and number within its traversal of image `i` of a set that `load` returned."""
    config = folder_config(Path(images.root))
    condition = bytes(images.columns["condition"][i]).decode()
    return View.of(config, images.group_names[int(images.group[i])], condition), int(images.columns["frame"][i])
