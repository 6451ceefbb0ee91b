"""`covis label` on small tables: what it says, what it writes, what it refuses."""

import csv
import json

import pytest

import forked
from covis.graph import SimilarityGraph


def covis(*args, cwd):
    return forked.run(args, cwd)


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "q.csv").write_text("image,easting,northing,heading\na.jpg,0,0,0\nb.jpg,1000,0,90\n")
    (tmp_path / "m.csv").write_text("image,easting,northing,heading\nx.jpg,25,0,0\ny.jpg,0,0,40\nz.jpg,5000,0,0\n")
    return tmp_path


def test_labels_of_two_tables_with_the_quoted_figures(tables):
    done = covis("label", "--queries", "q.csv", "--database", "m.csv", "--measure", "overlap", "--radius-m", "50",
                 "--fov-deg", "90", "-o", "g", "--json", cwd=tables)  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["pairs"], told["positives"], told["queries_without_positive"]) == (2, 1, 1)
    graph = SimilarityGraph.open(tables / "g")
    ids, psi = graph.row(0)
    assert ids.tolist() == [0, 1]
    assert psi.tolist() == pytest.approx([0.4497, 0.5556], abs=1e-4)


def test_export_in_every_format(tables):
    assert covis("label", "--queries", "q.csv", "--database", "m.csv", "-o", "g", cwd=tables).returncode == 0
    for kind, name in (("csv", "e.csv"), ("parquet", "e.parquet"), ("h5", "e.h5"), ("hloc", "pairs.txt")):
        done = covis("label", "export", "g", "--format", kind, "-o", name, cwd=tables)
        assert done.returncode == 0, done.stderr
        assert (tables / name).stat().st_size > 0
    rows = list(csv.DictReader((tables / "e.csv").open()))
    assert list(rows[0]) == ["query", "database", "similarity"]
    assert {(r["query"], r["database"]) for r in rows} == {("a.jpg", "x.jpg"), ("a.jpg", "y.jpg")}
    assert (tables / "pairs.txt").read_text().split() == ["a.jpg", "y.jpg"]
