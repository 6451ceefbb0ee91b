"""Asking the best results where they were taken: the one that the others agree with goes first.

A re-ranking is a function `Ranking -> Ranking`. This one looks only at the poses of the map. Photos that truly show the
query's place stand together and face the same way; a look-alike elsewhere, or a photo whose compass was off, stands
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError
from covis.poses import Poses, angle_between
from covis.ranking import Ranking

DEPTH = 20
RADIUS_M = 25.0
ANGLE_DEG = 40.0
SHARPNESS = 0.7
"""Votes fall by a factor of e over this share of the results' mean lag behind the best, in squared distance,"""
CERTAINTY = 0.25
"""and over this share of the best's own squared distance at most: what is all but the query itself is not outvoted."""
_SMALLEST = 1e-12
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Consensus:
    """Puts the result first that the first `depth` results agree with most; the others keep their order."""

    poses: Poses
    """Of the map's images."""
    depth: int = DEPTH
    radius_m: float = RADIUS_M
    """Two results agree less the farther apart they are, as a normal curve of this width."""
    angle_deg: float = ANGLE_DEG
    """And the more they are turned, where both headings are known."""

    def __post_init__(self) -> None:
        if self.depth < 1 or not self.radius_m > 0 or not self.angle_deg > 0:
            raise InputError(
                f"a consensus needs a depth of at least 1 and a radius and an angle above 0, not {self.facts()}"
            )

    def facts(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"depth": self.depth, "radius_m": self.radius_m, "angle_deg": self.angle_deg}

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

    def votes(self, ids: NDArray[np.int64], distances: NDArray[np.float32]) -> Floats:
        """(Q, K) how much results (Q, K), best first, agree with each; −1 where there is none."""
        found = ids >= 0
        squared = np.where(found, distances, 0.0).astype(np.float64) ** 2
        lag = np.where(found, squared - squared[:, :1], 0.0).clip(min=0.0)
        mean = lag.sum(axis=1, keepdims=True) / np.maximum(found.sum(axis=1, keepdims=True), 1)
        scale = np.minimum(SHARPNESS * mean, CERTAINTY * squared[:, :1])
        weight = np.where(found, np.exp(-lag / np.maximum(scale, _SMALLEST)), 0.0)
        xy, heading = self.poses.xy[ids], self.poses.heading[ids]
        apart = np.square(xy[:, :, None] - xy[:, None]).sum(axis=3) / self.radius_m**2
        turned = np.nan_to_num(angle_between(heading[:, :, None], heading[:, None])) / self.angle_deg
        alike = np.nan_to_num(np.exp(-(apart + turned**2) / 2))  # a result of unknown place agrees with none
        return np.where(found, (alike * weight[:, None]).sum(axis=2), -1.0)
