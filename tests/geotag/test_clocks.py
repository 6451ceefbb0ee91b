"""Neighbours in time: their place, how sure it is, and clocks that differ."""

import numpy as np
import pytest

from covis.geotagging.clocks import Clocks
from covis.geotagging.library import LibraryPhoto

OFF_S = 220.0


def walk(camera, days, start_s=0.0, ahead_s=0.0, photos=12, every_s=60.0, zone=None, known=True):
    """Photos along a straight street at 1 m/s, each day again, and their places in the plane."""
    made, xy = [], []
    for day in days:
        for i in range(photos):
            true = 86400.0 * day + start_s + every_s * i + 500.0 * (day * day % 7)
            local = true + ahead_s
            utc = None if zone is None else local - zone
            made.append(
                LibraryPhoto(
                    f"{camera}/{day}/{i}",
                    f"{camera}{day}{i}",
                    (),
                    0.0 if known else None,
                    0.0,
                    False,
                    camera,
                    local,
                    utc,
                )
            )
            xy.append((start_s + every_s * i, 0.0))
    return made, xy


def clocks(*parts, asked=()):
    photos = [p for made, _ in parts for p in made] + list(asked)
    xy = np.array([place for _, places in parts for place in places], np.float64).reshape(-1, 2)
    return Clocks(photos, range(len(xy)), xy), photos


def unknown(camera, local_s, utc_s=None):
    return LibraryPhoto("asked", "asked", (), None, None, False, camera, local_s, utc_s)


def test_a_photo_between_two_others_stands_between_them():
    made, photos = clocks(walk("A", range(10)), asked=[unknown("A", 86400 * 3 + 1000 + 90)])
    guess = made.guess(len(photos) - 1)
    assert guess.between
    assert guess.xy[0] == pytest.approx(90.0)
    assert guess.probability > 0.9
    assert [photos[i].name for i, _ in guess.neighbours] == ["A/3/1", "A/3/2"]
    assert [s for _, s in guess.neighbours] == [-30.0, 30.0]


def test_the_longer_the_gap_the_less_is_known():
    last = 86400 * 9 + 2000 + 660
    made, photos = clocks(walk("A", range(10)), asked=[unknown("A", last + s) for s in (30, 900, 86400 * 30)])
    near, far, nothing = (made.guess(len(photos) - 3 + i) for i in range(3))
    assert not near.between
    assert near.probability > far.probability
    assert nothing is None


@pytest.mark.parametrize("ahead_s", [OFF_S, -3600.0, 86400.0 * 365 * 20])
def test_a_clock_that_differs_is_set_by_photos_of_the_same_places(ahead_s):
    """The second camera has positions too, or its photos were found to match."""
    phone, camera = walk("A", range(6)), walk("B", range(6), 7.0, ahead_s, every_s=63.0)
    made, photos = clocks(phone, camera)
    b = made.clock[len(photos) - 1]
    assert made.difference(b, made.clock[0], made.time[-1]) == pytest.approx(ahead_s, abs=40)


def test_matching_pictures_set_a_clock_and_few_or_scattered_ones_do_not():
    day = 86400 * 2 + 2000
    asked = [unknown("B", day + 60 * i + 5 + OFF_S) for i in range(6)]
    made, photos = clocks(walk("A", range(4)), asked=asked)
    first = len(photos) - 6
    assert made.guess(first + 2) is None
    made.compare((first + i, 24 + i) for i in range(3))
    assert made.guess(first + 2) is None
    made.compare((first + i, 24 + i) for i in range(3, 6))
    guess = made.guess(first + 2)
    assert guess.xy[0] == pytest.approx(125, abs=10)
    other, _ = clocks(walk("A", range(4)), asked=asked)
    other.compare((first + i, 12 * (i % 4) + (5 * i) % 12) for i in range(6))
    assert other.guess(first + 2) is None


def test_a_photo_without_a_zone_takes_that_of_its_cameras_day():
    zoned = walk("A", range(3), zone=7200.0)
    made, photos = clocks(zoned, asked=[unknown("A", 86400 + 500 + 90)])
    assert made.clock[-1] == made.clock[0]
    assert made.guess(len(photos) - 1).xy[0] == pytest.approx(90.0)


def test_a_photo_without_a_camera_or_a_time_has_no_neighbours():
    made, photos = clocks(walk("A", range(3)), asked=[unknown("", 90.0), unknown("A", None)])
    assert made.guess(len(photos) - 1) is None
    assert made.guess(len(photos) - 2) is None


def test_neighbours_that_tell_nothing_are_learned_to_tell_nothing():
    rng = np.random.default_rng(0)
    made, xy = walk("A", range(30))
    scattered = rng.uniform(0, 20_000, (len(xy), 2))
    photos = [*made, unknown("A", 86400 * 3 + 1000 + 90)]
    assert Clocks(photos, range(len(xy)), scattered).guess(len(photos) - 1).probability < 0.3
