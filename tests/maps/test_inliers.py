"""Local features in common, as evidence of a map's probabilities."""

import numpy as np
import pytest
from PIL import Image
from simulated import World, simulated_map, tiny, walks

from covis.core.errors import InputError
from covis.logistic import expected_calibration_error
from covis.maps.evidence import Evidence
from covis.maps.inliers import learn_inliers, with_inliers
from covis.maps.locating import LocateOptions
from covis.maps.map import Map
from covis.poses import PLACE_M
from covis.ranking import Ranking

pytest.importorskip("cv2")
_PIXELS_PER_M, _SIDE = 2, 96


def paint(folder, names, xy, seed=0):
    """Views of a floor from above, each 48 m wide: photos of one place show the same patterns."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (110, 110, 3), np.uint8))
    floor = coarse.resize((640, 640), Image.Resampling.BICUBIC)
    for name, (x, y) in zip(names, xy, strict=True):
        left, top = int(x * _PIXELS_PER_M) + 20, int(y * _PIXELS_PER_M) + 20
        floor.crop((left, top, left + _SIDE, top + _SIDE)).save(folder / name, quality=92)


@pytest.fixture(scope="module")
def floor(tmp_path_factory):
    """A map of walks over a painted floor, described badly, that has learned what inliers tell; and new photos of it."""
    folder = tmp_path_factory.mktemp("floor")
    map_, world = simulated_map(folder, groups=11, photos=8, seed=3, world=World(tiny().dim, 3, noise=2.5))
    paint(folder, [map_.images.name(i) for i in range(len(map_))], map_.images.poses.xy)
    with pytest.raises(InputError, match="is not calibrated for inliers"):
        map_.locate(map_.file(0), options=LocateOptions(inliers=True))
    told = learn_inliers(map_, "sift")
    rng = np.random.default_rng(8)
    xy, _ = walks(rng, 6, 8)
    new = [f"new-{i}.jpg" for i in range(len(xy))]
    paint(folder, new, xy)
    return map_, told, xy, [folder / name for name in new], world.describe(xy, rng)


def brier(p, right):
    return float(np.mean((p - right) ** 2))


def test_held_out_photos_are_judged_better_with_inliers(floor):
    map_, told, *_ = floor
    plain = map_.calibration.held_out
    assert len(told.held_out) == len(plain)
    assert brier(*told.held_out[:, :2].T) < 0.8 * brier(*plain[:, :2].T)


def test_new_photos_are_judged_better_with_inliers(floor):
    map_, _, xy, photos, vectors = floor
    judge = Map.open(map_.path).judge()
    scores, errors = [], []
    for chosen in (judge, with_inliers(map_, judge, photos)):
        judged = chosen(vectors, 5)
        right = np.hypot(*(map_.images.poses.xy[judged.ranking.ids[:, 0]] - xy).T) <= PLACE_M
        scores.append(brier(judged.probability[:, 0], right))
        errors.append(expected_calibration_error(judged.probability[:, 0], right))
    assert 0.1 < right.mean() < 0.95
    assert scores[1] < 0.8 * scores[0]
    assert errors[1] < 0.12


def test_answers_with_inliers_come_from_the_map(floor):
    map_, _, _, photos, _ = floor
    [plain], [counted] = (map_.locate(photos[0], options=LocateOptions(inliers=inliers)) for inliers in (False, True))
    assert [m.image for m in plain.matches][:1] == [m.image for m in counted.matches][:1]
    assert plain.probability != counted.probability


def test_inliers_by_hand():
    """Two of three matches at the first's place: the most in common there, and elsewhere."""
    ranking = Ranking(np.array([[4, 7, 9, -1]]), np.array([[0.1, 0.2, 0.3, np.inf]], np.float32))
    xy = np.array([[(0.0, 0.0), (10.0, 0.0), (90.0, 0.0), (0.0, 0.0)]])
    evidence = Evidence(ranking, xy, np.zeros((1, 4)), np.zeros((1, 8)), np.zeros((1, 4, 5)))
    more = evidence.with_inliers(np.array([[3, 12, 5, 99]]))
    assert more.first[0, 8:] == pytest.approx(np.log([13, 6]))


def test_a_map_whose_model_has_seen_its_photos_needs_the_questions_of_its_fit(floor, monkeypatch):
    map_, *_ = floor
    monkeypatch.setitem(map_.state.calibration, "seen", 5)
    with pytest.raises(InputError, match="give --inliers to covis index"):
        learn_inliers(map_, "sift")


def test_unknown_features_are_told(floor):
    with pytest.raises(InputError, match="sift"):
        learn_inliers(floor[0], "sfit")
