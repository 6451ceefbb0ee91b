"""What speaks for the matches of a photo: their distances, and the votes of those that stand at one place.

The numbers here are told the same way when a map calibrates itself and when it answers, so that a probability learned
from the one holds for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Bools, Floats, Ids
from covis.ranking import Ranking
from covis.search import Consensus

PLACE_RADIUS_M = 25.0
"""Matches this near to the best one are at its place."""
_OVERLAP_FLOOR = 0.02
"""Weight of a match that is thought to share nothing, so that a place always has a position."""
_DISTANCE_FLOOR = 0.05


@dataclass(frozen=True)
class Fused:
    """Positions of queries, one each."""

    xy: Floats
    """(Q, 2) metres; NaN where a query has no match."""
    heading: Floats
    """(Q,) degrees, the weighted mean direction; NaN where no match at the place knows its own."""
    count: NDArray[np.int64]
    """(Q,) matches that each was fused from."""


def weights(distances: Floats, overlap: Floats | None) -> Floats:
    """(Q, K) weight of each match: its ψ̂, or without one the inverse square of its descriptor distance."""
    if overlap is not None:
        return np.asarray(np.maximum(overlap, _OVERLAP_FLOOR))
    return np.asarray(1.0 / np.maximum(distances, _DISTANCE_FLOOR) ** 2)


def fuse(xy: Floats, heading: Floats, weight: Floats, found: NDArray[np.bool_]) -> Fused:
    """Fuses each query's matches: xy (Q, K, 2), heading (Q, K), weight (Q, K), found (Q, K), best first."""
    if not xy.shape[1]:
        empty = np.full((len(xy), 2), np.nan)
        return Fused(empty, empty[:, 0].copy(), np.zeros(len(xy), np.int64))
    used = found & at_place(xy, found)
    share = np.where(used, weight, 0.0)
    total = share.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (np.where(used[..., None], xy, 0.0) * share[..., None]).sum(axis=1) / total[:, None]
    known = used & ~np.isnan(heading)
    turn = np.radians(np.where(known, heading, 0.0))
    east, north = ((np.where(known, share, 0.0) * f(turn)).sum(axis=1) for f in (np.sin, np.cos))
    # Opposite headings cancel out: then there is no direction to speak of.
    clear = np.hypot(east, north) > 1e-6 * np.maximum(total, 1e-300)
    direction = np.where(clear, np.degrees(np.arctan2(east, north)) % 360.0, np.nan)
    return Fused(mean, direction, used.sum(axis=1))


