"""Full poses (6DOF) of real frames with depth: how far off they are, and whether the stated uncertainty holds.

Each frame of a 7Scenes scene is posed twice: from the frames nearest to it, without itself, and from frames of other sequences
that look elsewhere, where the right answer is none.

    python -m evidence.bench_pose --data 7scenes/stairs
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

from covis.datasets.seven_scenes import read_scene
from covis.evaluation.pose_errors import LONG_TERM_LIMITS, rotation_angles
from covis.field.resection import DepthScene, Resected, locate_pose
from covis.images import ImageSet, concatenate
from covis.reading.cameras import camera_of
from evidence.reporting import report

MATCHES = 5
APART_DEG = 40.0
"""Frames turned by more than this, or of places more than a metre apart, show other things."""
SHARES = (0.5, 0.8, 0.9)


def posed(frames: ImageSet, ids: list[int], elsewhere: bool) -> list[Resected | None]:
    """The pose of each frame of `ids` from up to `MATCHES` others."""
    scene, poses = DepthScene(frames), []
    for i in ids:
        metres = np.linalg.norm(frames.poses.centre - frames.poses.centre[i], axis=1)
        rotation = np.broadcast_to(frames.poses.rotation[i], frames.poses.rotation.shape)
        degrees = rotation_angles(frames.poses.rotation, rotation)
        order = np.lexsort((degrees, metres))
        apart = (degrees > APART_DEG) | (metres > 1.0)
        usable = [int(j) for j in order if j != i and apart[j] == elsewhere][:MATCHES]
        lens = camera_of(frames, i)
        assert lens is not None
        poses.append(locate_pose(frames.path(i), frames, usable, scene, (lens, "given")))
    return poses


def rows(frames: ImageSet, ids: list[int]) -> list[dict[str, Any]]:
    near, far = posed(frames, ids, False), posed(frames, ids, True)
    pairs = [(i, pose) for i, pose in zip(ids, near, strict=True) if pose is not None]
    own = [i for i, _ in pairs]
    offset = np.array([pose.centre for _, pose in pairs]) - frames.poses.centre[own]
    metres = np.linalg.norm(offset, axis=1)
    degrees = rotation_angles(np.array([pose.rotation for _, pose in pairs]), frames.poses.rotation[own])
    entries: list[dict[str, Any]] = [
        {"what": "frames", "value": len(ids)},
        {"what": "posed from frames beside them", "value": len(pairs)},
        {"what": "median error, cm", "value": 100 * float(np.median(metres))},
        {"what": "median error, °", "value": float(np.median(degrees))},
    ]
    for limit_m, limit_deg in ((0.05, 5.0), *LONG_TERM_LIMITS):
        share = float(((metres <= limit_m) & (degrees <= limit_deg)).sum() / len(ids))
        entries.append({"what": f"within {limit_m:g} m and {limit_deg:g}°, %", "value": 100 * share})
    squared = np.array([e @ np.linalg.solve(p.covariance[3:, 3:], e) for e, (_, p) in zip(offset, pairs, strict=True)])
    for share in SHARES:
        inside = float((squared <= chi2.ppf(share, 3)).mean())
        entries.append({"what": f"positions inside the stated {share:.0%} ellipsoid, %", "value": 100 * inside})
    wrong = sum(pose is not None for pose in far)
    entries.append({"what": "poses from frames that look elsewhere (right: none)", "value": wrong})
    return entries


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--most", type=int, default=200, help="Frames that are posed, evenly spread.")
    given = parser.parse_args()
    if given.data is None:
        print("not measured: give --data, a scene of 7Scenes")
        raise SystemExit(0)
    scene = given.data.resolve().name
    both = concatenate([read_scene(given.data, scene, part) for part in ("Train", "Test")])
    picked = np.unique(np.linspace(0, len(both) - 1, min(given.most, len(both))).astype(int)).tolist()
    report(
        "pose", rows(both, picked), {"source": f"7Scenes, {len(both)} frames", "matches": MATCHES, "features": "sift"}
    )
