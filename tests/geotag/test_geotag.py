"""A whole library: found by pictures and by time, nothing written unasked, everything that is written taken back."""

import hashlib
import json
import shutil

import pytest
from libraries import spot, two_continents

import covis
from covis.core.errors import InputError
from covis.geotagging import undo
from covis.geotagging.library import distance_m
from covis.maps.map import Map
from covis.models import ModelConfig, PlaceModel
from covis.reading.exif import read_photo


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A library on two continents, its truth, and the arguments that all runs share."""
    folder = tmp_path_factory.mktemp("geotag")
    truth = two_continents(folder / "lib")
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0).save(folder / "model")
    options = {"map": folder / "lib.map", "model": folder / "model"}
    covis.geotag(folder / "lib", **options)  # the map, which the tests copy
    return folder, truth


@pytest.fixture
def library(made, tmp_path):
    folder, truth = made
    # The map remembers the library's own folder, so it is used where it was made, and put back afterwards.
    shutil.copytree(folder, tmp_path / "kept")
    yield folder / "lib", truth, {"map": folder / "lib.map", "model": folder / "model"}
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)


def content(root):
    return {
        str(file.relative_to(root)): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in root.rglob("*")
        if file.is_file()
    }


def test_a_dry_run_places_photos_on_both_continents_and_writes_nothing(library):
    root, truth, options = library
    before = content(root)
    found, chosen, written = covis.geotag(root, **options)
    assert content(root) == before
    assert written is None
    assert found.counts()["regions"] == 2
    assert {s.photo.name for s in found.suggestions} == set(truth)
    confident = {s.photo.name: s for s in chosen}
    placeable = [name for name, place in truth.items() if place is not None]
    assert set(confident) == set(placeable)
    for name in placeable:
        place = confident[name].answer.position.place
        assert distance_m((place.lat, place.lon), truth[name]) < 50, name
    told = confident[placeable[0]].to_dict()
    assert {"photo", "confident", "elsewhere", "position", "matches", "evidence"} <= set(told)
    assert {"lat", "lon"} <= set(told["position"])


def test_a_run_after_writing_finds_nothing_to_do_and_undo_restores_every_byte(library):
    root, truth, options = library
    before, version = content(root), Map.open(options["map"]).version
    count = sum(place is not None for place in truth.values())
    written = covis.geotag(root, **options, write="exif").written
    assert len(written.files) == count
    assert not written.left
    changed = content(root)
    assert {name for name in before if changed[name] != before[name]} == set(written.files)
    assert all(changed[name][1] == before[name][1] for name in written.files)
    for name in written.files:
        photo = read_photo(root / name)
        assert distance_m((photo.lat, photo.lon), truth[name]) < 50
    again = covis.geotag(root, **options, write="exif")
    assert not again.written.files
    assert again.found.counts()["earlier_guesses"] == count
    assert Map.open(options["map"]).version == version  # nothing was learned from guesses
    assert len(undo(root).files) == count
    assert content(root) == before


def test_new_changed_moved_and_deleted_photos_update_the_map(library):
    root, _, options = library
    before = len(Map.open(options["map"]))
    (root / "a/walk0/00.jpg").rename(root / "a/renamed.jpg")
    (root / "a/walk1/02.jpg").unlink()
    shutil.copy(root / "a/walk1/03.jpg", root / "a/copy.jpg")
    truth = two_continents(root.parent / "more", walks=1, places=2)
    assert truth
    (root.parent / "more/a/walk0/00.jpg").replace(root / "a/00-again.jpg")  # the very photo that was renamed
    covis.geotag(root, **options)
    now = Map.open(options["map"])
    assert len(now) == before - 1
    matched = covis.geotag(root, **options)
    assert Map.open(options["map"]).version == now.version
    names = {match.image for s in matched.found.suggestions for match in s.answer.matches}
    assert all((root / name).is_file() for name in names)


def test_an_area_keeps_the_rest_of_the_world_out(library):
    root, truth, options = library
    lat, lon = spot(1, 4)
    _, chosen, _ = covis.geotag(root, **options, near=f"{lat},{lon},400")
    assert {s.photo.name for s in chosen} == {
        n for n, place in truth.items() if place is not None and n.startswith("b/")
    }


def test_decisions_alone_are_written_and_pins_go_where_they_were_set(library, tmp_path, covis):
    root, _truth, options = library
    common = ["--map", options["map"], "--model", options["model"]]
    code, told, _ = covis("geotag", root, *common, "--json")
    assert code == 0
    keys = {s.photo.name: s.photo.key for s in __import__("covis").geotag(root, **options).found.suggestions}
    first, second, third = [entry["photo"] for entry in told if entry["position"]][:3]
    decided = [
        {"photo": first, "key": keys[first], "decision": "accept"},
        {"photo": second, "key": keys[second], "decision": "accept", "lat": 48.25, "lon": 11.5},
        {"photo": third, "key": keys[third], "decision": "reject"},
        {"photo": "gone.jpg", "key": "0", "decision": "accept", "lat": 1, "lon": 2},
    ]
    file = tmp_path / "decisions.json"
    file.write_text(json.dumps({"format": "covis geotag decisions", "library": str(root), "decisions": decided}))
    code, out, said = covis("geotag", root, *common, "--decisions", file, "--write", "xmp")
    assert code == 0
    assert "2 files written" in out
    assert "left out" in said
    assert (root / f"{first}.xmp").is_file()
    assert "48,15.0000000N" in (root / f"{second}.xmp").read_text()
    assert not (root / f"{third}.xmp").exists()
    code, out, _ = covis("geotag", root, "--undo")
    assert "2 files restored" in out
    assert not list(root.rglob("*.xmp"))
    decided[0]["decision"], decided[1]["lat"] = "reject", 95
    file.write_text(json.dumps({"format": "covis geotag decisions", "decisions": decided}))
    code, _, said = covis("geotag", root, *common, "--decisions", file, "--write", "xmp")
    assert code == 2
    assert "not on Earth" in said


def test_a_table_is_written_once(library, tmp_path):
    root, truth, options = library
    first = covis.geotag(root, **options, write="csv", table=tmp_path / "found.csv").written
    assert first.files == [str(tmp_path / "found.csv")]
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert len(lines) == 1 + sum(place is not None for place in truth.values())
    assert not covis.geotag(root, **options, write="csv", table=tmp_path / "found.csv").written.files


def test_what_cannot_work_is_said_in_one_line(library, tmp_path):
    _root, _, options = library
    two_continents(tmp_path / "few", walks=1, places=3)
    with pytest.raises(InputError, match="at least 20"):
        covis.geotag(tmp_path / "few", map=tmp_path / "few.map", model=options["model"])
    with pytest.raises(InputError, match="was not made by covis geotag"):
        covis.geotag(tmp_path / "few", map=tmp_path / "few")
    with pytest.raises(InputError, match="belongs to the library"):
        covis.geotag(tmp_path / "few", **options)
    with pytest.raises(InputError, match="or --immich"):
        covis.geotag()
