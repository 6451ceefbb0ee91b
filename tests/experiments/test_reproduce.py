"""Every table and figure of the paper on miniatures of the official layouts, with tiny networks and tiny steps."""

import csv
import json

import pytest
from typer.testing import CliRunner

from covis.cli import build
from covis.evaluation.published import COUNTS, other_counts
from covis.evaluation.submissions import Scores
from covis.experiments.tables import TABLES, choose_rows

PAPER = [name for name in TABLES if name.startswith(("table", "figure_"))]
TINY = [
    "model.backbone=tiny", "model.weights=null", "model.image_size=[32,32]", "model.trainable=all", "steps=1",
    "validation=\"\"", "cache_gb=0.5",
]  # fmt: skip


@pytest.fixture(scope="module")
def paper(official, tmp_path_factory):
    """Runs `covis reproduce`, all of it in one folder, so that tables share their runs."""
    output = tmp_path_factory.mktemp("paper")
    patch = pytest.MonkeyPatch()
    patch.setenv("COVIS_CACHE", str(output / "cache"))
    data = [part for name, path in official.items() for part in ("--data", f"{name}={path}")]
    settings = [part for setting in TINY for part in ("--set", setting)]

    def run(*arguments):
        command = ["reproduce", *arguments, *data, *settings, "--workers", "0", "-o", str(output)]
        result = CliRunner().invoke(build(), command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return output

    yield run
    patch.undo()


def told(output, name):
    return json.loads((output / f"{name}.json").read_text())


def test_a_table_with_hidden_truth_writes_submissions_and_takes_answers_back(paper):
    output = paper("table1", "--rows", "VGG-GeM-GCL, graded")
    [row] = told(output, "table1")["rows"]
    assert set(row["figures"]) == {"msls_val"}
    assert row["benchmarks"]["msls_val"]["published"] == {}  # a miniature is another protocol
    assert "published are 740 and 18,871" in row["benchmarks"]["msls_val"]["other_protocol"]
    assert "(65.9)" not in (output / "table1.md").read_text()
    [file] = row["submissions"]["msls_test"]
    with (output / "scores.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert [line["figure"] for line in lines] == ["recall@1", "recall@10", "recall@5"]
    assert all(file.startswith(str(output / line["submission"])) for line in lines)
    filled = [{**line, "value": 40 + i} for i, line in enumerate(lines)]
    answers = output / "answers.csv"
    with answers.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(filled)
    paper("table1", "--rows", "VGG-GeM-GCL, graded", "--scores", str(answers))
    [row] = told(output, "table1")["rows"]
    assert row["figures"]["msls_test"]["recall@1"]["values"] == [40.0]
    assert "(41.7)" not in (output / "table1.md").read_text()
    assert Scores.read(output / "scores.csv").values == Scores.read(answers).values


def test_a_failing_or_absent_row_does_not_end_the_table(paper):
    output = paper("table11", "--rows", "heads NetVLAD", "--rows", "heads resnet18 GCL")
    rows = {row["row"]: row for row in told(output, "table11")["rows"]}
    assert "--model netvlad=FOLDER" in rows["heads NetVLAD off the shelf"]["missing"]
    assert rows["heads resnet18 GCL"]["figures"] or rows["heads resnet18 GCL"]["missing"]
    assert "mean resnet18 GCL" in rows


def test_the_list_says_what_a_table_costs_and_which_data_is_there(official):
    command = ["reproduce", "list", "--json", "--data", f"msls={official['msls']}"]
    listed = {e["table"]: e for e in json.loads(CliRunner().invoke(build(), command).stdout)}
    assert set(PAPER) <= set(listed)
    assert len([name for name in PAPER if name.startswith("table")]) == 11
    assert listed["table1"]["hours"] == "20 GPU-hours"
    assert listed["table3"]["data"] == ["msls"]
    assert "cmu_extended" in listed["table3"]["missing"]


def test_rows_are_chosen_by_part_of_their_name_or_by_pattern():
    rows = TABLES["table3"]().rows
    assert {row.label for row in choose_rows(rows, ["vgg-gem"])} == {"VGG-GeM-CL", "VGG-GeM-GCL"}
    assert len(choose_rows(rows, ["*whitened*"])) == len(rows) // 2


def test_tables_share_the_runs_of_one_recipe():
    keys = {name: {row.key for row in TABLES[name]().rows} for name in PAPER if name != "table5"}
    assert keys["table2"] & keys["table3"]
    assert keys["figure_tsne"] <= keys["table3"]
    assert len(set().union(*keys.values())) < sum(map(len, keys.values())) / 2


def test_published_figures_need_the_published_counts():
    assert other_counts("msls_val", *COUNTS["msls_val"]) == ""
    assert "49 queries" in other_counts("msls_val", 49, 118)
    assert "not the whole benchmark" in other_counts("msls_test", 96, 144)
    assert "nothing is published" in other_counts("cmu_extended", 10**6, 10**6)


def test_likely_misprints_are_flagged():
    rows = {row.label: row for row in TABLES["table10"]().rows}
    doubts = [p for row in rows.values() for p in row.published if p.doubtful]
    assert [(p.method, p.benchmark, p.value) for p in doubts] == [
        ("ResNet152-GeM-GCL, strategy D", "msls_test", 64.8),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_every_table_and_figure_comes_out(paper, name):
    """Rows that the miniature does not allow are said; at least one comes out, and a figure is drawn."""
    output = paper(name)
    rows = told(output, name)["rows"]
    done = [row for row in rows if not row.get("missing")]
    assert len(rows) >= len(TABLES[name]().rows)
    assert done, rows
    text = (output / f"{name}.md").read_text()
    if TABLES[name]().figure:
        assert list(output.glob(f"{name}*.svg"))
    elif not TABLES[name]().cost:
        assert any(row["figures"] or row["submissions"] for row in done)
    for row in done:
        assert all(not b["published"] for b in row.get("benchmarks", {}).values()), text
