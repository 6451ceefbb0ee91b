"""`covis data` as a user runs it."""

import json
import os

import pytest
from PIL import Image

import forked
from covis.reading.table import read_table
from layouts import builders


def covis(*args, cwd):
    return forked.run(args, cwd)


@pytest.fixture
def photos(tmp_path):
    for i in range(3):
        path = builders.image(tmp_path / "photos" / "walk" / f"{i}.jpg", seed=i)
        with Image.open(path) as image:
            exif = image.getexif()
            exif.get_ifd(0x8825).update(
                {1: "N", 2: (55.0, 41.0, 50.0 + i), 3: "E", 4: (13.0, 11.0, 43.4), 16: "T", 17: 90.0}
            )
            image.save(path, exif=exif)
    return tmp_path / "photos"


def test_import_writes_a_table(photos, tmp_path):
    done = covis("data", "import", photos, "-o", "out/set.csv", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["photos"], data["positions"], data["headings"], data["groups"]) == (3, 3, 3, 1)
    lines = (tmp_path / "out/set.csv").read_text().splitlines()
    assert lines[0].startswith("image,lat,lon,easting,northing,heading,")
    assert lines[1].startswith("../photos/walk/0.jpg,55.69722222")


def test_import_keeps_odd_names_and_lists_rejects(photos, tmp_path):
    picture = (photos / "walk" / "0.jpg").read_bytes()
    for i in range(30):
        (photos / f"{i}.jpg").write_bytes(picture)
    odd = os.fsdecode(b"caf\xe9, @1@ .jpg")
    (photos / odd).write_bytes(picture)
    (photos / "bad.jpg").write_bytes(b"")
    builders.image(photos / "nowhere.jpg")
    covis("data", "import", photos, "-o", photos / "set.csv", cwd=tmp_path)  # what it wrote is no source next time
    done = covis("data", "import", photos, "-o", photos / "set.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: 1 empty" in done.stdout
    assert "1 of 35 photos have no position" in done.stderr
    assert "bad.jpg,empty" in (photos / "rejects.csv").read_text(errors="surrogateescape")
    images = read_table(photos / "set.csv")
    assert odd in [images.name(i) for i in range(len(images))]
    assert all(images.path(i).is_file() for i in range(len(images)))


def test_import_says_what_is_wrong_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for args, message in (
        (("empty", "-o", "a.csv"), "has no photos; expected"),
        (("none", "-o", "a.csv"), "none does not exist"),
        (("empty", "-o", "a.txt"), "must end in .csv or .parquet"),
        (("empty", "-o", "a.csv", "--utc-offset", "2"), "is not an offset"),
    ):
        done = covis("data", "import", *args, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stdout == ""
    assert not (tmp_path / "a.csv").exists()


def test_check_reports_for_people_and_programs(tmp_path):
    builders.pitts(tmp_path / "data", missing=("000",))
    done = covis("data", "check", "pitts30k", "data", "--quick", cwd=tmp_path)
    assert done.returncode == 2, "missing files are an error"
    assert "files of 000.tar are missing" in done.stdout
    assert "terms: research use" in done.stdout
    assert (tmp_path / "check-pitts30k" / "rejects.csv").is_file()
    data = json.loads(covis("data", "check", "pitts30k", "data", "-o", "x", "--json", cwd=tmp_path).stdout)
    assert data["missing"][0]["volume"] == "000.tar"
