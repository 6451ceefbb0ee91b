"""Loop closures for SLAM: images that show a place again after a while, confirmed by the images before them.

Frames are taken in order of time, and each is only compared with those at least `gap_s` older, so candidates can be
given out while a recording still runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError

GAP_S = 30.0
"""Images less far apart in time are neighbours, not loops."""
WINDOW = 5
"""How many images before must lead to the same place."""
KEPT = 3
"""Nearest images that are kept of each frame for that."""
LEAST_OLDER = 20
"""With fewer older images it cannot be told what stands out."""
STANDS_OUT = 2.5
"""Robust standard deviations that a match must be nearer than older images usually are."""
LEAST_AGREEMENT = 0.8
RIGHT_M = 25.0
"""Where positions are known, a loop is right within this."""
HEADER = "# time_query time_match image_query image_match distance agreement probability"


class Loop(NamedTuple):
    """A candidate: `query` shows what `match` showed earlier; both count frames in the order given."""

    query: int
    match: int
    distance: float
    """Between descriptors."""
    agreement: float
    """Share of the frames before that lead to the same place, forwards or backwards."""


def loop_closures(
    rows: Iterable[NDArray[np.floating]],
    time_s: Floats,
    *,
    gap_s: float = GAP_S,
    window: int = WINDOW,
    least_agreement: float = LEAST_AGREEMENT,
) -> Iterator[Loop]:
    """Candidates of descriptors (D,) of unit norm, frame by frame; times ascend."""
    if len(time_s) > 1 and (np.diff(time_s) < 0).any():
        at = int(np.flatnonzero(np.diff(time_s) < 0)[0]) + 1
        raise InputError(f"the clock jumps back at image {at}; sort the images by time, or cut the recording there")
    memory: NDArray[np.float32] = np.zeros((0, 0), np.float32)
    recent: deque[NDArray[np.int64]] = deque(maxlen=window)
    for i, row in enumerate(rows):
        vector = np.asarray(row, np.float32)
        if i == 0:
            memory = np.zeros((max(1, len(time_s)), len(vector)), np.float32)
        memory[i] = vector
        old = int(np.searchsorted(time_s, time_s[i] - gap_s, side="right"))
        distance = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * (memory[:old] @ vector)))
        near = standing_out(distance)
        shares = np.array([agreement(int(j), recent) for j in near])
        if len(recent) == window and len(near) and shares.max() >= least_agreement:
            best = int(np.flatnonzero(shares >= least_agreement)[0])
            yield Loop(i, int(near[best]), float(distance[near[best]]), float(shares[best]))
        recent.append(near)


def standing_out(distance: NDArray[np.floating]) -> NDArray[np.int64]:
    """Ids of the nearest few of all older images that are clearly nearer than usual, nearest first."""
    if len(distance) < LEAST_OLDER:
        return np.zeros(0, np.int64)
    usual = float(np.median(distance))
    spread = 1.4826 * float(np.median(np.abs(distance - usual)))
    near = np.argsort(distance, kind="stable")[:KEPT].astype(np.int64)
    return near[distance[near] <= usual - STANDS_OUT * spread]


def agreement(match: int, before: Iterable[NDArray[np.int64]]) -> float:
    """Share of the frames before whose own nearest images lead up to `match`, one way or the other.

    A frame s steps before may have moved on by nothing to twice as much, because speeds differ.
    """
    frames = list(before)
    if not frames:
        return 0.0
    counts = []
    for way in (1, -1):
        steps = range(len(frames), 0, -1)
        low_high = [sorted((match, match - way * 2 * s)) for s in steps]
        hits = [((near >= lo - 1) & (near <= hi + 1)).any() for near, (lo, hi) in zip(frames, low_high, strict=True)]
        counts.append(float(np.mean(hits)))
    return max(counts)


def probabilities(loops: list[Loop], xy: Floats, right_m: float = RIGHT_M) -> Floats | None:
    """(L,) that each loop is right, fitted on those whose two positions are known; None where that cannot be.

    Logistic in distance and agreement, by Newton's method with a little ridge. Needs ten known loops of either kind.
    """
    if not loops:
        return None
    features = np.array([[1.0, loop.distance, loop.agreement] for loop in loops])
    apart = np.linalg.norm(xy[[loop.query for loop in loops]] - xy[[loop.match for loop in loops]], axis=1)
    known = ~np.isnan(apart)
    right = (apart <= right_m).astype(float)
    if (right[known] == 1).sum() < 10 or (right[known] == 0).sum() < 10:
        return None
    centre, spread = features[known].mean(axis=0), features[known].std(axis=0)
    centre[0], spread = 0.0, np.where(spread > 1e-9, spread, 1.0)
    scaled = (features - centre) / spread
    weight = np.zeros(3)
    for _ in range(50):
        share = 1.0 / (1.0 + np.exp(-scaled[known] @ weight))
        slope = scaled[known].T @ (share - right[known]) + 1e-2 * weight
        bend = (scaled[known] * (share * (1 - share))[:, None]).T @ scaled[known] + 1e-2 * np.eye(3)
        step = np.linalg.solve(bend, slope)
        weight -= step
        if np.abs(step).max() < 1e-9:
            break
    result: Floats = 1.0 / (1.0 + np.exp(-scaled @ weight))
    return result


def line(loop: Loop, names: tuple[str, str], times: tuple[float, float], probability: float | None = None) -> str:
    """One candidate as text, as `HEADER` tells; an unknown probability is `nan`."""
    chance = "nan" if probability is None else f"{probability:.4f}"
    return f"{times[0]:.6f} {times[1]:.6f} {names[0]} {names[1]} {loop.distance:.5f} {loop.agreement:.2f} {chance}"
