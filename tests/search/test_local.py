"""Local features: matching, peaks and sampling against other implementations, geometry on scenes with known answers."""

import numpy as np
import pytest

from covis.ranking import Ranking
from covis.search.local_features import LocalFeatures, inliers, match
from covis.search.rerank import reordered

SIZE = (320, 240)


def test_mutual_and_clear_matches_only():
    eye = np.eye(4, dtype=np.float32)
    twin = np.array([[1, 0, 0, 0], [0.999, 0.04, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]], np.float32)
    first, second = LocalFeatures(np.zeros((4, 2)), eye), LocalFeatures(np.zeros((4, 2)), twin)
    assert match(first, second).tolist() == [[0, 0], [1, 2], [3, 3]]
    alike = LocalFeatures(np.zeros((2, 2)), np.array([[0.8, 0.6, 0, 0], [0.8, -0.6, 0, 0]], np.float32))
    assert match(first, alike).tolist() == []
    assert match(first, alike, None).tolist() == [[0, 0]]


def pair(flat, wrong, count=120, seed=0):
    """Two views of points on a plane or in a volume, `wrong` of the matches at random."""
    rng = np.random.default_rng(seed)
    depth = np.full(count, 6.0) if flat else rng.uniform(3, 12, count)
    points = np.column_stack([rng.uniform(-2, 2, count), rng.uniform(-1.5, 1.5, count), depth])
    angle = np.radians(8)
    turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    views = [points, points @ turn.T + [0.8, 0.1, 0.2]]
    first, second = (p[:, :2] / p[:, 2:] * 260 + np.array(SIZE) / 2 for p in views)
    second[:wrong] = rng.uniform(0, 1, (wrong, 2)) * SIZE
    unused = np.zeros((count, 1), np.float32)
    return (
        LocalFeatures(first, unused, SIZE),
        LocalFeatures(second, unused, SIZE),
        np.tile(np.arange(count)[:, None], 2),
    )


@pytest.mark.parametrize(("flat", "least", "most"), [(True, 80, 86), (False, 8, 60)])  # a volume is not flat
def test_geometry_keeps_the_true_matches(flat, least, most):
    pytest.importorskip("cv2", reason="estimates the geometry")
    found = [inliers(*pair(flat, 40, seed=seed)) for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert all(least <= count <= most for count in found)
    assert inliers(*pair(flat, 3, count=3)) == 0


def test_the_head_is_ordered_by_its_scores_and_ties_stay():
    scores = {0: 0.0, 1: 0.0, 2: 60.0, 3: 90.0}
    ranking = Ranking(np.array([[1, 0, 2, 3, -1]]), np.array([[0.1, 0.2, 0.3, 0.4, np.inf]]))
    again = reordered(ranking, 3, lambda q, ids, distances: np.array([scores[i] for i in ids.tolist()]))
    assert again.ids.tolist() == [[2, 1, 0, 3, -1]]
