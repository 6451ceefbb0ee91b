"""Agreement of results about their place: who is put first, and what stays as it was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.poses import Poses
from covis.ranking import Ranking
from covis.search import Consensus


def poses(xy, heading=None):
    xy = np.asarray(xy, float)
    return Poses(xy, np.full(len(xy), np.nan) if heading is None else np.asarray(heading, float))


ONE_AND_SEVEN = Ranking(np.arange(8)[None], np.array([[0.80, *np.linspace(0.82, 0.84, 7)]]))


def test_a_look_alike_elsewhere_gives_way_to_those_who_stand_together():
    map_poses = poses([[500, 0], *([3 * i, 0] for i in range(7))])
    agreed = Consensus(map_poses, sharpness=0.7)(ONE_AND_SEVEN)
    assert agreed.ids[0, 0] != 0
    assert agreed.distances[0, 0] == ONE_AND_SEVEN.distances[0, agreed.ids[0, 0]]
    assert Consensus(map_poses, depth=1)(ONE_AND_SEVEN).ids.tolist() == ONE_AND_SEVEN.ids.tolist()


def test_a_photo_whose_compass_was_off_gives_way_too():
    together = np.column_stack([np.arange(8.0), np.zeros(8)])
    assert Consensus(poses(together, [200, *range(20, 27)]), sharpness=0.7)(ONE_AND_SEVEN).ids[0, 0] != 0
    unknown = Consensus(poses(together)).votes(ONE_AND_SEVEN.ids, ONE_AND_SEVEN.distances)
    alike = Consensus(poses(together, [20] * 8)).votes(ONE_AND_SEVEN.ids, ONE_AND_SEVEN.distances)
    assert np.array_equal(unknown, alike), "an unknown heading neither helps nor hurts"


def test_the_query_itself_is_not_outvoted():
    together = poses([[900, 0], *([[0, i] for i in range(19)])])
    distances = np.array([[1e-4, *np.linspace(0.8, 0.9, 19)]])
    assert Consensus(together)(Ranking(np.arange(20)[None], distances)).ids[0, 0] == 0


def test_photos_without_a_place_do_not_vote():
    map_poses = poses([[np.nan, np.nan], [np.nan, np.nan], [0, 0], [1, 0]])
    found = Ranking(np.array([[0, 1, 2, 3]]), np.array([[0.80, 0.81, 0.82, 0.83]]))
    assert Consensus(map_poses)(found).ids[0, 0] in (2, 3)


def test_few_and_no_results():
    map_poses = poses([[0, 0], [9, 9]])
    padded = Ranking(np.array([[1, -1, -1], [-1, -1, -1]]), np.array([[0.5, np.inf, np.inf], [np.inf] * 3]))
    agreed = Consensus(map_poses)(padded)
    assert agreed.ids.tolist() == padded.ids.tolist()
    assert agreed.distances.tolist() == padded.distances.tolist()
    empty = Ranking(np.zeros((3, 0)), np.zeros((3, 0)))
    assert Consensus(poses(np.zeros((0, 2))))(empty).ids.shape == (3, 0)


def street(rng, voices):
    """100 places in a row with a true photo each; `voices` more photos stand at the place of a look-alike elsewhere."""
    true, false = np.arange(100), 100 + np.arange(100 * voices).reshape(100, voices)
    xy = np.zeros((100 + 100 * voices, 2))
    xy[true, 0] = 200.0 * true
    xy[false, 0] = (200.0 * ((true + 50) % 100))[:, None] + rng.uniform(-5, 5, false.shape)
    distances = np.column_stack([np.full(100, 0.8), np.sort(rng.uniform(0.9, 0.95, false.shape), axis=1)])
    ranking = Ranking(np.column_stack([true, false]), distances)
    return poses(xy), ranking, poses(xy[true])


def test_it_learns_to_be_silent_where_the_best_is_right():
    map_poses, ranking, asked = street(np.random.default_rng(0), 12)
    fitted = Consensus(map_poses).fit(ranking, asked)
    assert (fitted(ranking).ids[:, 0] == ranking.ids[:, 0]).all()
    assert fitted.sharpness < 0.45


def test_it_learns_to_speak_where_the_others_are_right():
    map_poses, ranking, asked = street(np.random.default_rng(0), 12)
    elsewhere = poses(np.roll(asked.xy, 50, axis=0))  # now the crowd stands where the queries do
    fitted = Consensus(map_poses).fit(ranking, elsewhere)
    assert (fitted(ranking).ids[:, 0] != ranking.ids[:, 0]).mean() > 0.9
    assert fitted.sharpness >= 0.45


def test_without_answers_the_default_stays():
    map_poses, ranking, asked = street(np.random.default_rng(0), 3)
    nowhere = poses(np.full((100, 2), np.nan))
    far = poses(asked.xy + 1e5)
    for known in (nowhere, far):
        assert Consensus(map_poses).fit(ranking, known).facts() == Consensus(map_poses).facts()
    empty = Ranking(np.zeros((100, 0)), np.zeros((100, 0)))
    assert Consensus(map_poses).fit(empty, asked).facts() == Consensus(map_poses).facts()


def test_no_sharpness_leaves_the_order():
    map_poses, ranking, _ = street(np.random.default_rng(0), 5)
    assert Consensus(map_poses, sharpness=0.0)(ranking).ids.tolist() == ranking.ids.tolist()


@pytest.mark.parametrize(
    "wrong", [{"sharpness": -0.1}, {"depth": 0}, {"radius_m": 0.0}, {"radius_m": float("nan")}, {"angle_deg": -1.0}]
)
def test_refuses_nonsense(wrong):
    with pytest.raises(InputError, match="consensus"):
        Consensus(poses([[0, 0]]), **wrong)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 14))
@settings(max_examples=60, deadline=None)
def test_one_result_moves_to_the_front_and_the_rest_keep_their_order(seed, k, depth):
    rng = np.random.default_rng(seed)
    map_poses = poses(rng.uniform(0, 200, (30, 2)), np.where(rng.random(30) < 0.2, np.nan, rng.uniform(0, 360, 30)))
    ids = np.stack([rng.permutation(30)[:k] for _ in range(5)])
    distances = np.sort(rng.uniform(0, 2, (5, k)), axis=1)
    lost = np.arange(k) >= rng.integers(0, k + 1, (5, 1))
    found = Ranking(np.where(lost, -1, ids), np.where(lost, np.inf, distances))
    consensus = Consensus(map_poses, depth)
    agreed = consensus(found)
    votes = consensus.votes(found.ids[:, :depth], found.distances[:, :depth])
    for q in range(5):
        before, after = found.ids[q].tolist(), agreed.ids[q].tolist()
        first = int(votes[q].argmax())
        assert after == [before[first], *before[:first], *before[first + 1 :]]
        pairs = zip(agreed.ids[q], agreed.distances[q], strict=True)
        assert sorted(pairs) == sorted(zip(found.ids[q], found.distances[q], strict=True))
    assert (votes[found.ids[:, :depth] < 0] == -1).all()
    assert np.isfinite(votes).all()
