"""Photos of places that a map does not have: they are told as such, and get no confident answer."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from simulated import World, simulated_map, tiny, walks

from covis.core.errors import Damaged
from covis.maps.archive import export_map, import_map
from covis.maps.care import check_map, repair_map
from covis.maps.elsewhere import bank_images
from covis.maps.locating import LocateOptions
from covis.maps.map import Map
from covis.maps.settings import CALIBRATION, PROMISE
from covis.maps.storage.layout import ELSEWHERE
from covis.search import rank


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A map of 40 walks, descriptors of its places on 40 new ones, and of places 5 km away."""
    map_, world = simulated_map(
        tmp_path_factory.mktemp("map"), groups=40, photos=15, seed=4, world=World(tiny().dim, 4, noise=1.0)
    )
    rng = np.random.default_rng(9)
    xy, _ = walks(rng, 40, 15)
    return map_, xy, world.describe(xy, rng), world.describe(xy + 5000.0, rng)


def test_places_that_the_map_lacks_get_no_confident_answer(asked):
    map_, _, here, away = asked
    threshold = map_.calibration.threshold(0.9)
    sure_here = (map_.judge()(here, 5).probability[:, 0] >= threshold).mean()
    sure_away = (map_.judge()(away, 5).probability[:, 0] >= threshold).mean()
    assert sure_here > 0.5
    assert sure_away <= 2 * PROMISE.elsewhere
    answers = map_.judge().answers([map_.path] * len(away), away, {}, 5)
    told = [answer for answer in answers if answer.absent]
    assert len(told) > 0.8 * len(answers)
    assert not any(answer.confident for answer in told)
    assert all("not in this map" in answer.verdict for answer in told)
    assert all(0.5 < answer.elsewhere <= 1 for answer in told)


def test_a_larger_share_from_elsewhere_lowers_every_probability_by_bayes_rule(asked):
    map_, _, here, _ = asked
    half, most = (
        np.array([a.elsewhere for a in map_.judge(LocateOptions(prior=p)).answers([map_.path] * 50, here[:50], {}, 5)])
        for p in (CALIBRATION.prior, 0.9)
    )
    odds = half / (1 - half) * 9
    assert most == pytest.approx(odds / (1 + odds), abs=1e-4)  # the judge stops at one in a million
    assert np.ptp(half) > 0.1


def test_an_area_never_raises_a_probability(asked):
    map_, xy, here, away = asked
    for vectors in (here, away):
        whole = map_.judge()(vectors, 5).probability[:, 0]
        for centre in xy[::150]:
            inside = np.hypot(*(map_.images.poses.xy - centre).T) <= 60
            judge = map_.judge()
            near = replace(
                judge, whole=judge,
                search=lambda v, k, inside=inside: rank(v, map_.descriptors, k, allowed=np.flatnonzero(inside)),
            )  # fmt: skip
            p = near(vectors, 5).probability[:, 0]
            assert np.nan_to_num(p - whole).max() <= 1e-9


def test_the_bank_is_drawn_once_and_travels_with_the_map(asked, tmp_path):
    pictures, family = bank_images()
    assert len(pictures) == len(family) > 200
    assert len(np.unique(family)) >= 8
    before = [pictures.path(i).stat().st_mtime_ns for i in range(len(pictures))]
    again, _ = bank_images()
    assert [again.path(i).stat().st_mtime_ns for i in range(len(again))] == before
    map_ = asked[0]
    export_map(map_, tmp_path / "map.covis")
    import_map(tmp_path / "map.covis", tmp_path / "there")
    np.testing.assert_array_equal(Map.open(tmp_path / "there").bank.descriptors, map_.bank.descriptors)


def test_a_map_that_lost_its_bank_is_damaged_and_can_be_repaired(asked, tmp_path):
    copy = tmp_path / "copy.map"
    shutil.copytree(asked[0].path, copy)
    shutil.rmtree(copy / ELSEWHERE)
    with pytest.raises(Damaged, match="map repair"):
        Map.open(copy).judge()
    assert [damage.part for damage in check_map(copy)] == [ELSEWHERE]
    repair_map(copy)
    assert not check_map(copy)
    assert np.array_equal(Map.open(copy).bank.descriptors, asked[0].bank.descriptors)
