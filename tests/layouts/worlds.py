"""Small labelled worlds with ψ as a dense matrix beside the graph. `from layouts.worlds import world`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses


@dataclass(frozen=True, eq=False)
class World:
    graph: SimilarityGraph
    dense: np.ndarray
    """(queries, database) ψ."""
    queries: ImageSet
    database: ImageSet

    @property
    def one_set(self):
        return self.queries is self.database


def photos(n, rng, groups, unknown, extent_m):
    """Photos strewn over a square, the last `unknown` of them without a place."""
    xy = rng.uniform(0, extent_m, (n, 2))
    xy[n - unknown :] = np.nan
    names = [f"{k}.jpg" for k in range(n)]
    return ImageSet.of("photos", names, Poses(xy, rng.uniform(0, 360, n)), [f"city{k % groups}" for k in range(n)])


def similarity(a, b, reach_m=60.0):
    """Falls with distance and with the angle between headings."""
    away = np.linalg.norm(a.poses.xy[:, None] - b.poses.xy[None], axis=-1)
    turn = np.abs((a.poses.heading[:, None] - b.poses.heading[None] + 180) % 360 - 180)
    psi = np.clip(1.25 - away / reach_m, 0, 1) * np.clip(1.2 - turn / 120, 0, 1)
    return np.nan_to_num(psi).astype(np.float32)


def world(
    seed=0,
    one_set=True,
    n=60,
    m=45,
    groups=1,
    within_group=False,
    unknown=0,
    quantised=False,
    binary=False,
    extent_m=150.0,
) -> World:
    rng = np.random.default_rng(seed)
    queries = photos(n, rng, groups, unknown, extent_m)
    database = queries if one_set else photos(m, rng, groups, unknown, extent_m)
    dense = similarity(queries, database)
    if one_set:
        dense = np.maximum(dense, dense.T)
        np.fill_diagonal(dense, 0)
    if within_group:
        names = [np.array(s.group_names)[s.group] for s in (queries, database)]
        dense[names[0][:, None] != names[1][None]] = 0
    if binary:
        dense = (dense >= 0.5).astype(np.float32)
    i, j = np.nonzero(dense)
    facts = {"one_set": one_set, "within_group": within_group, "radius_m": 50.0}
    graph = SimilarityGraph.from_edges(i, j, dense[i, j], dense.shape, facts)
    if quantised:
        graph = graph.quantised()
        dense = graph.to_scipy().toarray()
    return World(graph, dense, queries, database)
