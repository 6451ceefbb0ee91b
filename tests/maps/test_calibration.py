"""Promises of a calibrated map, kept on walks that it has never seen."""

import json
from dataclasses import replace

import numpy as np
import pytest
from simulated import World, image_set, simulated_map, store, tiny, walks

from covis.core.errors import InputError
from covis.logistic import Logistic, expected_calibration_error
from covis.maps.calibration import Calibration, Recalibration, calibrate, hold_out
from covis.maps.evidence import Found, conformal_radius, gather
from covis.maps.map import Map
from covis.maps.settings import CALIBRATION
from covis.maps.storage import folder, layout
from covis.poses import PLACE_M, Poses
from covis.ranking import Ranking
from covis.search import Consensus


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A map of 60 walks, and the answers to 60 new ones."""
    hard = World(tiny().dim, 4, noise=1.5)
    map_, world = simulated_map(tmp_path_factory.mktemp("town"), groups=60, photos=15, seed=4, world=hard)
    rng = np.random.default_rng(77)
    xy, _ = walks(rng, 60, 15)
    return map_, xy, map_.judge()(world.describe(xy, rng), 5)


def test_the_map_calibrates_itself(town):
    map_, _, _ = town
    summary = map_.calibration.summary()
    assert summary["calibrated"]
    assert summary["method"] == "groups"
    assert summary["queries"] == 900
    assert summary["expected_calibration_error"] < 0.06
    assert summary["overlap"]["method"] == "fitted"
    assert sum(r["count"] for r in summary["reliability"]) == 900 + len(map_.calibration.elsewhere)


def right_of(map_, xy, judged):
    gap = map_.images.poses.xy[judged.ranking.ids[:, 0]] - xy
    return np.hypot(*gap.T) <= PLACE_M


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
    map_, _, judged = town
    back = Calibration.from_dict(json.loads(json.dumps(map_.calibration.to_dict())))
    assert back.summary() == Map.open(map_.path).calibration.summary()
    p = judged.probability[:, 0]
    assert np.array_equal(back.radius_m(p), Map.open(map_.path).calibration.radius_m(p))


def test_a_small_map_answers_by_what_other_small_maps_are_like_and_promises_nothing(tmp_path):
    map_, world = simulated_map(tmp_path, groups=2, photos=20)
    assert map_.calibration.held_out is None
    assert map_.calibration.promised() is None
    assert "only 40 photos" in map_.calibration.note
    rng = np.random.default_rng(0)
    judged = map_.judge()(world.describe(map_.images.poses.xy[:3], rng), 5)
    assert ((judged.probability[:, 0] > 0) & (judged.probability[:, 0] < 1)).all()
    assert np.isnan(judged.radius_m).all()
    answer = map_.judge().answer(map_.path, judged, 0, 3)
    assert not answer.confident
    assert "other small maps" in answer.note
    assert Map.open(map_.path).calibration.summary()["calibrated"] is False


@pytest.mark.parametrize("wrong", [0, 4])
def test_a_map_that_is_hardly_ever_wrong_says_so(wrong):
    """By the rule of three: of 200 answers without a mistake, 98.5 % are right at least, at a rate of 95 %."""
    from covis.maps.evidence import threshold_for

    p, right = np.linspace(0.9, 1, 200), np.arange(200) >= wrong
    walk = np.arange(200) // 10
    assert threshold_for(0.99, p, right, walk) is None or wrong
    assert threshold_for(0.9, p, right, walk) == p[0]
    first = Logistic.fit_ceiling(p[:, None], right, walk)
    assert 0.9 < first(p[:, None]).mean() < 1


def test_one_walk_alone_is_held_out_by_its_neighbours(tmp_path):
    map_, _ = simulated_map(tmp_path, groups=1, photos=200, world=World(tiny().dim, 1, noise=0.4))
    assert map_.calibration.method == "neighbours"
    from covis.maps.calibration import hold_out

    held = hold_out(map_.images, map_.descriptors)
    gap = np.abs(held.ids - held.queries[:, None])[held.ids >= 0]
    assert gap.min() > CALIBRATION.neighbours


def test_photos_of_one_group_never_answer_each_other(town):
    from covis.maps.calibration import hold_out

    map_, _, _ = town
    held = hold_out(map_.images, map_.descriptors)
    group = map_.images.group
    assert (group[held.ids] != group[held.queries][:, None])[held.ids >= 0].all()
    for g in np.unique(group):
        assert len(np.unique(held.fold[group[held.queries] == g])) == 1


def map_of_two(tmp_path, card):
    model = tiny()
    model.card.update(card)
    images = image_set(tmp_path, np.array([[0.0, 0], [50, 0]]))
    vectors = World(model.dim).describe(images.poses.xy, np.random.default_rng(0))
    given = store(tmp_path / "s", images, vectors, model.fingerprint())
    return Map.create(tmp_path / "map", images, model, descriptors=given)


GCL = {"recipe": {"loss": {"type": "GeneralizedContrastive", "margin": 0.5}}}


def test_a_gcl_model_needs_no_fit_for_its_overlap(tmp_path):
    map_ = map_of_two(tmp_path, {**GCL, "training": {"step": 100}})
    assert map_.calibration.overlap(np.array([0.0, 0.125, 0.5, 0.9, np.inf])).tolist() == [1, 0.75, 0, 0, 0]


def test_a_network_that_a_gcl_recipe_did_not_train_has_no_overlap(tmp_path):
    assert map_of_two(tmp_path, GCL).calibration.overlap is None


def test_evidence_by_hand():
    """Two matches of two walks here, one of the first walk elsewhere, one missing."""
    poses = Poses(np.array([(0, 0), (10, 0), (500, 0)], float), np.full(3, np.nan))
    ranking = Ranking(np.array([[0, 1, 2, -1]]), np.array([[0.2, 0.3, 0.7, np.inf]], np.float32))
    turn = np.radians([0, 60, 120])  # similarities of two: 0.5, 0.5, −0.5
    together = Found.of(ranking, np.column_stack([np.cos(turn), np.sin(turn)]), np.arange(3))
    found = gather(Consensus(poses, sharpness=0.0), together, np.array([7, 8, 7]))
    squared = np.array([0.04, 0.09, 0.49])
    weight = np.exp(-(squared - 0.04) / min(0.7 * np.mean(squared - 0.04), 0.25 * 0.04))
    share = weight[:2].sum() / weight.sum()
    votes = (weight[0] + weight[1] * np.exp(-((10 / 25) ** 2) / 2)) / weight.sum()
    lead = 0.7**2 - 0.2**2
    logit = [np.log(min(s, 0.98) / (1 - min(s, 0.98))) for s in (share, votes)]
    assert found.first[0] == pytest.approx([0.2, lead, lead**0.5, *logit, np.log(2), lead, 0.5 / 3], abs=1e-6)
    assert found.other[0, :3, :3] == pytest.approx(np.array([[1, 0, 0], [1, 0.4, 0.05], [0, 0, 0.45]]), abs=1e-6)
    assert found.found.tolist() == [[True, True, True, False]]
    assert found.about_others(np.array([0.5]))[0, :, 5:] == pytest.approx(np.zeros((4, 2)))


def test_probabilities_fall_along_the_ranking(town):
    map_, xy, judged = town
    p = judged.probability
    assert (np.diff(p, axis=1)[~np.isnan(p[:, 1:])] < 0).all()
    gap = map_.images.poses.xy[judged.ranking.ids[:, :20]] - xy[:, None]
    right = np.hypot(*np.moveaxis(gap, 2, 0)) <= PLACE_M
    assert expected_calibration_error(p[:, 1:5].ravel(), right[:, 1:5].ravel()) < 0.1
    for q in range(5):
        ids = judged.ranking.ids[q]
        assert len(set(ids[ids >= 0])) == (ids >= 0).sum()


def test_copies_of_a_photo_are_told_apart_in_what_is_printed(town):
    map_, _, _ = town
    judge = map_.judge()
    twice = np.concatenate([map_.images.poses.xy[:1]] * 3 + [map_.images.poses.xy[1:]])
    images = image_set(map_.path, twice)
    images = replace(images, columns={"file": np.array([b""] * len(images)), "row": np.zeros(len(images), int)})
    alike = np.tile(np.arange(20), (2, 1))
    ranking = Ranking(alike, np.full(alike.shape, 0.5, np.float32))
    told = replace(judge, images=images, search=lambda *_: ranking).answers(
        [map_.path] * 2, np.zeros((2, map_.dim), np.float32), {}, 20
    )
    for answer in told:
        shown = [match["probability"] for match in answer.to_dict()["matches"]]
        assert len(shown) == 20
        assert (np.diff(shown) < 0).all()


def test_a_share_of_a_known_probability_is_fitted():
    rng = np.random.default_rng(5)
    x, cap = rng.normal(size=(40000, 2)), rng.uniform(0.2, 1.0, 40000)
    right = rng.random(40000) < cap / (1 + np.exp(-(1.5 * x[:, 0] - 0.7 * x[:, 1] + 0.4)))
    fitted = Logistic.fit_below(x, right, cap)
    weights = np.array(fitted.weights) / np.array(fitted.scale)
    assert weights == pytest.approx([1.5, -0.7], abs=0.08)
    assert fitted.bias - weights @ np.array(fitted.mean) == pytest.approx(0.4, abs=0.08)


def test_photos_that_the_model_learned_from_are_not_asked_again(tmp_path):
    map_, _ = simulated_map(tmp_path, groups=40, photos=15)
    held = hold_out(map_.images, map_.descriptors, seen=450)
    assert held.queries.min() >= 450
    assert (held.ids < 450).any()
    fitted = calibrate(map_.images, map_.descriptors, seen=450)
    told = fitted.to_dict() | {"seen": 450, "photos": 450}
    stands = Recalibration()(told, 150, map_.images, map_.descriptors)
    assert (stands["changes"], stands["held_out"]) == (150, told["held_out"])  # 150 later photos do not suffice
    renewed = Recalibration()(told | {"seen": 300}, 300, map_.images, map_.descriptors)
    assert (renewed["changes"], renewed["seen"], len(renewed["held_out"])) == (0, 300, 300)


def test_consensus_is_chosen_for_the_map(town):
    map_, _, _ = town
    chosen = map_.calibration.consensus(map_.images.poses)
    assert chosen.facts()["sharpness"] == map_.calibration.sharpness
    assert map_.calibration.summary()["consensus"]["sharpness"] == map_.calibration.sharpness


def test_small_changes_keep_the_calibration_and_large_ones_renew_it(tmp_path):
    map_, _ = simulated_map(tmp_path, groups=12, photos=15)
    fitted_on = map_.calibration.photos
    little = map_.remove([map_.images.name(i) for i in range(5)])
    assert (little.calibration.photos, little.calibration.changes) == (fitted_on, 5)
    much = little.remove([little.images.name(i) for i in range(15)])
    assert (much.calibration.photos, much.calibration.changes) == (160, 0)
    assert calibrate(much.images, much.descriptors, bank=much.bank).summary() == much.calibration.summary()


def test_a_map_calibrates_anew_when_told(tmp_path, capsys):
    from covis.core import artifacts

    map_, _ = simulated_map(tmp_path, groups=12, photos=15)
    state = folder.read_state(map_.path)[0]
    old = Calibration(180, None, None, note="not calibrated").to_dict()
    folder.write_state(map_.path, replace(state, calibration=old, version=2), None)
    assert Map.open(map_.path).calibration.probability is None
    assert Map.open(map_.path).recalibrate().calibration.summary()["calibrated"]
    assert Map.open(map_.path).calibration.summary() == map_.calibration.summary()
    learned = artifacts.read_json(folder.version_folder(map_.path, 3) / layout.CALIBRATION) | {"seen": 180}
    folder.write_state(map_.path, replace(folder.read_state(map_.path)[0], calibration=learned, version=4), None)
    with pytest.raises(InputError, match="cannot be used as queries again"):
        Map.open(map_.path).recalibrate()


def test_photos_seen_are_counted_on_when_segments_merge(tmp_path):

    map_, _ = simulated_map(tmp_path, groups=12, photos=15)
    state = replace(map_.state, calibration={**map_.state.calibration, "seen": 180}, version=2)
    folder.write_state(map_.path, state, None)
    rest = Map.open(map_.path).remove([map_.images.name(i) for i in range(0, 180, 2)] + [map_.images.name(1)])
    assert rest.state.rows.tolist() == list(range(89))
    assert rest.state.calibration["seen"] == 89


def test_photos_seen_are_counted_on_when_maps_travel(tmp_path):
    from covis.maps.archive import export_map, import_map

    map_, _ = simulated_map(tmp_path / "a", groups=12, photos=15)
    state = replace(map_.state, calibration={**map_.state.calibration, "seen": 180}, version=2)
    folder.write_state(map_.path, state, None)
    learned = Map.open(map_.path).remove([map_.images.name(i) for i in range(10)])
    export_map(learned, tmp_path / "a.covis")
    assert import_map(tmp_path / "a.covis", tmp_path / "b").state.calibration["seen"] == 170


def test_sure_answers_of_few_walks_borrow_the_errors_of_less_sure_ones():
    """The surest answers come from five walks, too few for 90 %: their radius counts the answers below them too."""
    walk = np.repeat(np.arange(20), 20)
    probability = np.where(walk < 5, 0.99, 0.5)
    error_m = np.where(walk < 5, 1.0, 10.0) + walk / 100
    held = np.column_stack([probability, np.ones(len(walk)), error_m, walk])
    sure, unsure = Calibration(400, None, None, held_out=held).radius_m(np.array([0.99, 0.5]), 0.9)
    assert sure == conformal_radius(error_m, 0.9, walk)
    assert unsure == conformal_radius(error_m[walk >= 5], 0.9, walk[walk >= 5])
    few = Calibration(400, None, None, held_out=held[walk < 8]).radius_m(np.array([0.99, 0.5]), 0.9)
    assert np.isnan(few).all(), "eight walks promise no radius at 90 %"
