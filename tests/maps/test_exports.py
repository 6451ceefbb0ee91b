"""Answers as files, each read back by a library that covis does not use to write it."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import WORDS, Answer, Match, Place, Position, in_words
from covis.maps.outputs import FORMATS, ending_of, to_csv, to_geojson, to_geopose, write
from covis.poses import Poses

PLACE = Place(10.0, 20.0, 123.25, 55.7046601, 13.191007)
SOUTH_WEST = Place(-5.0, -6.0, None, -33.456789, -70.654321)


def answer(name="a <b> & \x01.jpg", place=PLACE, probability=0.893, radius_m=12.0):
    match = Match("walk/1.jpg", Path("/photos/walk/1.jpg"), SOUTH_WEST, "walk", 0.4, 0.6, 0.8)
    note = "a precision of 95 % needs a probability above 93 %"
    return Answer(Path(name), (match,), Position(place, radius_m, 0.9, 1), probability, False, note)


def photos_in(frame):
    """The photos of a map that has none left."""
    return ImageSet.of(".", [], Poses(np.zeros((0, 2)), np.zeros(0), frame=frame))


EARTH = (photos_in("EPSG:32633"),)


@pytest.fixture
def answers():
    return [
        answer(),
        answer("second.jpg", SOUTH_WEST),
        Answer(Path("bad.jpg"), (), None, None, False, "x", unusable=True),
    ]


def test_an_answer_leads_with_what_is_known():
    assert answer("p.jpg").verdict == (
        "likely at 55.704660, 13.191007 (89 %), within 12 m; not confident: a precision of 95 % needs a probability above 93 %"
    )
    assert [in_words(least) for least, _ in WORDS] == [word for _, word in WORDS]
    assert in_words(0.0) == "unlikely"
    assert [in_words(p) for p in (0.494, 0.496, 0.7496, 0.9496)] == ["unlikely", "possibly", "likely", "very likely"]
    assert "100 %" not in answer("p.jpg", probability=0.99999).verdict


def test_geojson_is_read_by_geopandas(answers, tmp_path):
    geopandas = pytest.importorskip("geopandas")
    write(tmp_path / "a.geojson", answers, *EARTH)
    frame = geopandas.read_file(tmp_path / "a.geojson")
    assert frame["kind"].tolist() == ["position", "match"] * 2
    assert (frame.geometry.x[0], frame.geometry.y[0], frame["radius_m"][0]) == (PLACE.lon, PLACE.lat, 12.0)
    assert frame["photo"].iloc[0] == "a <b> & \x01.jpg"


def test_tables_and_layers_have_as_many_digits_as_json():
    exact = answer(probability=0.10579237112649324, radius_m=12.3456789, place=replace(PLACE, lat=55.70466012345678))
    (row,) = csv.DictReader(io.StringIO(to_csv([exact])))
    feature = to_geojson([exact])["features"][0]
    assert (row["probability"], row["lat"], row["radius_m"]) == ("0.10579", "55.70466012", "12.35")
    assert feature["geometry"]["coordinates"] == [13.191007, 55.70466012]
    assert [feature["properties"][key] for key in ("probability", "radius_m")] == [0.10579, 12.35]


def test_a_name_with_a_line_end_stays_on_one_line():
    first = answer("two\nlines \x1b[31m.jpg").lines()[0]
    assert first.startswith("two\\nlines \\x1b[31m.jpg: likely at")


def test_csv_is_read_by_pandas(answers):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(to_csv(answers)))
    assert frame["lat"].tolist()[:2] == [55.7046601, -33.456789]
    assert frame["verdict"].tolist()[:2] == ["likely", "likely"]
    assert frame["lat"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize("heading", [0.0, 90.0, 123.25, 300.0])
def test_a_geopose_looks_along_the_heading(heading):
    """By scipy's rotations: the camera's x axis in east-north-up is the direction of the heading."""
    from scipy.spatial.transform import Rotation

    expected = [math.sin(math.radians(heading)), math.cos(math.radians(heading)), 0]
    angles = to_geopose([answer(place=Place(0, 0, heading, 55.7, 13.2))])["angles"]
    turned = Rotation.from_euler("ZYX", [angles["yaw"], angles["pitch"], angles["roll"]], degrees=True)
    assert turned.apply([1, 0, 0]) == pytest.approx(expected, abs=1e-9)


def test_geoposes_have_the_standards_members(answers, tmp_path):
    write(tmp_path / "a.geopose.json", answers, *EARTH)
    poses = json.loads((tmp_path / "a.geopose.json").read_text())
    assert len(poses) == 2
    for pose in poses:
        assert set(pose["position"]) == {"lat", "lon", "h"}
        assert set(pose["angles"]) == {"yaw", "pitch", "roll"}
    assert to_geopose(answers[:1])["covis"]["heading_known"]


@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_each_ending_is_written_whole(answers, tmp_path, ending):
    target = tmp_path / "out" / f"Found{ending.upper()}"
    assert ending_of(target) == ending
    write(target, answers, *EARTH)
    assert target.exists()


def test_an_unknown_ending_and_a_map_without_a_place_on_earth_are_refused(answers, tmp_path):
    metres = photos_in("")
    with pytest.raises(InputError, match=r"must end in \.csv"):
        write(tmp_path / "a.kml", answers, *EARTH)
    with pytest.raises(InputError, match="without a place on Earth"):
        write(tmp_path / "a.geojson", answers, metres)
    write(tmp_path / "a.json", answers, metres)
    assert [a["photo"] for a in json.loads((tmp_path / "a.json").read_text())] == [
        a.to_dict()["photo"] for a in answers
    ]
