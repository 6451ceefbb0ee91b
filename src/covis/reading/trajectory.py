"""Poses of a moving body over time, and the product of rigid transforms.

Poses between two of a trajectory are interpolated (slerp); further apart than `_MAX_GAP_S` they are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.poses import quaternion_matrices

_MAX_GAP_S = 0.5
"""Between two poses further apart than this nothing is interpolated."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Poses of a body in time order."""

    time_s: Floats
    """(N,) seconds, ascending."""
    matrices: Floats
    """(N, 3, 4) body-to-world."""

    @classmethod
    def of(cls, time_s: Floats, matrices: Floats, source: str) -> Trajectory:
        """In time order; poses after which the clock jumped back are left out and counted."""
        if not len(time_s):
            raise InputError(f"{source} has no pose")
        later = np.concatenate([[True], time_s[1:] > np.maximum.accumulate(time_s)[:-1]])
        if not later.all():
            first = int(np.flatnonzero(~later)[0])
            back = float(time_s[:first].max() - time_s[first])
            how = f"goes backwards by {back:.3f} s" if back else "does not advance"
            warn(f"{source}: time {how} at pose {first}; {int((~later).sum())} left out")
        return cls(time_s[later], matrices[later])

    def at(self, when_s: Floats, max_gap_s: float = _MAX_GAP_S) -> Floats:
        """(M, 3, 4) interpolated; NaN outside the trajectory and in gaps. A pose's own time gives it unchanged."""
        right = np.clip(np.searchsorted(self.time_s, when_s), 0, len(self.time_s) - 1)
        result = np.full((len(when_s), 3, 4), np.nan)
        exact = self.time_s[right] == when_s
        result[exact] = self.matrices[right[exact]]
        left = np.maximum(right - 1, 0)
        span = self.time_s[right] - self.time_s[left]
        inside = ~exact & (when_s > self.time_s[0]) & (when_s < self.time_s[-1]) & (span <= max_gap_s)
        if inside.any():
            i, j = left[inside], right[inside]
            share = (when_s[inside] - self.time_s[i]) / span[inside]
            result[inside] = _interpolate_poses(self.matrices[i], self.matrices[j], share)
        return result


def _interpolate_poses(first: Floats, second: Floats, share: Floats) -> Floats:
    from scipy.spatial.transform import Rotation

    start = Rotation.from_matrix(first[:, :, :3])
    turn = (start.inv() * Rotation.from_matrix(second[:, :, :3])).as_rotvec()
    rotation = (start * Rotation.from_rotvec(share[:, None] * turn)).as_matrix()
    place = first[:, :, 3] + share[:, None] * (second[:, :, 3] - first[:, :, 3])
    return np.concatenate([rotation, place[:, :, None]], axis=2)


def compose(first: Floats, second: Floats) -> Floats:
    """first @ second of (…, 3, 4) rigid matrices."""
    rotation = first[..., :3] @ second[..., :3]
    place = first[..., :3] @ second[..., 3:] + first[..., 3:]
    joined: Floats = np.concatenate([rotation, place], axis=-1)
    return joined


def centred_matrices(quaternions: Floats, centres: Floats) -> Floats:
    """(N, 3, 4) camera-to-world matrices from world-to-camera quaternions (w first) and camera centres."""
    rotation = quaternion_matrices(quaternions, "wxyz").transpose(0, 2, 1)
    return np.concatenate([rotation, centres[:, :, None]], axis=2)
