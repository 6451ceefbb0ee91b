"""`covis index`, `add`, `remove` and `locate`: from photos to places, with errors that say what to do."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from covis.cli import main
from covis.models import ModelConfig, PlaceModel


def photos(folder, start, count):
    """Blobs of colour along a street in Lund, northwards, 22 m apart."""
    folder.mkdir(exist_ok=True)
    lines = ["image,lat,lon,heading"]
    for i in range(start, start + count):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(small).resize((48, 36)).save(folder / f"{i} é.png")
        lines.append(f"{i} é.png,{55.7 + 0.0002 * i},13.19,{(10 * i) % 360}")
    (folder / "photos.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "photos.csv"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, a map of twelve photos, and three more photos."""
    root = tmp_path_factory.mktemp("verbs")
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=1).save(root / "model")
    table = photos(root / "walk", 0, 12)
    photos(root / "later", 20, 3)
    with pytest.raises(SystemExit):
        main(["index", str(table), "-o", str(root / "map"), "--model", str(root / "model"), "--runtime", "torch"])
    return root


@pytest.fixture
def place(made, tmp_path):
    """A copy of it that a test may change."""
    shutil.copytree(made, tmp_path / "w")
    return tmp_path / "w"


def test_a_map_says_where_its_own_photo_was_taken(made, covis):
    code, out, _ = covis(
        "locate", made / "map", made / "walk" / "3 é.png", made / "walk" / "7 é.png", "-k", 2, "--json"
    )
    first, second = out
    assert code == 0
    assert set(first) >= {"photo", "confident", "position", "matches"}
    assert set(first["matches"][0]) >= {"image", "distance", "overlap", "probability", "lat", "lon", "heading"}
    assert [m["image"] for m in (first["matches"][0], second["matches"][0])] == ["3 é.png", "7 é.png"]
    assert first["matches"][0]["distance"] < 1e-3
    assert first["matches"][0]["lat"] == pytest.approx(55.7006)
    assert first["matches"][0]["heading"] == pytest.approx(30)
    assert len(first["matches"]) == 2
    assert first["confident"] is False
    assert 0 < first["matches"][0]["probability"] < 1  # of other small maps, as the note says
    assert "only 12 photos" in first["note"]
    assert first["position"]["radius_m"] is None


def test_near_a_rough_position(made, covis):
    _, out, _ = covis(
        "locate", made / "map", made / "walk" / "3 é.png", "--near", "55.7016,13.19,30", "--json", "-k", 9
    )
    assert sorted(m["image"] for m in out[0]["matches"]) == ["7 é.png", "8 é.png", "9 é.png"]
    _, out, _ = covis("locate", made / "map", made / "walk" / "3 é.png", "--near", "10,10,30", "--json")
    assert (out[0]["matches"], out[0]["position"]) == ([], None)
    code, _, err = covis("locate", made / "map", made / "walk" / "3 é.png", "--near", "here")
    assert (code, "LAT,LON,RADIUS" in err) == (2, True)


