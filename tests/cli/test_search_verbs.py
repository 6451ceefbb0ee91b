"""`covis search`: from stores to names, in areas, with errors that say what to do."""

import csv
import json

import numpy as np
import pytest

from covis.cli import main
from covis.descriptors import DescriptorStore


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return stop.value.code or 0, *capsys.readouterr()


@pytest.fixture
def stores(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1500, 24)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    lines = [f"{i}.jpg,{i},0" for i in range(1500)]
    (tmp_path / "map.csv").write_text("\n".join(["image,easting,northing", *lines]))
    DescriptorStore.create(tmp_path / "map", "m", 24).append([f"{i}.jpg" for i in range(1500)], x, model="m")
    DescriptorStore.create(tmp_path / "q", "m", 24).append(["a é.jpg", "b.jpg"], x[[700, 3]], model="m")
    DescriptorStore.create(tmp_path / "other", "n", 24).append(["a.jpg"], x[:1], model="n")
    return tmp_path


def test_a_store_is_searched_exactly(stores, capsys):
    code, out, _ = run(capsys, "search", "query", stores / "map", stores / "q", "-k", "2", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [(r["query"], r["rank"]) for r in rows] == [("a é.jpg", 1), ("a é.jpg", 2), ("b.jpg", 1), ("b.jpg", 2)]
    assert rows[0]["image"] == "700.jpg"
    assert rows[0]["distance"] == 0


def test_build_then_query_inside_an_area(stores, capsys):
    code, out, err = run(
        capsys, "search", "build", stores / "map", "-o", stores / "i", "--kind", "hnsw-sq8", "--positions", stores / "map.csv",
        "--json",
    )  # fmt: skip
    assert code == 0, err
    assert "misses" in err
    assert 0 <= json.loads(out)["loss"] <= 1
    code, _, _ = run(
        capsys, "search", "query", stores / "i", stores / "q", "-k", "9", "--around", "100,0,50", "-o", stores / "f.csv"
    )
    assert code == 0
    found = [int(r["image"][:-4]) for r in csv.DictReader((stores / "f.csv").open(encoding="utf-8"))]
    assert len(found) == 18
    assert all(50 <= i <= 150 for i in found)
    corners = "1000,-1 1000,1 1004.5,1 1004.5,-1"
    _, out, _ = run(capsys, "search", "query", stores / "i", stores / "q", "-k", "9", "--inside", corners, "--json")
    assert sorted({int(r["image"][:-4]) for r in json.loads(out)}) == [1000, 1001, 1002, 1003, 1004]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("query map other", "model m"),
        ("query map q --around 5", "X,Y,RADIUS"),
        ("query nowhere q", "nowhere"),
        ("build map -o q", "already exists"),
        ("build map -o i --kind hnsv", "did you mean 'hnsw'"),
        ("build map -o i --kind hnsw --max-ram 10k", "--max-ram allows 10 kB"),
        ("build map -o i --max-ram plenty", "500M or 2G"),
    ],
)
def test_errors_are_one_line(stores, capsys, line, message):
    words = [str(stores / w) if w in ("map", "q", "other", "nowhere", "i") else w for w in line.split()]
    code, _, err = run(capsys, "search", *words)
    assert code == 2
    assert message in err.strip().splitlines()[-1]


def test_an_index_finds_its_store_from_any_folder(stores, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(stores)
    assert run(capsys, "search", "build", "map", "-o", "i", "--kind", "exact")[0] == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert run(capsys, "search", "query", stores / "i", stores / "q", "-k", "1")[0] == 0
    (stores / "i").rename(elsewhere / "moved")
    assert run(capsys, "search", "query", "moved", stores / "q", "-k", "1")[0] == 0
    both = elsewhere / "both"
    both.mkdir()
    (elsewhere / "moved").rename(both / "i")
    assert run(capsys, "search", "query", both / "i", stores / "q", "-k", "1")[0] == 0
    (stores / "map").rename(stores / "gone")
    code, _, err = run(capsys, "search", "query", both / "i", stores / "q", "-k", "1")
    assert (code, "not a covis" in err) == (2, True)
