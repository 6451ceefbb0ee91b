"""Pictures and time as one: they confirm and contradict each other, and non-places get nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from covis.geotagging.clocks import TimeGuess
from covis.geotagging.regions import Regions
from covis.geotagging.suggestions import BOTH, PICTURES, TIME, combine, on_earth
from covis.maps.answers import Answer, Match, Place, Position

REGIONS = Regions([(48.0, 11.0), (-17.0, 180.0)])


def match(x, probability, name="m.jpg"):
    return Match(name, Path(name), Place(x, 0.0), "", 0.5, None, probability)


def answer(x=0.0, probability=0.6, confident=False, elsewhere=0.2, **more):
    return Answer(Path("asked.jpg"), (match(x, probability), match(5000.0, 0.05)), Position(Place(x, 0.0), 20.0, 0.9, 2), probability, confident, elsewhere=elsewhere, **more)  # fmt: skip


def guess(x=0.0, probability=0.8, doubt_m=50.0):
    return TimeGuess((x, 0.0), doubt_m, True, probability, ((1, -30.0),))


def combined(told, timed, is_place=True, precision=0.9):
    made, evidence = combine(told, timed, is_place=is_place, precision=precision)
    return on_earth(made, REGIONS), evidence


def test_evidence_that_agrees_is_worth_more_than_each_alone():
    made, evidence = combined(answer(), guess())
    assert evidence == BOTH
    assert made.confident
    assert made.probability > 0.9
    assert (made.position.place.lat, made.position.place.lon) == pytest.approx((48.0, 11.0))


def test_a_lower_match_counts_where_time_points_at_it():
    made, evidence = combined(replace(answer(9000.0, 0.3), matches=(match(9000.0, 0.3), match(20.0, 0.25))), guess())
    assert evidence == BOTH
    assert made.position.place.x == pytest.approx(20.0)


@pytest.mark.parametrize(("timed", "winner", "sure"), [(0.95, TIME, False), (0.2, PICTURES, True)])
def test_where_they_contradict_each_other_both_are_worth_less(timed, winner, sure):
    told = answer(0.0, 0.93, confident=True)
    made, evidence = combined(told, guess(9000.0, timed))
    assert evidence == winner
    assert made.probability < max(0.93, timed)
    assert made.confident == (sure and made.probability >= 0.9)


def test_time_alone_places_what_the_map_does_not_have():
    made, evidence = combined(answer(9000.0, 0.05, elsewhere=0.9), guess(100.0, 0.93))
    assert evidence == TIME
    assert made.confident
    assert made.position.place.x == pytest.approx(100.0)


@pytest.mark.parametrize("told", [answer(elsewhere=0.9), answer(), answer(probability=0.95, confident=True)])
def test_what_is_no_place_is_never_confident(told):
    made, _ = combined(told, guess(probability=0.97), is_place=False)
    assert not made.confident
    assert "does not look like" in made.note


def test_pictures_alone_are_the_maps_own_answer():
    made, evidence = combined(answer(probability=0.97, confident=True), None)
    assert (evidence, made.confident, made.probability) == (PICTURES, True, 0.97)
    made, evidence = combined(answer(elsewhere=0.9), None)
    assert (evidence, made.position) == ("", None)


def test_the_other_side_of_the_antimeridian_is_a_place_too():
    made, _ = combined(answer(4_000_000.0 - 500.0, 0.97, confident=True), None)
    assert made.position.place.lat == pytest.approx(-17.0, abs=1e-3)
    assert made.position.place.lon == pytest.approx(179.995, abs=1e-3)
