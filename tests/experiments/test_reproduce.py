"""Every table and figure of the paper in one run on official miniatures, with a tiny network and one step."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from covis.cli.app import build_app
from covis.datasets.seven_scenes import SCENES
from covis.evaluation import BENCHMARKS
from covis.evaluation.published import COUNTS, other_counts
from covis.evaluation.submissions import Scores
from covis.experiments.paper import published_hours
from covis.experiments.tables import TABLES, choose_rows, needs
from covis.models import PlaceModel, backbones, checkpoints, published

PAPER = [name for name in TABLES if name.startswith(("table", "figure_"))]
TINY = [
    "model.backbone=tiny", "model.weights=null", "model.image_size=[16,16]", "model.trainable=all", "steps=1",
    "validation=\"\"", "cache_gb=0.5",
]  # fmt: skip
ROWS = (
    "VGG-GeM*", "VGG-avg-GCL*", "VGG16*", "GCL (Ours)", "* batches", "resnet18 gc[l]", "chess resnet18*",
    "heads resnet18 GCL", "heads NetVLAD*", "[r]esnet50-gem-gcl",
)  # fmt: skip
"""Rows with a network in each table; every recipe takes a step in the contract tests."""


def slow(test):
    """The first of these tests pays for the run that all look at."""
    return pytest.mark.slow(pytest.mark.timeout(900)(test))


def _datasets():
    """What the tables and figures of the paper are trained and scored on."""
    rows = [row for name in PAPER for row in TABLES[name]().rows]
    scored = {BENCHMARKS[benchmark].dataset for row in rows for benchmark in row.benchmarks}
    return scored | {row.recipe.dataset for row in rows if row.recipe is not None}


@pytest.fixture(scope="module")
def paper(official, tmp_path_factory):
    """Runs `covis reproduce`, all of it in one folder, so that tables share their runs."""
    output = tmp_path_factory.mktemp("paper")
    patch = pytest.MonkeyPatch()
    patch.setenv("COVIS_CACHE", str(output / "cache"))
    patch.setattr("covis.core.machine._chosen_workers", 0)  # a miniature is decoded before a worker process has started
    data = [part for name in sorted(_datasets()) for part in ("--data", f"{name}={official[name]}")]
    settings = [part for setting in TINY for part in ("--set", setting)]

    def run(*arguments):
        command = ["reproduce", *arguments, *data, *settings, "-o", str(output)]
        result = CliRunner().invoke(build_app(), command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return output

    yield run
    patch.undo()


@pytest.fixture(scope="module")
def whole(paper):
    """What one command for all tables and figures wrote, before other tests write to its folder."""
    output = paper(*PAPER, *(part for row in ROWS for part in ("--rows", row)))
    return SimpleNamespace(
        told={name: told(output, name) for name in PAPER},
        text={name: (output / f"{name}.md").read_text() for name in PAPER},
        pictures=[path.name for path in output.glob("*.svg")],
        runs=[path.name for path in (output / "runs").iterdir()],
        scores=Scores.read(output / "scores.csv"),
    )


def told(output, name):
    return json.loads((output / f"{name}.json").read_text())


@slow
@pytest.mark.parametrize("name", PAPER)
def test_every_table_and_figure_comes_out_of_one_run(whole, name):
    """Rows that the miniature does not allow are said; at least one comes out, and a figure is drawn."""
    table, rows = TABLES[name](), whole.told[name]["rows"]
    done = [row for row in rows if not row.get("missing")]
    assert len(rows) >= len(choose_rows(table.rows, ROWS))
    assert done, rows
    if table.figure:
        assert [picture for picture in whole.pictures if picture.startswith(name)]
    elif not table.cost:
        assert any(row["figures"] or row["submissions"] for row in done)
    for row in rows:
        assert all(not b["published"] for b in row.get("benchmarks", {}).values()), "a miniature is another protocol"
        for remark in [row.get("missing", ""), *row.get("remarks", [])]:
            assert "Traceback" not in remark, remark
    assert not any(f"({p.value:.1f})" in whole.text[name] for row in table.rows for p in row.published)


@slow
def test_a_model_that_several_tables_need_is_trained_once(whole):
    used = [
        run.split("/runs/")[1].split("/")[0]
        for t in whole.told.values()
        for row in t["rows"]
        for run in row.get("runs", [])
    ]
    assert set(used) <= set(whole.runs)  # a run that its data does not allow leaves a folder too
    assert len(used) > 3 * len(set(used))
    assert len({name.rpartition("-")[2] for name in whole.runs}) == len(whole.runs), "one folder per recipe"


@slow
def test_hidden_truth_is_awaited_from_each_server(whole):
    awaited = {submission.rpartition("/")[2] for submission, _ in whole.scores.values}
    assert awaited >= {"msls_test", "robotcar_v2", "cmu_extended_one_map"}
    assert set(whole.scores.values.values()) == {None}


@slow
def test_answers_of_a_server_stand_in_the_table(paper, whole):
    output = paper("table1", "--rows", "VGG-GeM-GCL, graded")
    [row] = told(output, "table1")["rows"]
    assert set(row["figures"]) == {"msls_val"}
    assert "published are 740 and 18,871" in row["benchmarks"]["msls_val"]["other_protocol"]
    [file] = row["submissions"]["msls_test"]
    with (output / "scores.csv").open(newline="") as handle:
        lines = [line for line in csv.DictReader(handle) if file.startswith(str(output / line["submission"]))]
    assert [line["figure"] for line in lines] == ["recall@1", "recall@10", "recall@5"]
    answers = output / "answers.csv"
    with answers.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows({**line, "value": 40 + i} for i, line in enumerate(lines))
    paper("table1", "--rows", "VGG-GeM-GCL, graded", "--scores", str(answers))
    [row] = told(output, "table1")["rows"]
    assert row["figures"]["msls_test"]["recall@1"]["values"] == [40.0]
    assert "(41.7)" not in (output / "table1.md").read_text()
    assert Scores.read(answers).values.items() <= Scores.read(output / "scores.csv").values.items()


@slow
def test_an_absent_model_does_not_end_the_table(whole):
    rows = {row["row"]: row for row in whole.told["table11"]["rows"]}
    assert "--model netvlad=FOLDER" in rows["heads NetVLAD off the shelf"]["missing"]
    assert rows["heads resnet18 GCL"]["figures"] or rows["heads resnet18 GCL"]["missing"]
    assert "mean resnet18 GCL" in rows


@pytest.fixture(scope="module")
def netvlad(tmp_path_factory):
    """A model folder made of a checkpoint with the names that NetVLAD's and Patch-NetVLAD's authors give, on small images."""
    backbones.import_timm()
    from torchvision.models import vgg16

    folder = tmp_path_factory.mktemp("netvlad")
    torch.manual_seed(0)
    state = {f"encoder.{name}": t for name, t in vgg16(weights=None).features[:-2].state_dict().items()}
    state |= {"pool.centroids": torch.rand(16, 512), "pool.conv.weight": torch.randn(16, 512, 1, 1)}
    state |= {"WPCA.0.weight": torch.randn(32, 16 * 512, 1, 1), "WPCA.0.bias": torch.zeros(32)}
    torch.save({"epoch": 3, "state_dict": state}, folder / "checkpoint.pth.tar")
    entry = published.PUBLISHED["netvlad16_vgg16"]
    entry = replace(entry, config=replace(entry.config, image_size=(32, 48)))
    model = checkpoints.fill_published(PlaceModel.skeleton(entry.config), entry, folder / "checkpoint.pth.tar")
    model.save(folder / "model")
    return folder / "model"


@slow
def test_rows_of_netvlad_off_the_shelf_come_of_an_imported_checkpoint(paper, netvlad):
    output = paper(
        "table11", "figure_7scenes", "figure_tb_places", "--rows", "*NetVLAD*", "--model", f"netvlad={netvlad}"
    )
    rows = {row["row"]: row for row in told(output, "table11")["rows"]}
    scenes = [f"{scene} NetVLAD off the shelf" for scene in SCENES]
    assert set(rows) == {*scenes, "mean NetVLAD off the shelf"}
    precisions = [rows[name]["figures"][f"7scenes_{name.split()[0]}"]["average_precision"]["mean"] for name in scenes]
    assert all(0 < value <= 100 for value in precisions)
    [mean] = rows["mean NetVLAD off the shelf"]["figures"].values()
    assert mean["average_precision"]["mean"] == pytest.approx(sum(precisions) / len(scenes))
    assert not any(b["published"] for name in scenes for b in rows[name]["benchmarks"].values())
    for figure in ("figure_7scenes", "figure_tb_places"):
        assert all(not row.get("missing") for row in told(output, figure)["rows"])
        assert list(output.glob(f"{figure}*.svg"))


def test_the_list_says_what_a_table_costs_and_which_data_is_there(official):
    command = ["reproduce", "list", "--json", "--data", f"msls={official['msls']}"]
    listed = {e["table"]: e for e in json.loads(CliRunner().invoke(build_app(), command).stdout)}
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


def test_the_page_on_reproducing_says_what_each_table_takes():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    listed = {cells[0].strip("`"): cells for cells in rows if cells[0].strip("`") in PAPER}
    assert set(listed) == set(PAPER)
    keys = {}
    for name, (_, data, runs, hours, _) in listed.items():
        table = TABLES[name]()
        recipes = {row.key: row.recipe for row in table.rows if row.recipe is not None}
        known = sum(published_hours(recipe) or 0 for recipe in recipes.values())
        assert set(data.replace("`", "").split()) == {dataset for row in table.rows for dataset in needs(row)}, name
        assert int(runs) == len(recipes), name
        assert hours == ("" if table.cost or not known else f"{known:g}"), name
        keys |= {} if table.cost else {k: r for k, r in recipes.items() if r.dataset == "msls"}
    assert f"{len(keys)} runs on MSLS" in page
    assert f"{sum(published_hours(recipe) for recipe in keys.values()):,.0f} GPU-hours instead" in page
