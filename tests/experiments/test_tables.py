"""Sweeps and tables: rows × seeds, intervals, what the data allows."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import bootstrap

from covis import datasets, experiments
from covis.cli.experiments import _combinations
from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber
from covis.evaluation.published import COUNTS
from covis.experiments import tables
from covis.experiments.running import FrozenOnce, cost_table, four_images, part_of_training, run_folder, run_rows
from covis.experiments.tables import (
    MEAN,
    TABLES,
    Inputs,
    Outcome,
    Row,
    Table,
    compare_rows,
    lacking,
    markdown,
    needs,
    summary,
    with_means,
    write_outcomes,
)
from covis.models import ModelConfig, PlaceModel
from covis.report.reproduction import draw_figure, gather_inputs, reproduce_table
from covis.training.run import Resources
from covis.whitening import WhiteningRule
from layouts import builders

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    base = experiments.get("town_quick")
    small = replace(
        base, model=ModelConfig("tiny", "gem", (32, 32), "all"), batches=replace(base.batches, size=8), steps=3,
        validation="", cache_gb=0.5,
    )  # fmt: skip
    return [Row("A one", small, ("town",)), Row("B two", replace(small, steps=4), ("town",))]


def test_rows_are_trained_scored_summed_up_and_not_made_again(rows, hamlet, tmp_path, capsys):
    quiet = Resources(0, tensorboard=False, plan=False)
    out = tmp_path / "sweep"
    outcomes = run_rows(rows, Inputs(out, {"town": hamlet}, resources=quiet), [0, 1])
    values = outcomes[0].figures["town"]["recall@5"]
    assert len(values) == 2
    assert outcomes[1].costs["images"][0] > outcomes[0].costs["images"][0]
    told = write_outcomes(out, "A sweep", outcomes, [0, 1])
    assert json.loads((out / "table.json").read_text())["rows"] == json.loads(json.dumps(told["rows"]))
    assert "| A one |" in (out / "table.md").read_text()
    capsys.readouterr()
    again = run_rows(rows, Inputs(out, {"town": hamlet}, resources=quiet), [0, 1])
    assert [o.figures for o in again] == [o.figures for o in outcomes]
    talk = capsys.readouterr().err
    assert talk.count("is already done") == talk.count("is already evaluated") == 4


def test_rows_that_differ_in_whitening_or_consensus_share_a_run(rows, hamlet, tmp_path):
    variants = [rows[0], replace(rows[0], rerank="consensus"), replace(rows[0], whiten=4, rerank="consensus")]
    outcomes = run_rows(variants, Inputs(tmp_path, {"town": hamlet}, resources=Resources(0, plan=False)), [0])
    assert [o.row.name for o in outcomes] == [
        "A one", "A one, by consensus", "A one, whitened 4 on the map, by consensus",
    ]  # fmt: skip
    evaluations = sorted(path.name for path in (run_folder(tmp_path, rows[0], 0) / "evals").iterdir())
    assert evaluations == ["town", "town-consensus", "town-whiten4-map-consensus"]


def test_differences_come_in_the_order_of_rows_and_benchmarks(rows, monkeypatch):
    monkeypatch.setattr(tables.Evaluation, "open", lambda path: path)
    monkeypatch.setattr(tables, "paired_differences", lambda first, second: {})
    names = [f"benchmark {letter}" for letter in "zyxwvutsrq"]
    outcomes = [Outcome(row, evaluations={name: [] for name in names}) for row in rows]
    assert [d["benchmark"] for d in compare_rows(outcomes, ["A one"])] == names


def test_a_table_compares_its_rows_query_by_query_and_draws_it(rows, hamlet, tmp_path):
    first, second = (replace(row, graded=True) for row in rows)
    learned = replace(first, whiten=4, fit="train", whitening=WhiteningRule(labels="binary"))
    table = Table("Gains", (first, second, learned), against=("A one",), figure="gains")
    inputs = Inputs(tmp_path, {"town": hamlet}, resources=Resources(0, plan=False))
    told = reproduce_table("gains", table, inputs, 2, False)
    assert [(d["row"], d["against"]) for d in told["differences"]] == [
        ("B two", "A one"), ("A one, whitened 4 on the train by yes/no labels", "A one"),
    ]  # fmt: skip
    gain = told["differences"][0]["figures"]["ndcg@10"]
    means = [row["figures"]["town"]["ndcg@10"]["mean"] for row in told["rows"]]
    assert gain["difference"] == pytest.approx(means[1] - means[0], abs=1e-3)
    assert "| less A one | Recall@1 % |" in (tmp_path / "gains.md").read_text()
    assert told["pictures"] == [str(tmp_path / "gains.svg")]


@pytest.mark.parametrize(
    ("vary", "count"), [(["a=1,2", "b=x"], 2), (["a=[1,2],[3]", "b=0.1,0.2"], 4), (["a=[1,2]"], 1), ([], 1)]
)
def test_values_are_combined_and_lists_stay_whole(vary, count):
    found = _combinations(vary)
    assert len(found) == count
    assert all(setting.count("[") == setting.count("]") for combination in found for setting in combination)


def test_frozen_features_give_the_descriptors_of_the_whole_network(hamlet, tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    images = datasets.load("town", hamlet, "test").queries.subset(np.arange(6))
    model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 32), "last1"))
    found, lost = FrozenOnce(model).describe(images)
    again, _ = FrozenOnce(model).describe(images)
    expected, _ = ModelDescriber(model, workers=0).describe(images)
    assert not lost.any()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found, again)
    images.path(0).rename(images.path(0).with_suffix(".away"))
    try:
        with pytest.raises(InputError, match="1 of 6 images"):
            FrozenOnce(model, workers=1).describe(images)
    finally:
        images.path(0).with_suffix(".away").rename(images.path(0))


def test_the_interval_is_students_over_seeds():
    found = summary([10.0, 12.0, 14.0])
    assert found["mean"] == 12.0
    assert found["half"] == pytest.approx(4.303 * 2 / math.sqrt(3), rel=1e-3)
    assert summary([3.0])["half"] is None
    wide = bootstrap(([10.0, 12.0, 14.0],), np.mean, confidence_level=0.95, random_state=0).confidence_interval
    assert found["half"] > (wide.high - wide.low) / 2  # few seeds deserve more doubt than resampling them shows


def test_a_row_without_its_data_is_told_and_not_run(rows, tmp_path):
    msls = Row("needs MSLS", experiments.get("msls_vgg16_gem_gcl"), ("msls_val",))
    assert "--data msls=PATH" in lacking(msls, Inputs(tmp_path, {}))
    assert lacking(rows[0], Inputs(tmp_path, {})) == ""
    [outcome] = run_rows([msls], Inputs(tmp_path, {}), [0])
    assert "not run" in markdown([outcome])


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_can_be_listed_with_what_it_needs(name):
    table = TABLES[name]()
    assert table.rows
    assert len({row.name for row in table.rows}) == len(table.rows)
    recipe_of = {row.slug: row.recipe for row in table.rows}
    assert all(recipe_of[row.slug] == row.recipe for row in table.rows), "two recipes would share a folder"
    assert all(needs(row) for row in table.rows)


@pytest.mark.parametrize(
    "name", ["table1", "table2", "table3", "table6", "table7", "table8", "table9", "table10", "table11"]
)
def test_published_figures_stand_beside_every_row(name):
    for row in TABLES[name]().rows:
        assert row.published, row.label


def whole_outcome(row, precision=80.0):
    """An outcome with the published counts of its benchmark."""
    [benchmark] = row.benchmarks
    outcome = Outcome(row, counts={benchmark: COUNTS[benchmark]})
    outcome.add(benchmark, {"average_precision": precision})
    return outcome


def test_the_published_mean_stands_beside_the_mean_of_all_whole_scenes_alone():
    table = TABLES["table11"]()
    mine = [whole_outcome(row) for row in table.rows if row.label.endswith("resnet34 GCL")]
    assert with_means(mine, table)[-1].published(MEAN)[0]["average_precision"].value == 89.8
    assert "(89.8)" in markdown(with_means(mine, table))
    printed, reason = with_means(mine[1:], table)[-1].published(MEAN)
    assert (printed, reason) == ({}, "other protocol: the published mean is over 7 scenes")
    mine[0].counts = {mine[0].row.benchmarks[0]: (6, 12)}
    printed, reason = with_means(mine, table)[-1].published(MEAN)
    assert not printed
    assert "6 queries and 12 map images here" in reason


def test_published_figures_do_not_stand_beside_a_model_of_fewer_cities(tmp_path):
    builders.msls(tmp_path / "msls", cities=("amman", "london"))
    reason = part_of_training("msls", "train", tmp_path / "msls")
    assert reason.startswith("other protocol: trained on ")
    assert "of 2 groups of msls train, the whole has 22 groups" in reason
    [row] = [r for r in TABLES["table1"]().rows if r.label == "VGG-GeM-GCL, graded batches"]
    outcome = Outcome(row, counts={"msls_val": COUNTS["msls_val"]})
    outcome.add("msls_val", {"recall@1": 65.0})
    assert outcome.published("msls_val")[0]["recall@1"].value == 65.9
    outcome.differs = reason
    assert outcome.published("msls_val") == ({}, reason)
    assert "65.9" not in markdown([outcome])
    assert reason in markdown([outcome])


def test_the_published_cost_stands_beside_the_published_recipes_alone():
    entry = {"row": "VGG16-GeM-GCL", "peak_gib": 1.0, "epochs": 1, "steps": 20, "hours_per_epoch": 5.0, "device": "GPU"}
    assert "published: memory" in cost_table([entry], "")
    changed = cost_table([entry], "settings were changed by --set")
    assert "published: memory" not in changed
    assert "published figures are left out: settings were changed by --set" in changed


def test_costs_are_measured_with_four_images_and_converge_at_the_best_validation():
    pairs, tuples = (four_images(row.recipe) for row in TABLES["table5"]().rows[2:0:-1])
    assert pairs.batches.size == 2
    assert tuples.batches.size * (2 + tuples.batches.negatives) == 4
    entry = {"row": "ResNetXt-GeM-GCL", "peak_gib": 1.0, "epochs": 1, "steps": 20, "hours_per_epoch": 28.0,
             "device": "GPU", "epochs_to_best": 0.5}  # fmt: skip
    assert "| 1 (0.5) | 28.00 | 14.00 | 4.77 GB | 1 (1/2) |" in " ".join(cost_table([entry], "").split())


def test_a_figure_without_any_scored_row_is_said_and_not_drawn(tmp_path, capsys):
    table = TABLES["figure_7scenes"]()
    outcomes = [Outcome(row, missing="its scene is absent") for row in table.rows]
    assert draw_figure("figure_7scenes", table, outcomes, Inputs(tmp_path, {})) == []
    assert "figure_7scenes.svg is not drawn: none of its rows was scored" in capsys.readouterr().err


def test_a_model_that_is_no_netvlad_is_refused(tmp_path):
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 32))).save(tmp_path / "gem")
    rows = TABLES["table11"]().rows
    with pytest.raises(InputError, match="its pooling is gem, not NetVLAD"):
        gather_inputs(rows, tmp_path, None, models=[f"netvlad={tmp_path / 'gem'}"])
    with pytest.raises(InputError, match="the name is netvlad"):
        gather_inputs(rows, tmp_path, None, models=[f"vlad={tmp_path / 'gem'}"])