def test_inside_a_polygon(made, tmp_path, covis):
    """Corners on the line, or a GeoJSON file, which has longitudes first."""
    corners = [(55.70095, 13.189), (55.70095, 13.191), (55.70165, 13.191), (55.70165, 13.189)]
    ring = [[lon, lat] for lat, lon in [*corners, corners[0]]]
    shape = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    (tmp_path / "area.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [shape]}))
    ask = ["locate", made / "map", made / "walk" / "3 é.png", "--json", "-k", 9]
    for given in (" ".join(f"{lat},{lon}" for lat, lon in corners), tmp_path / "area.geojson"):
        _, out, _ = covis(*ask, "--inside", given)
        assert sorted(m["image"] for m in out[0]["matches"]) == [f"{i} é.png" for i in (5, 6, 7, 8)]
    shape["geometry"]["coordinates"].append(ring)
    (tmp_path / "holed.geojson").write_text(json.dumps(shape))
    for options, message in (
        (["--inside", "1,2 3,4"], "at least three"),
        (["--inside", "1,2 3,x 5,6"], "one GeoJSON polygon"),
        (["--inside", tmp_path / "none.geojson"], "none.geojson does not exist"),
        (["--inside", tmp_path / "holed.geojson"], "without holes"),
        (["--inside", "1,2 3,4 5,6", "--near", "1,2,3"], "give one area"),
    ):
        code, _, err = covis(*ask, *options)
        assert (code, message in err) == (2, True), err


def test_files_for_other_programs(made, tmp_path, covis):
    outputs = [tmp_path / name for name in ("a.geojson", "a.csv", "a.html")]
    code, _, _ = covis("locate", made / "map", made / "walk" / "3 é.png", "-k", 2,
        "-o", outputs[0], "-o", outputs[1], "-o", outputs[2],
    )  # fmt: skip
    assert code == 0
    features = json.loads(outputs[0].read_text(encoding="utf-8"))["features"]
    assert [f["properties"]["kind"] for f in features] == ["position", "match", "match"]
    assert features[1]["geometry"]["coordinates"] == pytest.approx([13.19, 55.7006])
    assert ",3 é.png," in outputs[1].read_text(encoding="utf-8").splitlines()[1]
    page = outputs[2].read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 3  # the photo and two matches
    assert not re.search(r'src="(?!data:)', page)
    assert "Volodymyr Agafonkin" in page


def test_a_walk_is_one_query(made, covis):
    walk = [made / "walk" / f"{i} é.png" for i in (2, 3, 4)]
    code, out, _ = covis("locate", made / "map", *walk, "--sequence", "--json", "-k", 1)
    told = out
    assert code == 0
    assert [p["matches"][0]["image"] for p in told["photos"]] == ["2 é.png", "3 é.png", "4 é.png"]
    assert (told["photo"], told["agreement"], told["confident"]) == (str(walk[-1]), 1.0, False)


def test_add_and_remove(place, covis):
    code, out, _ = covis("add", place / "map", place / "later" / "photos.csv", "--json")
    told = out
    assert (code, told["added"], told["photos"], told["version"]) == (0, 3, 15, 2)
    _, out, _ = covis("locate", place / "map", place / "later" / "21 é.png", "-k", 1, "--json")
    assert out[0]["matches"][0]["image"] == "21 é.png"
    code, _, _ = covis("remove", place / "map", "21 é.png", "3 é.png")
    assert code == 0
    _, out, _ = covis("locate", place / "map", place / "later" / "21 é.png", "-k", 99, "--json")
    found = [m["image"] for m in out[0]["matches"]]
    assert len(found) == 13
    assert "21 é.png" not in found
    code, _, err = covis("remove", place / "map", "21 é.png")
    assert (code, "has no photo '21 é.png'" in err) == (2, True)


def test_photos_that_cannot_be_used(made, tmp_path, covis):
    (tmp_path / "text.jpg").write_text("not a photo")
    code, _, err = covis("locate", made / "map", tmp_path / "text.jpg")
    assert (code, "not-an-image" in err) == (2, True)
    code, out, _ = covis(
        "locate", made / "map", tmp_path / "text.jpg", tmp_path / "no.jpg", made / "walk" / "3 é.png", "--json"
    )
    told = out
    assert (code, [bool(t["matches"]) for t in told]) == (0, [False, False, True])
    assert "missing" in told[1]["note"]


def test_photos_without_positions(made, tmp_path, covis):
    folder = tmp_path / "bare"
    shutil.copytree(made / "walk", folder, ignore=shutil.ignore_patterns("*.csv"))
    code, _, err = covis("index", folder, "-o", tmp_path / "m", "--model", made / "model")
    assert (code, "position" in err) == (2, True)
    assert not (tmp_path / "m").exists()


def test_what_is_no_map(tmp_path, made, covis):
    code, _, err = covis("locate", tmp_path, made / "walk" / "3 é.png")
    assert (code, "covis index" in err) == (2, True)
    code, _, err = covis("index", made / "walk" / "photos.csv", "-o", made / "walk", "--model", made / "model")
    assert (code, "other files" in err) == (2, True)


@pytest.mark.slow
def test_two_commands_on_real_photos(shared_data, tmp_path, covis):
    """Streets of Lund: of six photos left out of the map, at least five are placed within 40 m of their own GPS."""
    from covis.poses import Poses
    from covis.reading.exif import read_photo

    folder, held = tmp_path / "lund", [tmp_path / f"{i:02d}.jpg" for i in (3, 8, 13, 18, 23, 28)]
    shutil.copytree(shared_data / "photos_exif" / "lund", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    for file in held:
        shutil.move(folder / file.name, file)
    weights = shared_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    code, _, _ = covis(
        "model",
        "import",
        weights,
        "--backbone",
        "mobilenetv2_100",
        "--set",
        "image_size=240,320",
        "-o",
        tmp_path / "model",
    )
    assert code == 0
    assert covis("index", folder, "-o", tmp_path / "map", "--model", tmp_path / "model", "--runtime", "torch")[0] == 0
    code, out, _ = covis("locate", tmp_path / "map", *held, "--json")
    assert code == 0
    near = 0
    for told, file in zip(out, held, strict=True):
        truth, found = read_photo(file), told["position"]
        xy = Poses.from_latlon([truth.lat, found["lat"]], [truth.lon, found["lon"]]).xy
        near += np.hypot(*(xy[0] - xy[1])) < 40
    assert near >= 5


def test_outputs_that_cannot_be_are_refused_before_the_work(place, covis):
    """A folder for a file, a file for a folder, the photo or table that is read, and settings out of range."""
    photo, table = place / "walk" / "3 é.png", place / "walk" / "photos.csv"
    before = photo.read_bytes(), table.read_text(encoding="utf-8")
    cases = {
        ("-o", table.with_suffix(".foo")): "must end in .csv",
        ("-o", photo.parent): "must end in .csv",
        ("-o", table): "would overwrite a file that is read",
        ("-o", place / "x.html", "--tiles", "http://tiles"): "--tiles is osm, an address with {z}, {x} and {y}",
        ("--rate", 1.5): "Invalid value for '--rate'",
    }
    for options, cause in cases.items():
        code, out, err = covis("locate", place / "map", photo, table, *options)
        assert (code, out, cause in err, "locating" in err) == (2, "", True, False), err
    assert (photo.read_bytes(), table.read_text(encoding="utf-8")) == before


def test_an_output_that_cannot_be_written_is_named_as_given(made, covis):
    """Not by the name of a temporary file; the folder /proc takes no files."""
    code, _, err = covis("locate", made / "map", made / "walk" / "3 é.png", "-o", "/proc/found.csv")
    assert (code, "/proc/found.csv" in err, "partial" in err) == (2, True, False)


def test_imported_maps_say_what_they_promise(place, covis):
    assert covis("map", "export", place / "map", place / "map.covis")[0] == 0
    _, out, _ = covis("map", "import", place / "map.covis", "-o", place / "copy.map", "--json")
    told = out
    assert (told["photos"], told["promised_precision"]) == (12, None)
    code, _, err = covis("map", "import", place / "walk", "-o", place / "none.map")
    assert (code, "walk is a folder; give a file" in err) == (2, True)


@pytest.fixture
def little_room():
    """No file may grow beyond 20 kB, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_is_told_by_the_name_of_what_was_to_be_written(place, covis, request):
    assert covis("map", "export", place / "map", place / "map.covis")[0] == 0
    request.getfixturevalue("little_room")
    for command in (
        ["map", "import", place / "map.covis", "-o"],
        ["index", place / "walk/photos.csv", "--model", place / "model", "-o"],
    ):
        code, _, err = covis(*command, place / "new.map")
        line = err.splitlines()[-1]
        assert (code, "File too large" in line, "new.map" in line) == (2, True, True), line


def test_a_table_that_was_refused_can_be_fixed_and_indexed(place, covis):
    """Into the same output: what was refused before the work started owns nothing."""
    table = place / "walk" / "photos.csv"
    right = table.read_text(encoding="utf-8")
    command = ("index", table, "-o", place / "fixed.map", "--model", place / "model", "--runtime", "torch")
    for wrong in (f"{right}\n3 é.png,55.9,13.19,0", f"{right}\nabsent.png,55.7,13.19,0"):
        table.write_text(wrong, encoding="utf-8")
        code, _, err = covis(*command)
        assert (code, "given twice" in err or "absent.png" in err) == (2, True)
        assert not (place / "fixed.map" / "map.json").exists()
    table.write_text(right, encoding="utf-8")
    code, out, _ = covis(*command)
    assert (code, "fixed.map: 12 photos" in out) == (0, True)


def test_other_photos_into_the_same_map_are_refused_in_words(place, covis):
    command = ("index", place / "later" / "photos.csv", "-o", place / "map", "--model", place / "model")
    code, _, err = covis(*command, "--runtime", "torch")
    (line,) = (line for line in err.splitlines() if "error" in line)
    assert code == 2
    assert re.search(r"map is a map of other photos or positions of .*walk; choose another output, or add photos", line)
    assert f"covis add {place / 'map'} PHOTOS" in line


def test_photos_of_the_map_itself_are_pointed_out(made, covis):
    _, _, err = covis("locate", made / "map", made / "walk" / "3 é.png", made / "later")
    assert "warning: 1 of 4 photos already in the map, such as" in err
    _, _, err = covis("locate", made / "map", made / "later")
    assert "already in the map" not in err
