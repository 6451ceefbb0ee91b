"""`evaluate`: the figures of small protocols worked out by hand, both denominators, and what is kept of each query."""

import json

import numpy as np
import pytest
from toy_benchmarks import descriptors, drive, graph, street

from covis.core.artifacts import MANIFEST, code
from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation, evaluate
from covis.evaluation.retrieval import evaluate_descriptors, rank_descriptors
from covis.ranking import Ranking


@pytest.fixture
def four():
    """Four queries over five map images 10 m apart: hit at 1, hit at 2, never, and one without a positive."""
    queries, database = street(4, prefix="q"), street(5)
    relevance = graph((4, 5), [(0, 0), (1, 1), (2, 2)])
    ids = np.array([[0, 1, 2], [4, 1, 0], [0, 1, 3], [3, 4, 0]])
    distances = np.array([[0.1, 0.5, 0.6], [0.3, 0.4, 0.5], [0.2, 0.3, 0.4], [0.4, 0.5, 0.6]], np.float32)
    return Ranking(ids, distances), Benchmark("four", queries, database, relevance, "by hand", ks=(1, 2, 3))


def test_recall_over_both_denominators(four):
    ranking, benchmark = four
    figures = evaluate(ranking, benchmark).figures
    assert figures["queries"] == 3
    assert (figures["queries_total"], figures["queries_without_positive"], figures["database"]) == (4, 1, 5)
    assert figures["recall"] == pytest.approx({"1": 100 / 3, "2": 200 / 3, "3": 200 / 3})
    assert figures["recall_over_all"] == {"1": 25, "2": 50, "3": 50}
    assert figures["recall"] == figures["recall_over_answerable"]
    assert figures["recall_curve"] == pytest.approx([100 / 3, 200 / 3, 200 / 3])


def test_a_protocol_that_divides_by_all_has_that_headline(four):
    ranking, benchmark = four
    from dataclasses import replace

    evaluation = evaluate(ranking, replace(benchmark, denominator="all"))
    assert evaluation.figures["queries"] == 4
    assert evaluation.recall == {1: 25, 2: 50, 3: 50}
    assert evaluation.figures["recall_over_answerable"]["1"] == pytest.approx(100 / 3)


def test_what_became_of_each_query_is_kept(four):
    evaluation = evaluate(*four)
    assert evaluation.arrays["first_hit"].tolist() == [1, 2, 0, 0]
    assert evaluation.arrays["relevant"].tolist() == [1, 1, 1, 0]
    assert evaluation.arrays["error_m"].tolist() == [0, 30, 20, 0]
    assert evaluation.hits(2).tolist() == [True, True, False, False]
    assert evaluation.counted.tolist() == [True, True, True, False]
    assert evaluation.figures["median_error_m"] == 10


def test_ids_alone_are_enough(four):
    ranking, benchmark = four
    figures = evaluate(ranking.ids, benchmark).figures
    assert figures["recall"] == evaluate(ranking, benchmark).figures["recall"]


def test_no_query_with_a_positive_is_an_error_never_zero(four):
    ranking, benchmark = four
    with pytest.raises(InputError, match="none of the 4 queries has a relevant map image"):
        evaluate(ranking, Benchmark("none", benchmark.queries, benchmark.database, graph((4, 5), []), "nothing"))


def test_breakdown_counts_each_part_by_itself(four):
    from dataclasses import replace

    ranking, benchmark = four
    split = replace(
        benchmark,
        breakdown={"weather": np.array(["sun", "rain", "rain", "snow"])},
        thresholds=((15.0, 5.0), (25.0, 5.0)),
    )
    figures = evaluate(ranking, split).figures
    weather = figures["breakdown"]["weather"]
    assert weather["sun"] == {
        "queries": 1,
        "recall": {"1": 100, "2": 100, "3": 100},
        "localised": {"15m_5deg": 100, "25m_5deg": 100},
    }
    assert weather["rain"]["recall"] == {"1": 0, "2": 50, "3": 50}
    assert weather["rain"]["localised"] == {"15m_5deg": 0, "25m_5deg": 50}
    assert weather["snow"]["queries"] == 0
    assert "recall" not in weather["snow"]
    assert figures["localised"] == {"15m_5deg": 50, "25m_5deg": 75}


def test_short_rankings_are_said(four):
    ranking, benchmark = four
    assert evaluate(ranking.top(2), benchmark).figures["notes"] == ["4 queries have fewer than 3 results"]