def at_place(xy: Floats, found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(Q, K) which matches lie at the place of the first."""
    offset = xy - xy[:, :1]
    return np.asarray(found & found[:, :1] & (np.hypot(offset[..., 0], offset[..., 1]) <= PLACE_RADIUS_M))


# What speaks for the matches of a photo: their distances, and the votes of those that stand at one place.
#
# The numbers here are told the same way when a map calibrates itself and when it answers, so that a probability learned
# from the one holds for the other.


CONTEXT = 20
"""Matches of a photo that its answer is judged by."""
HEARD = 0.7
"""Sharpness of the votes that a place is judged by: here all voices count, whoever goes first."""
_SHARE_FLOOR = 0.02
_FAR = 2.0
"""Distance of a match that is not there: no two unit vectors are farther apart."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The first `CONTEXT` matches of photos, the agreed one in front, and what speaks for each."""

    ranking: Ranking
    """(Q, K)"""
    xy: Floats
    """(Q, K, 2)"""
    heading: Floats
    """(Q, K)"""
    first: Floats
    """(Q, 7) of the first match's place: nearest distance; lead over the next other place, also its root; share of
    matches and of votes, as log-odds; log of the number of walks; spread of the distances."""
    other: Floats
    """(Q, K, 5) of each match: whether at the first's place; metres from the first if so, in place radii; lag behind
    the first's place; share of matches at its own place and of votes, as log-odds."""

    @property
    def found(self) -> Bools:
        """(Q, K) where there is a match."""
        return np.asarray(self.ranking.ids >= 0)

    def about_others(self, probability: Floats) -> Floats:
        """(Q, K, 7) `other` with the log-odds of the first match's P (Q,), apart for its place and for others."""
        odds = np.broadcast_to(log_odds(probability, 1e-4)[:, None], self.other.shape[:2])
        same = self.other[..., 0]
        return np.concatenate([self.other, np.stack([same * odds, (1 - same) * odds], axis=2)], axis=2)


def gather(consensus: Consensus, ranking: Ranking, group: Ids) -> Evidence:
    """The evidence for a search's results: positions in a map whose photos have the poses of `consensus` and `group`."""
    agreed = consensus(ranking.top(CONTEXT))
    poses, ids, found = consensus.poses, agreed.ids, agreed.ids >= 0
    if not len(poses) or not agreed.k:
        q, k = ids.shape
        return Evidence(agreed, np.zeros((q, k, 2)), np.zeros((q, k)), np.zeros((q, 7)), np.zeros((q, k, 5)))
    xy, d = poses.xy[ids], np.where(found, agreed.distances, _FAR).astype(np.float64)
    gap = np.hypot(*np.moveaxis(xy[:, :, None] - xy[:, None], 3, 0))
    together = (gap <= PLACE_RADIUS_M) & found[:, None] & found[:, :, None]
    weight, alike = _votes(consensus, agreed)
    heard = np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    share = log_odds((together * weight[:, None]).sum(axis=2) / heard, _SHARE_FLOOR)
    votes = log_odds((alike * weight[:, None]).sum(axis=2) / heard, _SHARE_FLOOR)
    nearest = np.where(together, d[:, None], _FAR).min(axis=2)
    # Where all matches are at one place, the next other place is at least as far as the last of them.
    last = np.where(found, d, 0.0).max(axis=1)
    beyond = np.where(found[:, None] & ~together, d[:, None], _FAR).min(axis=2)
    lead = np.minimum(beyond[:, 0], last) ** 2 - nearest[:, 0] ** 2
    spread = last**2 - np.where(found, d, _FAR).min(axis=1) ** 2
    walks = np.log(np.maximum(_walks(together[:, 0], group[ids]), 1))
    first = [nearest[:, 0], lead, np.sqrt(lead.clip(min=0)), share[:, 0], votes[:, 0], walks, spread]
    same = together[:, 0].astype(np.float64)
    other = [same, np.where(together[:, 0], gap[:, 0], 0.0) / PLACE_RADIUS_M, d**2 - nearest[:, :1] ** 2, share, votes]
    return Evidence(agreed, xy, poses.heading[ids], np.stack(first, axis=1), np.stack(other, axis=2))


def log_odds(share: Floats, floor: float) -> Floats:
    """log(p / (1 − p)), p kept `floor` away from 0 and 1."""
    kept = np.clip(share, floor, 1 - floor)
    return np.asarray(np.log(kept / (1 - kept)))


def _votes(consensus: Consensus, agreed: Ranking) -> tuple[Floats, Floats]:
    """(Q, K) weights and (Q, K, K) agreement of matches whose first need not be the nearest."""
    order = np.argsort(agreed.distances, axis=1, kind="stable")
    nearest = agreed.reordered(order)
    weight = np.empty(order.shape)
    np.put_along_axis(weight, order, replace(consensus, sharpness=HEARD).weights(nearest.ids, nearest.distances), 1)
    return weight, consensus.alike(agreed.ids)


def _walks(together: Bools, group: Ids) -> Ids:
    """(Q,) the number of groups (Q, K) among the matches at a place (Q, K)."""
    seen = together[:, None] & (group[:, :, None] == group[:, None])
    before = np.tril(np.ones(seen.shape[1:], bool), -1)
    return np.asarray((together & ~(seen & before).any(axis=2)).sum(axis=1))
