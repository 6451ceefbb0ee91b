"""Looking twice at the best results: a re-ranking is a function `Ranking -> Ranking`.

`Consensus` looks only at the poses of the map. Photos that truly show the query's place stand together and face the same
way; a look-alike elsewhere, or a photo whose compass was off, stands alone. How far results are heard that lag behind the
best, and how near they must stand to agree, suits one map and not another: many photos of each place with poor compasses
want many voices, street views every few metres hardly any. So both are chosen by questions with known answers, where a
map has some (`Consensus.fitted`). `SpatialRerank` matches patches of two images; matches that move together count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError
from covis.poses import Poses, angle_between
from covis.progress import Meter
from covis.ranking import Ranking

HEARD_DEPTH = 20
RADIUS_M = 25.0
ANGLE_DEG = 40.0
SHARPNESS = 0.45
"""Between what campus photos (0.7) and street views (0.3) want: it costs either 1 to 2 points at rank 1 at most."""
CERTAINTY = 0.25
"""Votes fall by a factor of e over this share of the best's own squared distance at most: what is all but the query
itself is not outvoted."""
TRIED_RADII_M = (RADIUS_M, RADIUS_M / 2, RADIUS_M / 4)
SHARPNESSES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""What a fit tries."""
RIGHT_M = (RADIUS_M, 0.4 * RADIUS_M)
"""A result is right within the first; one that is within the second counts double."""
GAIN = 0.003
"""Another choice than the default must be better by this share of the questions, about what chance moves."""
_SMALLEST = 1e-12
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Consensus:
    """Puts the result first that the first `depth` results agree with most; the others keep their order."""

    poses: Poses
    """Of the map's images."""
    depth: int = HEARD_DEPTH
    radius_m: float = RADIUS_M
    """Two results agree less the farther apart they are, as a normal curve of this width."""
    angle_deg: float = ANGLE_DEG
    """And the more they are turned, where both headings are known."""
    sharpness: float = SHARPNESS
    """Votes fall by a factor of e over this share of the results' mean lag behind the best, in squared distance; 0: no
    result is heard but the best."""

    def __post_init__(self) -> None:
        if self.depth < 1 or not self.radius_m > 0 or not self.angle_deg > 0 or not self.sharpness >= 0:
            raise InputError(
                "a consensus needs a depth of at least 1, a radius and an angle above 0 and a sharpness from 0, "
                f"not {self.facts()}"
            )

    @classmethod
    def fitted(cls, poses: Poses, ranking: Ranking, asked: Poses, depth: int = HEARD_DEPTH) -> Consensus:
        """Chosen by questions with known answers: `ranking` (Q, K) of a map's images for queries that stand at `asked`.

        Its results must be what new images would find: none of the query's own walk, by descriptors that were not
        fitted to it.
        """
        known = asked.known & (ranking.ids[:, 0] >= 0) if ranking.k else np.zeros(len(ranking), bool)
        if not known.any():
            return cls(poses, depth)
        ids, distances = ranking.ids[known, :depth], ranking.distances[known, :depth]
        score = _rightness(poses, ids, asked.subset(known))
        gained = np.empty((len(TRIED_RADII_M), len(SHARPNESSES)))
        for i, radius_m in enumerate(TRIED_RADII_M):
            tried = cls(poses, depth, radius_m)
            alike = tried.alike(ids)
            for j, sharpness in enumerate(SHARPNESSES):
                weight = replace(tried, sharpness=sharpness).weights(ids, distances)
                first = _votes(alike, weight, ids >= 0).argmax(axis=1)
                gained[i, j] = np.take_along_axis(score, first[:, None], 1).mean()
        # Neighbours differ by chance more than by themselves; to hear no one is a choice of its own.
        smooth = gained.copy()
        smooth[:, 1:-1] = (gained[:, :-2] + gained[:, 1:-1] + gained[:, 2:]) / 3
        smooth[:, -1] = (gained[:, -2] + 2 * gained[:, -1]) / 3
        smooth[TRIED_RADII_M.index(RADIUS_M), SHARPNESSES.index(SHARPNESS)] += GAIN
        best = divmod(int(smooth.argmax()), len(SHARPNESSES))
        return cls(poses, depth, TRIED_RADII_M[best[0]], sharpness=SHARPNESSES[best[1]])

    def facts(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "depth": self.depth,
            "radius_m": self.radius_m,
            "angle_deg": self.angle_deg,
            "sharpness": self.sharpness,
        }

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with the agreed result in front; distances stay those of the descriptors."""
        chosen = np.zeros(len(ranking), np.int64)
        for start in range(0, len(ranking), _BLOCK):
            part = slice(start, start + _BLOCK)
            votes = self.votes(ranking.ids[part, : self.depth], ranking.distances[part, : self.depth])
            chosen[part] = votes.argmax(axis=1) if votes.shape[1] else 0
        columns = np.arange(ranking.k)
        order = np.where(columns == 0, chosen[:, None], columns - (columns <= chosen[:, None]))
        return Ranking(np.take_along_axis(ranking.ids, order, 1), np.take_along_axis(ranking.distances, order, 1))

    def votes(self, ids: NDArray[np.int64], distances: NDArray[np.floating[Any]]) -> Floats:
        """(Q, K) how much results (Q, K), best first, agree with each; −1 where there is none."""
        return _votes(self.alike(ids), self.weights(ids, distances), ids >= 0)

    def weights(self, ids: NDArray[np.int64], distances: NDArray[np.floating[Any]]) -> Floats:
        """(Q, K) how far each result is heard, 1 for the best; 0 where there is none."""
        found = ids >= 0
        squared = np.where(found, distances, 0.0).astype(np.float64) ** 2
        lag = np.where(found, squared - squared[:, :1], 0.0).clip(min=0.0)
        mean = lag.sum(axis=1, keepdims=True) / np.maximum(found.sum(axis=1, keepdims=True), 1)
        scale = np.minimum(self.sharpness * mean, CERTAINTY * squared[:, :1])
        return np.where(found, np.exp(-lag / np.maximum(scale, _SMALLEST)), 0.0)

    def alike(self, ids: NDArray[np.int64]) -> Floats:
        """(Q, K, K) how much two results agree about the place, 1 for one place and heading."""
        xy, heading = self.poses.xy[ids], self.poses.heading[ids]
        apart = np.square(xy[:, :, None] - xy[:, None]).sum(axis=3) / self.radius_m**2
        turned = np.nan_to_num(angle_between(heading[:, :, None], heading[:, None])) / self.angle_deg
        return np.asarray(np.nan_to_num(np.exp(-(apart + turned**2) / 2)))  # a result of unknown place agrees with none


def _votes(alike: Floats, weight: Floats, found: NDArray[np.bool_]) -> Floats:
    return np.where(found, (alike * weight[:, None]).sum(axis=2), -1.0)


def _rightness(poses: Poses, ids: NDArray[np.int64], asked: Poses) -> Floats:
    """(Q, K) 0 for a wrong result, 0.5 for one within 25 m that faces alike, 1 for one within 10 m."""
    gap = np.hypot(*np.moveaxis(poses.xy[ids] - asked.xy[:, None], 2, 0))
    turned = np.nan_to_num(angle_between(poses.heading[ids], asked.heading[:, None]))
    right = [(gap <= radius_m) & (turned <= ANGLE_DEG) & (ids >= 0) for radius_m in RIGHT_M]
    return np.asarray(np.mean(right, axis=0))


# Patches need no weights of their own: they come from the map that the model pools into its descriptor. Off unless asked
# for, because matching costs far more than the search before it.


PatchVectors = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""Image ids (n,) → unit vectors of their patches (n, P, D)."""

