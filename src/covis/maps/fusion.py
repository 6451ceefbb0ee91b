"""From matches to one position: those at the best match's place, averaged by how much they share with the photo."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats

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
