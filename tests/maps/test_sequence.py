"""Walks: the cheapest chain by trying all, weak photos carried by strong ones, and the others left alone."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from simulated import World, simulated_map, tiny, walks

from covis.images import ImageSet
from covis.maps.calibration import Calibration
from covis.maps.locating import Judge
from covis.maps.settings import WALK
from covis.maps.walks import best_chain, locate_walk, step_of
from covis.poses import PLACE_M, Poses
from covis.ranking import Ranking

STEP_M = 50.0


def chain_cost(chain, xy, probability):
    total = -sum(np.log(probability[t, j]) for t, j in enumerate(chain))
    for t in range(1, len(chain)):
        gap = np.linalg.norm(xy[t, chain[t]] - xy[t - 1, chain[t - 1]])
        total += WALK.jump_cost * min(max((gap - STEP_M) / STEP_M, 0), 2)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_the_chain_is_the_cheapest_of_all(seed):
    rng = np.random.default_rng(seed)
    xy, probability = rng.uniform(0, 400, (5, 4, 2)), np.sort(rng.uniform(0, 1, (5, 4)), axis=1)[:, ::-1].copy()
    probability[2, 3] = np.nan
    chain = best_chain(xy, probability, STEP_M)
    allowed = [c for c in itertools.product(range(4), repeat=5) if c[2] != 3]
    assert chain_cost(chain, xy, probability) == pytest.approx(min(chain_cost(c, xy, probability) for c in allowed))


def test_photos_without_matches_do_not_break_the_chain():
    xy = np.zeros((3, 2, 2))
    probability = np.array([[0.9, 0.1], [np.nan, np.nan], [0.9, 0.1]])
    assert best_chain(xy, probability, STEP_M)[[0, 2]].tolist() == [0, 0]
    assert best_chain(np.zeros((0, 2, 2)), np.zeros((0, 2)), STEP_M).shape == (0,)
    assert best_chain(np.zeros((2, 0, 2)), np.zeros((2, 0)), STEP_M).tolist() == [0, 0]


def test_the_step_is_that_of_the_photos_of_the_walk():
    xy = np.cumsum([[0.0, 0.0], *[[80.0, 0.0]] * 5, [5000.0, 0.0]], axis=0)
    assert step_of(xy, np.ones(7)) == pytest.approx(80)
    assert step_of(xy / 100, np.ones(7)) == WALK.least_step_m
    assert step_of(xy[:1], np.ones(1)) == WALK.least_step_m
    assert step_of(xy, np.full(7, np.nan)) == WALK.least_step_m


def test_a_map_without_probabilities_answers_each_photo_alone():
    """The agreed match counts, although another looks more alike."""
    poses = Poses(np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0], [900.0, 0.0], [500.0, 0.0]]), np.zeros(5))
    images = ImageSet.of(Path(), [f"{i}.jpg" for i in range(5)], poses, columns={"file": np.array([b"a"] * 5)})
    nearest = Ranking(np.array([[3, 0, 1, 2, 4]] * 2), np.array([[0.50, 0.51, 0.52, 0.53, 1.4]] * 2, np.float32))
    judge = Judge(images, lambda vectors, k: nearest, Calibration(5, None, None))
    photos, query = [Path("q.jpg")] * 2, np.zeros((2, 8), np.float32)
    alone = judge.answers(photos, query, {}, 4)
    walk = locate_walk(judge, photos, query, {}, 4)
    assert alone[0].matches[0].place.x < 10
    assert walk.answers == tuple(alone)
    assert walk.agreement == 1.0


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A map of 40 walks whose photos often fail, and the answers to 30 new ones as they are and thinned out."""
    hard = World(tiny().dim, 4, noise=1.7)
    map_, world = simulated_map(tmp_path_factory.mktemp("town"), groups=40, photos=15, seed=4, world=hard)
    rng = np.random.default_rng(7)
    xy, _ = walks(rng, 30, 24)
    return map_, xy.reshape(30, 24, 2), world.describe(xy, rng).reshape(30, 24, -1)


@pytest.mark.parametrize(("every", "gain"), [(1, 0.02), (12, 0.0)])
def test_a_walk_is_answered_no_worse_than_its_photos_alone(town, every, gain):
    """Clearly better where photos follow closely; no worse where they are 70 m apart in a map of 220 m."""
    map_, xy, vectors = town
    judge, asked = map_.judge(), [Path("q.jpg")] * (24 // every)
    right = {True: [], False: []}
    for places, described in zip(xy, vectors, strict=True):
        walk = locate_walk(judge, asked, described[::every], {}, 5).answers
        alone = judge.answers(asked, described[::every], {}, 5)
        for chained, answers in ((True, walk), (False, alone)):
            at = np.array([(a.matches[0].place.x, a.matches[0].place.y) for a in answers])
            right[chained] += (np.hypot(*(at - places[::every]).T) <= PLACE_M).tolist()
    assert 0.3 < np.mean(right[False]) < 0.95
    assert np.mean(right[True]) >= np.mean(right[False]) + gain
