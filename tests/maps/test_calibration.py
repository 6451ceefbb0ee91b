"""Promises of a calibrated map, kept on walks that it has never seen."""

import numpy as np
import pytest
from simulated import World, image_set, simulated_map, store, tiny, walks

from covis.maps.calibration import RATE, Calibration, calibrate, match_features
from covis.maps.fusion import PLACE_RADIUS_M
from covis.maps.map import Map
from covis.maps.probability import expected_calibration_error


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A map of 60 walks, and the answers to 60 new ones."""
    hard = World(tiny().dim, 4, noise=1.5)
    map_, world = simulated_map(tmp_path_factory.mktemp("town"), groups=60, photos=15, seed=4, world=hard)
    rng = np.random.default_rng(77)
    xy, _ = walks(rng, 60, 15)
    return map_, xy, map_.judge(rate=RATE)(world.describe(xy, rng), 5)


def test_the_map_calibrates_itself(town):
    map_, _, _ = town
    summary = map_.calibration.summary()
    assert summary["calibrated"]
    assert summary["method"] == "groups"
    assert summary["queries"] == 900
    assert summary["expected_calibration_error"] < 0.06
    assert summary["overlap"]["method"] == "fitted"
    assert sum(r["count"] for r in summary["reliability"]) == 900


def right_of(map_, xy, judged):
    gap = map_.images.poses.xy[judged.ranking.ids[:, 0]] - xy
    return np.hypot(*gap.T) <= PLACE_RADIUS_M


def test_probabilities_hold_on_new_walks(town):
    map_, xy, judged = town
    right = right_of(map_, xy, judged)
    p = judged.probability[:, 0]
    assert 0.2 < right.mean() < 0.995  # neither hopeless nor trivial, or this would test nothing
    assert expected_calibration_error(p, right) < 0.08
    assert p[right].mean() > p[~right].mean() + 0.1


def test_confident_answers_are_right_at_the_precision_asked_for(town):
    map_, xy, judged = town
    right = right_of(map_, xy, judged)
    for precision in (0.99, 0.95):
        sure = judged.probability[:, 0] >= map_.calibration.threshold(precision)
        assert sure.sum() > 90
        assert right[sure].mean() >= precision - 0.015
    assert map_.calibration.threshold(0.95) <= map_.calibration.threshold(0.99)


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.9])
def test_true_positions_lie_within_the_radius_at_the_stated_rate(town, rate):
    map_, xy, judged = town
    radius = map_.calibration.radius_m(judged.probability[:, 0], rate)
    error = np.hypot(*(judged.fused.xy - xy).T)
    assert np.isfinite(radius).all()
    # New walks search the whole map, held-out ones all but themselves: the rate may only be exceeded a little.
    assert rate - 0.04 <= np.mean(error <= radius) <= rate + 0.08


def test_fusing_beats_the_best_match(town):
    map_, xy, judged = town
    right = right_of(map_, xy, judged)
    best = np.hypot(*(map_.images.poses.xy[judged.ranking.ids[:, 0]] - xy).T)
    fused = np.hypot(*(judged.fused.xy - xy).T)
    assert np.median(fused[right]) < np.median(best[right])


def test_overlap_falls_with_distance_and_stays_in_range(town):
    map_, _, _ = town
    psi = map_.calibration.overlap(np.array([0.0, 0.3, 0.6, 0.9, 1.2, 1.6, np.inf]))
    assert np.all((psi >= 0) & (psi <= 1))
    assert np.all(np.diff(psi) <= 1e-12)
    assert psi[0] > psi[-1]


def test_it_travels_through_json(town):
    import json

    map_, _, judged = town
    back = Calibration.from_dict(json.loads(json.dumps(map_.calibration.to_dict())))
    assert back.summary() == Map.open(map_.path).calibration.summary()
    p = judged.probability[:, 0]
    assert np.array_equal(back.radius_m(p), Map.open(map_.path).calibration.radius_m(p))


def test_a_small_map_says_that_it_cannot_tell(tmp_path):
    map_, world = simulated_map(tmp_path, groups=2, photos=20)
    assert map_.calibration.held_out is None
    assert "40 photos are too few" in map_.calibration.note
    rng = np.random.default_rng(0)
    judged = map_.judge(rate=RATE)(world.describe(map_.images.poses.xy[:3], rng), 5)
    assert judged.probability is None
    assert np.isnan(judged.radius_m).all()
    assert np.isfinite(judged.fused.xy).all()


def test_one_walk_alone_is_held_out_by_its_neighbours(tmp_path):
    map_, _ = simulated_map(tmp_path, groups=1, photos=200, world=World(tiny().dim, 1, noise=0.4))
    assert map_.calibration.method == "neighbours"
    from covis.maps.calibration import NEIGHBOURS, hold_out

    held = hold_out(map_.images, map_.descriptors)
    gap = np.abs(held.ids - held.queries[:, None])[held.ids >= 0]
    assert gap.min() > NEIGHBOURS


def test_photos_of_one_group_never_answer_each_other(town):
    from covis.maps.calibration import hold_out

    map_, _, _ = town
    held = hold_out(map_.images, map_.descriptors)
    group = map_.images.group
    assert (group[held.ids] != group[held.queries][:, None])[held.ids >= 0].all()
    for g in np.unique(group):
        assert len(np.unique(held.fold[group[held.queries] == g])) == 1


def test_a_gcl_model_needs_no_fit_for_its_overlap(tmp_path):
    model = tiny()
    model.card["recipe"] = {"loss": {"type": "GeneralizedContrastive", "margin": 0.5}}
    images = image_set(tmp_path, np.array([[0.0, 0], [50, 0]]))
    vectors = World(model.dim).describe(images.poses.xy, np.random.default_rng(0))
    given = store(tmp_path / "s", images, vectors, model.fingerprint())
    map_ = Map.create(tmp_path / "map", images, model, descriptors=given)
    assert map_.calibration.overlap(np.array([0.0, 0.125, 0.5, 0.9, np.inf])).tolist() == [1, 0.75, 0, 0, 0]
    assert map_.calibration.probability is None


def test_features_by_hand():
    """Two matches here, one elsewhere, one missing."""
    xy = np.array([[(0, 0), (10, 0), (500, 0), (0, 0)]], float)
    found = np.array([[True, True, True, False]])
    features = match_features(xy, np.array([[0.2, 0.3, 0.7, np.inf]]), found)[0]
    assert features[0] == pytest.approx([1, 0.2, 0.2, 0.5, 2 / 3])
    assert features[1] == pytest.approx([0, 0.3, 0, 0.4, 2 / 3])
    assert features[2] == pytest.approx([0, 0.7, 0, -0.5, 1 / 3])


def test_small_changes_keep_the_calibration_and_large_ones_renew_it(tmp_path):
    map_, _ = simulated_map(tmp_path, groups=12, photos=15)
    fitted_on = map_.calibration.photos
    little = map_.remove([map_.images.name(i) for i in range(5)])
    assert (little.calibration.photos, little.calibration.changes) == (fitted_on, 5)
    much = little.remove([little.images.name(i) for i in range(15)])
    assert (much.calibration.photos, much.calibration.changes) == (160, 0)
    assert calibrate(much.images, much.descriptors).summary() == much.calibration.summary()
