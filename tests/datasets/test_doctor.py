"""The doctor: what is missing, what is bad, what looks odd; written down."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from covis.cli.app import build_app
from covis.core.artifacts import read_json
from covis.core.errors import InputError
from covis.datasets import DATASETS
from covis.datasets.doctor import PIECE, check
from layouts import builders


def codes(report):
    return {f["code"] for f in report["findings"]}


def text_of(report, code):
    return " | ".join(f["text"] for f in report["findings"] if f["code"] == code)


@pytest.mark.parametrize("name", builders.ALL)
def test_a_whole_layout_has_no_missing_or_bad_files(tmp_path, name):
    builders.ALL[name](tmp_path / "data")
    report = check(name, tmp_path / "data", tmp_path / "out", workers=1)
    assert report["missing"] == []
    assert report["rejects"] == {}
    assert report["licence"] == DATASETS[name].licence
    assert read_json(tmp_path / "out" / "report.json") == report


def test_missing_volumes_are_named(tmp_path):
    builders.pitts(tmp_path / "data", missing=("001",))
    report = check("pitts30k", tmp_path / "data", tmp_path / "out", workers=2)
    assert report["missing"] == [{"volume": "001.tar", "missing": 12, "listed": 12}]
    assert "12 of 12 files of 001.tar are missing" in text_of(report, "missing-files")
    with (tmp_path / "out" / "rejects.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 12
    assert {r["reason"] for r in rows} == {"missing"}


@pytest.mark.parametrize("quick", [True, False])
def test_bad_files_are_counted_by_reason(tmp_path, quick):
    builders.walk_tables(tmp_path / "data")
    images = sorted((tmp_path / "data" / "images").iterdir())
    images[0].write_bytes(b"")
    images[1].write_text("not a picture at all")
    data = bytearray(images[2].read_bytes())
    data[len(data) // 2 :] = b""
    images[2].write_bytes(data)
    report = check("table", tmp_path / "data" / "train.csv", tmp_path / "out", quick=quick, workers=1)
    assert report["rejects"]["empty"] == report["rejects"]["not-an-image"] == 1
    assert sum(report["rejects"].values()) == 3
    assert report["quick"] is quick


def test_damage_in_the_middle_is_found_by_decoding_only(tmp_path):
    builders.walk_tables(tmp_path / "data")
    file = sorted((tmp_path / "data" / "images").iterdir())[0]
    data = bytearray(builders.image(file, (200, 300), seed=5).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2] = b"\xff\xd9"
    file.write_bytes(data)
    assert check("table", tmp_path / "data" / "train.csv", tmp_path / "a", quick=True, workers=1)["rejects"] == {}
    full = check("table", tmp_path / "data" / "train.csv", tmp_path / "b", workers=1)["rejects"]
    assert full == {"corrupt": 1}


def test_counts_against_the_published_ones(tmp_path):
    builders.pitts(tmp_path / "data", splits=("test",))
    report = check("pitts30k", tmp_path / "data", tmp_path / "out", workers=1)
    assert {"count": "test/queries", "published": 6816, "exact": True, "found": 5} in report["published"]
    assert "test/queries: 5 images, published are 6816" in text_of(report, "count-differs")
    assert "pitts30k_train.mat does not exist" in text_of(report, "split-unreadable")


def test_queries_without_positives_and_files_on_both_sides(tmp_path):
    builders.pitts(tmp_path / "data", splits=("test",))
    report = check("pitts30k", tmp_path / "data", tmp_path / "out", workers=1)
    facts = report["splits"]["test"]
    assert (facts["without_positive"], facts["located_queries"], facts["within_m"]) == (1, 5, 25.0)
    assert facts["shared_files"] == 5  # the builder draws each query and a cut-out from one seed
    assert {"without-positive", "queries-in-map"} <= codes(report)


@pytest.mark.parametrize(
    ("name", "then"),
    [("tb_places", "covis train RECIPE"), ("tokyo247", "covis evaluate MODEL tokyo247")],
)
def test_the_next_step_is_one_that_the_dataset_allows(name, then, tmp_path):
    root = builders.ALL[name](tmp_path / "data")
    command = ["data", "check", name, str(root), "--quick", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(build_app(), command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"next: {then}" in result.output


def test_a_split_that_cannot_be_read_is_said(tmp_path):
    builders.msls(tmp_path / "data", cities=("cph", "sf"))
    report = check("msls", tmp_path / "data", tmp_path / "out", workers=1)
    assert report["rejects"] == {}
    assert "test:" in text_of(report, "split-unreadable")


def test_a_stuck_and_a_mostly_unknown_compass(tmp_path):
    table = tmp_path / "a.csv"
    picture = builders.image(tmp_path / "x.jpg").name
    rows = [f"{picture},{i},{i},{7 if i < 25 else ''},{'stuck' if i < 25 else 'silent'}" for i in range(60)]
    table.write_text("image,easting,northing,heading,group\n" + "\n".join(rows) + "\n")
    report = check("table", table, tmp_path / "out", workers=1)
    assert "every heading is the same in stuck" in text_of(report, "compass-stuck")
    assert "35 of 60 headings are unknown" in text_of(report, "compass-unknown")
    assert "59 names are listed twice" in text_of(report, "listed-twice")


def test_own_photos_can_be_checked(tmp_path):
    builders.image(tmp_path / "photos" / "a.jpg")
    assert (
        check("photos", tmp_path / "photos", tmp_path / "out", workers=1)["splits"]["all"]["queries"]["positions"] == 0
    )


def test_nothing_readable_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no split of msls can be read"):
        check("msls", tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="does not exist"):
        check("msls", tmp_path / "none", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_output_of_another_check_is_refused(tmp_path):
    builders.walk_tables(tmp_path / "data")
    check("table", tmp_path / "data" / "train.csv", tmp_path / "out", workers=1)
    check("table", tmp_path / "data" / "train.csv", tmp_path / "out", workers=1)
    with pytest.raises(InputError, match="belongs to another check"):
        check("table", tmp_path / "data" / "train.csv", tmp_path / "out", quick=True, workers=1)


def many(folder, n):
    picture = builders.image(folder / "images" / "0.jpg").read_bytes()
    for i in range(n):
        (folder / "images" / f"{i}.jpg").write_bytes(picture)
    rows = "\n".join(f"images/{i}.jpg,{i},{i}" for i in range(n))
    (folder / "a.csv").write_text(f"image,easting,northing\n{rows}\n")
    return folder / "a.csv"


def test_several_processes_find_what_one_finds(tmp_path):
    table = many(tmp_path / "data", 2 * PIECE + 5)
    for i in (1, PIECE, 2 * PIECE + 1):
        (tmp_path / "data" / "images" / f"{i}.jpg").write_bytes(b"x" * 500)
    reports = [check("table", table, tmp_path / f"out{w}", workers=w) for w in (1, 2)]
    assert [{**r, "rejects_file": ""} for r in reports[:1]] == [{**r, "rejects_file": ""} for r in reports[1:]]
    lists = [np.loadtxt(tmp_path / f"out{w}" / "rejects.csv", str, delimiter=",") for w in (1, 2)]
    assert np.array_equal(*lists)
