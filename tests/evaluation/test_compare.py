"""Comparisons: like with like alone, the right one ahead, chance called chance, and what differs named."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import bootstrap
from toy_benchmarks import descriptors, drive

from covis.core.errors import InputError
from covis.evaluation.compare import compare, subject_differences
from covis.evaluation.differences import paired_differences
from covis.evaluation.published import PROTOCOLS, PUBLISHED_TABLES, published, rows
from covis.evaluation.render import comparison_text
from covis.evaluation.result import Evaluation, find_evaluations
from covis.evaluation.retrieval import evaluate_descriptors


def scored(noise, label, benchmark=None, seed=0, **subject):
    benchmark = benchmark or drive(queries=120, images=240)
    return evaluate_descriptors(*descriptors(benchmark, noise, seed), benchmark, {"label": label, **subject})


def method(name, noise):
    """Three networks of a method."""
    return [scored(noise, name, seed=seed, fingerprint=f"{name}{seed}", recipe={"loss": name}) for seed in range(3)]


def scored_seed(evaluations):
    return [replace(e, subject={**e.subject, "seed": seed}) for seed, e in enumerate(evaluations)]


def test_the_better_method_is_found_and_the_difference_tested():
    noises = {"poor": 1.5, "good": 0.2, "also poor": 1.5}
    found = [e for name, noise in noises.items() for e in scored_seed(method(name, noise))]
    [entry] = compare(found)["comparisons"]
    first, good, again = entry["rows"]
    assert entry["best"] == "good"
    assert first["against_first"] == {}
    assert good["against_first"]["1"]["significant"]
    assert good["against_first"]["1"]["difference"] == pytest.approx(good["recall"]["1"] - first["recall"]["1"])
    assert good["against_first"]["1"]["low"] > 0
    assert not again["against_first"]["1"]["significant"]


def test_two_networks_get_no_star_however_much_they_differ():
    result = compare([scored(1.5, "poor"), scored(0.2, "good")])
    test = result["comparisons"][0]["rows"][1]["against_first"]["1"]
    assert test["networks_differ"]
    assert not test["significant"]
    text = comparison_text(result)
    assert "these two networks differ on these queries" in text
    assert "*" not in text


def test_what_differs_is_named():
    a = scored(0.5, "a", preprocessing={"image_size": [64, 64], "mean": 0.5}, whitening=None)
    b = scored(0.5, "b", preprocessing={"image_size": [96, 96], "mean": 0.5}, whitening={"fit": "map"})
    found = compare([a, b])["comparisons"][0]["differences"]
    assert found == {
        "label": ["a", "b"],
        "preprocessing.image_size": [[64, 64], [96, 96]],
        "whitening.fit": [None, "map"],
    }


def test_figures_of_one_name_and_two_protocols_are_refused():
    other = drive(queries=119, images=240)
    with pytest.raises(InputError, match=r"not on the same protocol \(queries: 120 against 119"):
        compare([scored(0.5, "a"), scored(0.5, "b", other)])


def test_figures_of_different_benchmarks_are_not_ranked():
    from dataclasses import replace

    other = replace(drive(queries=120, images=240), name="elsewhere", denominator="all")
    with pytest.raises(InputError, match="different protocols"):
        compare([scored(0.5, "a"), scored(0.5, "b", other)])
    result = compare([scored(0.5, "a"), scored(0.7, "b"), scored(0.5, "c", other)])
    assert result["alone"] == ["c on elsewhere"]


def test_one_alone_has_nothing_to_be_compared_with():
    with pytest.raises(InputError, match="two or more"):
        compare([scored(0.5, "a")])


def test_differences_over_places_and_seeds_are_those_of_the_figures():
    first, second = ([scored(noise, "a", seed=s) for s in (0, 1, 2)] for noise in (1.0, 0.6))
    found = paired_differences(first, second)
    for key in ("ndcg@10", "spearman_psi_distance_similar"):
        means = [np.mean([e.figures[key] for e in side]) for side in (first, second)]
        assert found[key]["difference"] == pytest.approx(means[1] - means[0], abs=1e-4)
    means = [np.mean([e.recall[1] for e in side]) for side in (first, second)]
    gain = found["recall@1"]
    assert gain["difference"] == pytest.approx(means[1] - means[0])
    assert gain["low"] < gain["difference"] < gain["high"]
    assert gain["low"] > 0
    itself = paired_differences(first, first)
    assert all(entry["difference"] == 0 and entry["low"] < 0 < entry["high"] for entry in itself.values())


def test_intervals_over_places_are_scipys_where_every_query_is_a_place():
    first, second = scored(1.0, "a"), scored(0.7, "b")
    each = dict(second.arrays, query_xy=np.arange(len(second.arrays["query_xy"]))[:, None] * [1e3, 0.0])
    sides = [replace(first, arrays={**first.arrays, "query_xy": each["query_xy"]}), replace(second, arrays=each)]
    found = paired_differences([sides[0]], [sides[1]])["recall@1"]
    gap = 100.0 * (second.hits(1).astype(float) - first.hits(1))[first.counted]
    low, high = bootstrap((gap,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    assert found["low"] == pytest.approx(low, abs=2.0)
    assert found["high"] == pytest.approx(high, abs=2.0)


def test_other_protocols_have_no_paired_difference():
    with pytest.raises(InputError, match="different protocols"):
        paired_differences([scored(1.0, "a")], [scored(1.0, "b", drive(queries=60, images=120))])


def test_differences_of_nested_facts():
    assert subject_differences([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}]) == {"a.c": [2, None]}


def test_evaluations_are_found_anywhere_below(tmp_path):
    a, b = scored(0.5, "a"), scored(0.9, "b")
    a.save(tmp_path / "all" / "a")
    b.save(tmp_path / "all" / "b")
    assert [p.name for p in find_evaluations(tmp_path / "all")] == ["a", "b"]
    assert find_evaluations(tmp_path / "all" / "a") == [tmp_path / "all" / "a"]
    for size in (1024, 64):
        a.save(tmp_path / "sizes" / f"w{size}")
    assert [p.name for p in find_evaluations(tmp_path / "sizes")] == ["w64", "w1024"]
    a.save(tmp_path / "sweep" / "runs" / "cl-1" / "seed-0" / "evals" / "town")
    assert [p.name for p in find_evaluations(tmp_path / "sweep")] == ["town"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no evaluation"):
        find_evaluations(tmp_path / "empty")
    entry = compare([Evaluation.open(p) for p in find_evaluations(tmp_path / "all")])["comparisons"][0]
    assert [row["label"] for row in entry["rows"]] == ["a", "b"]


# Published figures


def test_every_table_is_there_and_every_cell_is_read():
    cells = sum(bool(v) for t in PUBLISHED_TABLES for row in rows(t) for k, v in row.items() if _is_figure(t, k))
    assert len(published()) == cells
    assert len(PUBLISHED_TABLES) == 11


def _is_figure(table, column):
    if table == "table11_7scenes_ap":
        return column != "scene"
    return (column[-1].isdigit() and "_r" in column) or column.endswith("deg")


@pytest.mark.parametrize(
    ("benchmark", "method", "figure", "value"),
    [
        ("msls_val", "VGG-GeM-GCL", "recall@1", 65.9),
        ("pitts30k_test", "ResNet152-GeM-GCL", "recall@5", 91.5),
        ("cmu_extended_one_map", "ResNext-GeM-GCL*", "localised@5m_10deg", 74.9),
        ("7scenes_stairs", "resnet34_gcl", "average_precision", 94.4),
        ("msls_val", "VGG-GeM-GCL, strategy B", "recall@5", 78.8),
    ],
)
def test_some_figures_as_printed(benchmark, method, figure, value):
    assert value in [p.value for p in published(benchmark) if p.method == method and p.figure == figure and not p.part]


def test_known_misprints_are_never_targets():
    doubtful = {(p.table, p.method) for p in published() if p.doubtful}
    assert ("table7_robotcar_detailed", "ResNet152-GeM-GCL") in doubtful
    assert ("table7_robotcar_detailed", "ResNext-avg-GCL*") in doubtful
    assert not any(p.doubtful for p in published("msls_val"))


def test_whitened_figures_say_what_they_were_fitted_on():
    assert all(any("map images" in c for c in p.caveats) for p in published() if p.whitened)
    stars = [p for p in published() if p.method.endswith("*")]
    assert all(p.whitened for p in stars if p.table.startswith(("table6", "table7")))
    assert not any(p.whitened for p in stars if p.table == "table2_sota" and "Patch" not in p.method)


def test_every_prefix_names_a_benchmark():
    from covis.evaluation import BENCHMARKS

    assert all(name in BENCHMARKS for name in PROTOCOLS.values())


def test_the_evaluations_of_a_run_are_found_below_it(tmp_path):
    run = tmp_path / "runs" / "quick"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(InputError, match=f"covis evaluate {run} BENCHMARK -o {run}/evals/BENCHMARK"):
        find_evaluations(run)
    scored(0.5, "one").save(run / "evals" / "town")
    assert find_evaluations(run) == [run / "evals" / "town"]
    with pytest.raises(InputError, match="does not exist"):
        find_evaluations(tmp_path / "nothing")


def test_a_comparison_can_be_pasted_into_a_paper(tmp_path, capsys):
    from covis.cli import main

    for name, noise in (("cl", 0.9), ("gcl", 0.3)):
        scored(noise, name).save(tmp_path / name)
    for dress, start in (("latex", "toprule"), ("markdown", "| --- | ---: |"), ("csv", ",Recall@1 %")):
        with pytest.raises(SystemExit) as stop:
            main(["compare", str(tmp_path / "cl"), str(tmp_path / "gcl"), "--format", dress])
        assert not stop.value.code
        told = capsys.readouterr().out
        assert start in told
        if dress == "latex":  # nothing but tables and comments, the best in bold
            assert "\\textbf{" in told
            outside = re.sub(r"\\begin\{tabular\}.*?\\end\{tabular\}", "", told, flags=re.DOTALL)
            assert all(line.startswith("% ") for line in outside.split("\n") if line)
        elif dress == "markdown":
            assert "**" in told
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "cl"), str(tmp_path / "gcl"), "--format", "latx"])
    assert "'latx' is not one of 'text', 'markdown', 'latex'" in capsys.readouterr().err
