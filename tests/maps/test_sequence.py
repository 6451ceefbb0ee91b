"""Walks: the cheapest chain by trying all, and weak photos carried by strong ones."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from covis.images import ImageSet
from covis.maps.calibration import Calibration
from covis.maps.locating import Judge
from covis.maps.settings import WALK
from covis.maps.walks import best_chain, locate_walk
from covis.poses import Poses
from covis.ranking import Ranking


def chain_cost(chain, xy, distances):
    total = sum(distances[t, j] for t, j in enumerate(chain))
    for t in range(1, len(chain)):
        gap = np.linalg.norm(xy[t, chain[t]] - xy[t - 1, chain[t - 1]])
        total += 0.25 * min(max((gap - WALK.step_m) / WALK.step_m, 0), 2)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_the_chain_is_the_cheapest_of_all(seed):
    rng = np.random.default_rng(seed)
    xy, distances = rng.uniform(0, 400, (5, 4, 2)), np.sort(rng.uniform(0, 1, (5, 4)), axis=1)
    found = np.ones((5, 4), bool)
    found[2, 3] = False
    chain = best_chain(xy, distances, found, WALK.step_m)
    allowed = [c for c in itertools.product(range(4), repeat=5) if c[2] != 3]
    assert chain_cost(chain, xy, distances) == pytest.approx(min(chain_cost(c, xy, distances) for c in allowed))


def test_photos_without_matches_do_not_break_the_chain():
    xy = np.zeros((3, 2, 2))
    found = np.array([[True, True], [False, False], [True, True]])
    distances = np.where(found, [[0.3, 0.4]], np.inf)
    assert best_chain(xy, distances, found, WALK.step_m)[[0, 2]].tolist() == [0, 0]
    assert best_chain(np.zeros((0, 2, 2)), np.zeros((0, 2)), np.zeros((0, 2), bool), WALK.step_m).shape == (0,)
    assert best_chain(np.zeros((2, 0, 2)), np.zeros((2, 0)), np.zeros((2, 0), bool), WALK.step_m).tolist() == [0, 0]


def test_a_walk_of_one_photo_is_answered_as_the_photo_alone():
    """The agreed match counts, although another looks more alike: there is no walk that leads elsewhere."""
    poses = Poses(np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0], [900.0, 0.0], [500.0, 0.0]]), np.zeros(5))
    images = ImageSet.of(Path(), [f"{i}.jpg" for i in range(5)], poses, columns={"file": np.array([b"a"] * 5)})
    nearest = Ranking(np.array([[3, 0, 1, 2, 4]]), np.array([[0.50, 0.51, 0.52, 0.53, 1.4]], np.float32))
    judge = Judge(images, lambda vectors, k: nearest, Calibration(5, None, None))
    query = np.zeros((1, 8), np.float32)
    (alone,) = judge.answers([Path("q.jpg")], query, {}, 4)
    walk = locate_walk(judge, [Path("q.jpg")], query, {}, 4)
    assert alone.matches[0].place.x < 10
    assert walk.answers == (alone,)
    assert walk.agreement == 1.0