RERANK_DEPTH = 50
REACH = 0.25
"""How far a match may stray from the common movement and still count, as a share of the image's diagonal."""


def reordered(
    ranking: Ranking,
    depth: int,
    scores: Callable[[int, NDArray[np.int64], NDArray[np.floating]], NDArray[np.float64]],
) -> Ranking:
    """The ranking with the first `depth` results of each query by falling score, equal ones as they were.

    scores: (query, ids (n,), distances (n,)) → (n,).
    """
    order = np.tile(np.arange(ranking.k), (len(ranking), 1))
    with Meter("re-rank", len(ranking), "queries") as meter:
        for q in range(len(ranking)):
            ids, distances = ranking.row(q)
            head = min(depth, len(ids))
            if head:
                order[q, :head] = np.argsort(-scores(q, ids[:head], distances[:head]), kind="stable")
            meter.advance()
    return ranking.reordered(order)


@dataclass(frozen=True, eq=False)
class SpatialRerank:
    """Orders the first `depth` results of each query by how well their patches match and agree on one movement."""

    query_patches: PatchVectors
    map_patches: PatchVectors
    places: NDArray[np.float32]
    """(P, 2) where each patch's middle lies, in any unit."""
    depth: int = RERANK_DEPTH
    distance_weight: float = 0.5
    """How much the descriptors' own similarity counts beside the patches; 0 leaves it out."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head in a new order; distances stay those of the descriptors, so they may rise and fall."""
        return reordered(ranking, self.depth, self._combined)

    def _combined(self, query: int, ids: NDArray[np.int64], distances: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.scores(query, ids) - self.distance_weight * distances**2 / 2

    def scores(self, query: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) agreement of query `query` with each of the map images `ids`: 0 none, 1 with itself."""
        mine = np.asarray(self.query_patches(np.array([query]))[0], np.float32)
        theirs = np.asarray(self.map_patches(ids), np.float32)
        return agreement(mine, theirs, self.places)


def agreement(
    query: NDArray[np.float32], candidates: NDArray[np.float32], places: NDArray[np.float32], reach: float = REACH
) -> NDArray[np.float64]:
    """(n,) spatial agreement of patches (P, D) with the patches (n, P, D) of each candidate.

    Two patches match if each is the other's nearest. A match counts its cosine, less the farther its movement is from
    the median movement of all matches. Divided by P, so that an image has 1 with itself.
    """
    if candidates.ndim != 3 or candidates.shape[1:] != query.shape or places.shape != (len(query), 2):
        raise InputError(
            f"patches {query.shape}, {candidates.shape} and places {places.shape} do not fit together; use one model"
        )
    count, patches, dim = candidates.shape
    cosine = (candidates.reshape(-1, dim) @ query.T).reshape(count, patches, patches)
    limit = reach * float(np.linalg.norm(places.max(0) - places.min(0))) or 1.0
    return np.array([_agree(one.T, places, limit) for one in cosine])


def _agree(cosine: NDArray[np.float32], places: NDArray[np.float32], limit: float) -> float:
    """Agreement from the cosines (P, P) of the query's patches (rows) with the candidate's (columns)."""
    forward, backward = cosine.argmax(1), cosine.argmax(0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(forward)))
    movement = places[forward[mutual]] - places[mutual]
    stray = np.linalg.norm(movement - np.median(movement, axis=0), axis=1)
    weight = np.maximum(0, 1 - stray / limit)
    return float((np.maximum(cosine[mutual, forward[mutual]], 0) * weight).sum() / len(forward))


def windows(rows: int, columns: int, side: int) -> NDArray[np.float32]:
    """(P, 2) middles (column, row) of all windows of side × side cells, row by row."""
    y, x = np.mgrid[: rows - side + 1, : columns - side + 1]
    return (np.column_stack([x.ravel(), y.ravel()]) + (side - 1) / 2).astype(np.float32)
