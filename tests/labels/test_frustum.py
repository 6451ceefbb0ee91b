"""Frustum overlap against points drawn at random, and where geometry gives the figure."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.labels import FrustumOverlap
from covis.poses import Poses

INTRINSICS = (100.0, 110.0, 60.0, 40.0, 120.0, 90.0)


def cameras(n, seed, spread_m=3.0):
    from scipy.spatial.transform import Rotation

    rng = np.random.default_rng(seed)
    turn = Rotation.from_euler("zyx", rng.uniform(-25, 25, (n, 3)), degrees=True).as_matrix()
    level = np.array([[1.0, 0, 0], [0, 0, 1.0], [0, -1.0, 0]])  # x right, y down, z ahead = north
    matrices = np.concatenate([turn @ level, rng.uniform(0, spread_m, (n, 3, 1))], axis=2)
    return ImageSet.of("photos", [f"{i}.jpg" for i in range(n)], Poses.from_matrices(matrices),
                       [f"g{i % 2}" for i in range(n)], intrinsics=np.tile(INTRINSICS, (n, 1)))  # fmt: skip


def share(rule, a, i, b, j, count=20000):
    """The share of a's frustum in b's, point by point."""
    rng = np.random.default_rng(0)
    fx, fy, cx, cy, width, height = INTRINSICS
    z = np.cbrt(rng.uniform(rule.near_m**3, rule.far_m**3, count))
    local = np.column_stack(
        [(rng.uniform(0, width, count) - cx) / fx * z, (rng.uniform(0, height, count) - cy) / fy * z, z]
    )
    world = a.poses.centre[i] + local @ a.poses.rotation[i].T
    there = (world - b.poses.centre[j]) @ b.poses.rotation[j]
    ahead = (there[:, 2] >= rule.near_m) & (there[:, 2] <= rule.far_m)
    u, v = fx * there[:, 0] / there[:, 2] + cx, fy * there[:, 1] / there[:, 2] + cy
    return float((ahead & (u >= 0) & (u <= width) & (v >= 0) & (v <= height)).mean())


@pytest.mark.parametrize("measure", ["overlap", "query_overlap", "iou"])
def test_every_pair_against_random_points(measure):
    queries, database = cameras(6, 1), cameras(7, 2)
    rule = FrustumOverlap(measure=measure, samples=(24, 18, 24))
    got = rule(queries, database).to_scipy().toarray()
    for i in range(6):
        for j in range(7):
            own, other = share(rule, queries, i, database, j), share(rule, database, j, queries, i)
            mean = (own + other) / 2
            expected = {"overlap": mean, "query_overlap": own, "iou": mean / (2 - mean)}[measure]
            assert got[i, j] == pytest.approx(expected, abs=0.02)
    assert 0.1 < got.max() <= 1


def test_one_place_shares_all_and_a_turned_back_nothing():
    images = cameras(2, 1, spread_m=0.0)
    same = images.subset([0, 0])
    assert FrustumOverlap()(same, same).to_scipy().toarray().tolist() == [[0, 1], [1, 0]]
    matrix = np.stack([np.column_stack([same.poses.rotation[0] @ np.diag([-1.0, 1, -1.0]), same.poses.centre[0]])])
    back = ImageSet.of("photos", ["b.jpg"], Poses.from_matrices(matrix), intrinsics=[INTRINSICS])
    assert FrustumOverlap()(same.subset([0]), back).pairs == 0
    grouped = FrustumOverlap(within_group=True)(cameras(8, 3), cameras(8, 4))
    assert (grouped.rows % 2 == grouped.indices % 2).all()
    flat = ImageSet.of("photos", ["a.jpg"], Poses(np.zeros((1, 2)), np.zeros(1)))
    with pytest.raises(InputError, match="6DOF poses and intrinsics"):
        FrustumOverlap()(flat, flat)
    with pytest.raises(InputError, match="far_m"):
        FrustumOverlap(near_m=2.0, far_m=1.0)
