"""Re-ranking by the poses of the map alone.

Photos that truly show the query's place stand together and face the same way; a look-alike elsewhere, or a photo whose
compass was off, stands alone. Two settings depend on the map: how much weight results have that lag behind the best, and
how close results must be to agree. Many photos of each place with poor compasses need many votes, street views every few
metres hardly any. Where a map has queries with known answers, both are fitted to them (`Consensus.fit`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.descriptors import Describer
from covis.images import ImageSet
from covis.poses import PLACE_M, PLACE_TURN_DEG, Poses, angle_between
from covis.ranking import Ranking

HEARD_DEPTH = 20
SHARPNESS = 0.45
"""Between the best for campus photos (0.7) and street views (0.3): it costs either at most 1 to 2 points at rank 1."""
CERTAINTY = 0.25
"""Votes fall by a factor of e over at most this share of the best's own squared distance: a result that is almost
identical to the query is not outvoted."""
TRIED_RADII_M = (PLACE_M, PLACE_M / 2, PLACE_M / 4)
SHARPNESSES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""What a fit tries."""
RIGHT_M = (PLACE_M, 0.4 * PLACE_M)
"""A result is right within the first radius; one within the second counts double."""
_GAIN = 0.003
"""A choice other than the default must be better by this share of the queries, about as much as chance causes."""
_SMALLEST = 1e-12
_BLOCK = 4096
_NO_POSES = Poses(np.zeros((0, 2)), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Consensus:
    """Puts first the result that the first `depth` results agree with most; the others keep their order."""

    poses: Poses = _NO_POSES
    """Of the map's images; `prepare` sets them."""
    depth: int = HEARD_DEPTH
    radius_m: float = PLACE_M
    """Agreement of two results falls with the distance between them, as a normal curve of this width."""
    angle_deg: float = PLACE_TURN_DEG
    """The same for the angle between their headings, where both are known."""
    sharpness: float = SHARPNESS
    """Votes fall by a factor of e over this share of the results' mean lag behind the best, in squared distance; 0:
    only the best result votes."""

    name: ClassVar[str] = "consensus"

    def __post_init__(self) -> None:
        if self.depth < 1 or not self.radius_m > 0 or not self.angle_deg > 0 or not self.sharpness >= 0:
            raise InputError(
                "a consensus needs a depth of at least 1, a radius and an angle above 0 and a sharpness from 0, "
                f"not {self.facts()}"
            )

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Consensus:
        """The consensus of the map's poses; no image is read again."""
        return replace(self, poses=database.poses)

    def fit(self, ranking: Ranking, asked: Poses) -> Consensus:
        """Radius and sharpness for queries with known answers: `ranking` (Q, K) of the map for the poses `asked`.

        The results must be like those of new images: none of the query's own walk, and found by descriptors that were
        not fitted to it.
        """
        known = asked.known & (ranking.ids[:, 0] >= 0) if ranking.k else np.zeros(len(ranking), bool)
        if not known.any():
            return self
        ids, distances = ranking.ids[known, : self.depth], ranking.distances[known, : self.depth]
        score = _rightness(self.poses, ids, asked.subset(known))
        gained = np.empty((len(TRIED_RADII_M), len(SHARPNESSES)))
        for i, radius_m in enumerate(TRIED_RADII_M):
            tried = replace(self, radius_m=radius_m)
            alike = tried.alike(ids)
            for j, sharpness in enumerate(SHARPNESSES):
                weight = replace(tried, sharpness=sharpness).weights(ids, distances)
                first = _votes(alike, weight, ids >= 0).argmax(axis=1)
                gained[i, j] = np.take_along_axis(score, first[:, None], 1).mean()
        # Neighbouring settings differ mostly by chance, so they are averaged; sharpness 0 (no votes) stays apart.
        smooth = gained.copy()
        smooth[:, 1:-1] = (gained[:, :-2] + gained[:, 1:-1] + gained[:, 2:]) / 3
        smooth[:, -1] = (gained[:, -2] + 2 * gained[:, -1]) / 3
        smooth[TRIED_RADII_M.index(PLACE_M), SHARPNESSES.index(SHARPNESS)] += _GAIN
        best = divmod(int(smooth.argmax()), len(SHARPNESSES))
        return replace(self, radius_m=TRIED_RADII_M[best[0]], sharpness=SHARPNESSES[best[1]])

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
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
        """(Q, K) weight of each result's vote, 1 for the best; 0 where there is none."""
        present = ids >= 0
        squared = np.where(present, distances, 0.0).astype(np.float64) ** 2
        lag = np.where(present, squared - squared[:, :1], 0.0).clip(min=0.0)
        mean = lag.sum(axis=1, keepdims=True) / np.maximum(present.sum(axis=1, keepdims=True), 1)
        scale = np.minimum(self.sharpness * mean, CERTAINTY * squared[:, :1])
        return np.where(present, np.exp(-lag / np.maximum(scale, _SMALLEST)), 0.0)

    def alike(self, ids: NDArray[np.int64]) -> Floats:
        """(Q, K, K) how much two results agree about the place, 1 for one place and heading."""
        xy, heading = self.poses.xy[ids], self.poses.heading[ids]
        apart = np.square(xy[:, :, None] - xy[:, None]).sum(axis=3) / self.radius_m**2
        turned = np.nan_to_num(angle_between(heading[:, :, None], heading[:, None])) / self.angle_deg
        return np.asarray(np.nan_to_num(np.exp(-(apart + turned**2) / 2)))  # a result of unknown place agrees with none


def _votes(alike: Floats, weight: Floats, present: NDArray[np.bool_]) -> Floats:
    return np.where(present, (alike * weight[:, None]).sum(axis=2), -1.0)


def _rightness(poses: Poses, ids: NDArray[np.int64], asked: Poses) -> Floats:
    """(Q, K) 0 for a wrong result, 0.5 for one within 25 m that faces alike, 1 for one within 10 m."""
    gap = np.hypot(*np.moveaxis(poses.xy[ids] - asked.xy[:, None], 2, 0))
    turned = np.nan_to_num(angle_between(poses.heading[ids], asked.heading[:, None]))
    right = [(gap <= radius_m) & (turned <= PLACE_TURN_DEG) & (ids >= 0) for radius_m in RIGHT_M]
    return np.asarray(np.mean(right, axis=0))
