"""How far the best match's pose is from the query's own: metres, degrees, and the share within given limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.poses import Poses, angle_between

PoseLimits = Sequence[tuple[float, float]]
LONG_TERM_LIMITS = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
"""(metres, degrees): high, medium and coarse precision of the long-term visual localisation benchmark."""


def pose_errors(queries: Poses, database: Poses, match: Ids) -> tuple[Floats, Floats]:
    """(Q,) metres and degrees between each query's pose and that of map image `match`; NaN where unknown or −1.

    In space with full rotations where both sides have them, otherwise on the ground with headings.
    """
    matched = np.asarray(match) >= 0
    at = np.maximum(match, 0)
    spatial = queries.rotation is not None and database.rotation is not None
    if spatial and queries.z is not None and database.z is not None:
        metres = np.linalg.norm(queries.centre - database.centre[at], axis=1)
    else:
        metres = np.linalg.norm(queries.xy - database.xy[at], axis=1)
    if queries.rotation is not None and database.rotation is not None:
        degrees = rotation_angles(queries.rotation, database.rotation[at])
    else:
        degrees = angle_between(queries.heading, database.heading[at])
    return np.where(matched, metres, np.nan), np.where(matched, degrees, np.nan)


def rotation_angles(first: Floats, second: Floats) -> Floats:
    """(N,) angles in degrees between aligned rotations (N, 3, 3), exact also for small ones."""
    # ‖A − B‖² = 8·sin²(angle / 2): arccos of the trace would lose half the digits near 0.
    chord = np.sqrt(((first - second) ** 2).sum(axis=(1, 2)) / 8.0)
    return np.asarray(np.degrees(2.0 * np.arcsin(np.minimum(chord, 1.0))))


def localised(metres: Floats, degrees: Floats, limits: PoseLimits = LONG_TERM_LIMITS) -> NDArray[np.bool_]:
    """(Q, limits) whether each query is within both metres and degrees; a query without a match is not."""
    m, d = np.asarray(metres)[:, None], np.asarray(degrees)[:, None]
    bounds = np.asarray(limits, np.float64).reshape(-1, 2)
    with np.errstate(invalid="ignore"):
        return np.asarray((m <= bounds[:, 0]) & (d <= bounds[:, 1]))


def limit_name(limit: tuple[float, float]) -> str:
    """`(0.25, 2)` → `0.25m_2deg`, as the published tables spell it."""
    return f"{limit[0]:g}m_{limit[1]:g}deg"