def test_a_query_that_is_a_map_image_too_is_said():
    queries, database = street(2, prefix="m"), street(3, group=["x", "y", "y"])
    both = Benchmark("both", queries, database, graph((2, 3), [(0, 0), (1, 1)]), "itself", ks=(1,))
    assert "2 queries may find the very file" in evaluate([[0], [1]], both).figures["notes"][0]


def test_graded_figures_use_the_graded_similarity():
    benchmark = drive()
    good, bad = (evaluate_descriptors(*descriptors(benchmark, noise), benchmark).figures for noise in (0.05, 2.0))
    assert good["ndcg@10"] > 70 > bad["ndcg@10"]
    assert good["spearman_psi_distance"] < -0.4 < bad["spearman_psi_distance"]
    assert good["recall"]["1"] > bad["recall"]["1"]


def test_sampled_pairs_are_kept_for_plots():
    benchmark = drive()
    queries, database = descriptors(benchmark, 0.3)
    arrays = evaluate_descriptors(queries, database, benchmark).arrays
    rows, columns = arrays["pair_query"], arrays["pair_map"]
    assert arrays["pair_psi"].tolist() == benchmark.graded.lookup(rows, columns).tolist()
    gap = np.linalg.norm(queries[rows] - database[columns], axis=1)
    np.testing.assert_allclose(arrays["pair_distance"], gap, rtol=1e-5, atol=1e-6)


def test_average_precision_over_pairs_where_the_protocol_has_it():
    plain, with_pairs = drive(), drive(pairs=True)
    assert "average_precision" not in evaluate_descriptors(*descriptors(plain, 0.1), plain).figures
    assert 0 < evaluate_descriptors(*descriptors(with_pairs, 0.1), with_pairs).figures["average_precision"] <= 100


def test_an_evaluation_comes_back_from_disk(tmp_path):
    benchmark = drive()
    made = evaluate_descriptors(*descriptors(benchmark, 0.3), benchmark, {"label": "toy", "whitening": None})
    made.save(tmp_path / "eval", config={"benchmark": benchmark.fingerprint})
    found = Evaluation.open(tmp_path / "eval")
    assert json.loads(json.dumps(dict(made.figures))) == dict(found.figures)
    assert found.label == "toy"
    assert found.subject["code"] == code()
    assert set(found.arrays) == set(made.arrays)
    for name, array in made.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
    assert json.loads((tmp_path / "eval" / MANIFEST).read_text())["kind"] == "evaluation"


def test_a_damaged_evaluation_is_not_opened(tmp_path):
    benchmark = drive()
    evaluate_descriptors(*descriptors(benchmark, 0.3), benchmark).save(tmp_path / "eval")
    file = tmp_path / "eval" / "first_hit.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(InputError, match="damaged"):
        Evaluation.open(tmp_path / "eval")


def test_json_has_the_keys_that_programs_rely_on(four):
    data = json.loads(json.dumps(evaluate(*four).json()))
    assert {"benchmark", "fingerprint", "queries", "database", "recall"} <= set(data)
    assert set(data["recall"]) == {"1", "2", "3"}


def test_walks_are_drawn_whole_for_intervals():
    walk = street(40, 5.0, ["a", "b", "c", "d"] * 10)
    gap = np.abs(walk.poses.xy[:, None, 0] - walk.poses.xy[None, :, 0])
    pairs = list(zip(*np.nonzero((gap <= 12) & (gap > 0)), strict=True))
    benchmark = Benchmark("walks", walk, walk, graph((40, 40), pairs), "within 12 m", groups="other")
    queries, database = descriptors(benchmark, 0.3)
    figures = evaluate(rank_descriptors(queries, database, benchmark), benchmark).figures
    assert figures["interval"] == "95% bootstrap over groups of queries"
    low, high = figures["recall_interval"]["1"]
    assert low <= figures["recall"]["1"] <= high


def test_figures_are_typed_and_still_what_json_prints(tmp_path):
    benchmark = drive(queries=20, images=40)
    made = evaluate_descriptors(*descriptors(benchmark, 0.3), benchmark)
    made.save(tmp_path / "e")
    figures = Evaluation.open(tmp_path / "e").figures
    assert figures.recall == made.recall == {int(k): v for k, v in figures["recall"].items()}
    assert figures.recall_interval[1] == tuple(figures["recall_interval"]["1"])
    assert figures.single("median_error_m") == figures["median_error_m"]
    assert figures.single("average_precision") is None
    assert figures.localised == {}
    assert dict(figures) == dict(made.figures)
