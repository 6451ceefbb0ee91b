"""The plugin of photographs that are not public: its names, its splits, its protocols and its tables."""

import json
from pathlib import Path

import numpy as np
import photographs
import pytest

from covis import datasets
from covis.core.errors import InputError
from covis.datasets import DATASETS
from covis.evaluation import BENCHMARKS, load_benchmark
from covis.evaluation.scoring import evaluate
from covis.experiments import TABLES, get
from covis.labels import Radius
from covis.models import POOLS

pytestmark = pytest.mark.usefixtures("evidence")
RESULTS = sorted((Path(__file__).parents[2] / "evidence" / "results").glob("*.json"))
SETS = ("campus", "cambridge", "racetrack")


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    root = photographs.photo_sets(tmp_path_factory.mktemp("photographs"))
    return {**{name: root / name for name in SETS}, "photo_sets": root}


@pytest.fixture(scope="module")
def opened(layouts):
    return lambda name: load_benchmark(name, layouts[BENCHMARKS[name].dataset])


def test_a_plugin_adds_datasets_benchmarks_recipes_and_tables(evidence):
    assert {*SETS, "photo_sets"} <= set(DATASETS)
    assert {"campus_west", "cambridge_val", "racetrack_val"} <= set(BENCHMARKS)
    assert {"campus_mobilenetv2_gcl", "cambridge_listwise", "photo_sets"} <= evidence["recipe"]
    assert {"campus_table1", "racetrack_labels", "transfer"} <= evidence["table"]


def test_its_recipes_and_tables_name_things_that_exist(evidence):
    for recipe in map(get, evidence["recipe"]):
        assert recipe.split in DATASETS[recipe.dataset].splits
        assert recipe.model.pool in POOLS
        assert not recipe.validation or BENCHMARKS[recipe.validation].dataset == recipe.dataset
    for table in (TABLES[name]() for name in evidence["table"]):
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)
        assert set(table.against) <= set(names)
        assert all(set(row.benchmarks) <= set(BENCHMARKS) for row in table.rows)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_of_rows_that_its_table_has(path):
    if path.stem in TABLES:
        written = json.loads(path.read_text(encoding="utf-8"))
        assert f"covis reproduce {path.stem}" in written["command"]
        assert {row["row"] for row in written["rows"]} <= {row.name for row in TABLES[path.stem]().rows}


def test_every_split_is_read(layouts):
    for name in (*SETS, "photo_sets"):
        for split in DATASETS[name].splits:
            if split != "east":  # no miniature photo lies there
                images = datasets.load(name, layouts[name], split).database
                assert all(images.path(i).is_file() for i in range(len(images)))


def test_campus(layouts):
    queries, database = datasets.load("campus", layouts["campus"], "west")
    assert queries is database
    assert len(queries.group_names) == 3
    assert queries.columns["minute_of_day"].dtype == np.int64
    assert queries.columns["region"].max() == 2


def test_campus_parts_are_apart(layouts):
    north, rest = (datasets.load("campus", layouts["campus"], s).queries for s in ("north", "without_north"))
    assert set(north.columns["region"]) == {8}
    assert not set(rest.group) & set(north.group)
    assert len(north) + len(rest) == len(datasets.load("campus", layouts["campus"], "train").queries)
    east = datasets.load("campus", layouts["campus"], "without_east").queries
    assert set(east.columns["region"]) == {8}, "region 0 lies half a metre beside the held-out part"


def test_campus_new_walks_are_not_on_the_map(layouts):
    queries, database = datasets.load("campus", layouts["campus"], "new_walks")
    known = datasets.load("campus", layouts["campus"], "known_walks")
    assert known.queries is known.database
    assert known.queries.fingerprint() == database.fingerprint()
    assert len(queries)
    assert not set(queries.group) & set(database.group)


@pytest.mark.parametrize("name", ["cambridge", "racetrack"])
def test_a_held_out_part_stays_away_from_what_is_trained_on(layouts, name):
    held, rest, whole = (datasets.load(name, layouts[name], s) for s in ("held_out", "without_held_out", "train"))
    gap = np.linalg.norm(held.database.poses.xy[:, None] - rest.database.poses.xy[None], axis=2)
    assert gap.min() >= 60
    assert len(held.queries) + len(rest.queries) == len(whole.queries)
    assert (whole.queries is whole.database) == (name == "cambridge")


def test_a_race_track_without_days_is_refused(tmp_path):
    photographs.cambridge(tmp_path, images=False)
    with pytest.raises(InputError, match="without the column 'day'"):
        datasets.load("racetrack", tmp_path, "val")


def test_three_sets_side_by_side_share_no_place_and_no_group(layouts):
    root = layouts["campus"].parent
    images = datasets.load("photo_sets", root, "train").queries
    parts = [name.split("/")[0] for name in images.group_names]
    assert set(parts) == {"campus", "cambridge", "racetrack"}
    assert {"racetrack/day1", "racetrack/day2"} <= set(images.group_names)
    part = np.array(parts)[images.group]
    east = [images.poses.xy[part == name, 0] for name in ("campus", "cambridge", "racetrack")]
    assert east[0].max() + 5000 < east[1].min()
    assert east[1].max() + 5000 < east[2].min()
    track = datasets.load("racetrack", root / "racetrack", "train")
    assert (part == "racetrack").sum() == len(track.queries) + len(track.database)


def test_real_street_views_and_drives(shared_data):
    for name in ("cambridge", "racetrack"):
        for key, count in datasets.DATASETS[name].published.items():
            split, side = key.split("/")
            assert len(getattr(datasets.load(name, shared_data / name, split), side)) == count


def test_real_campus(shared_data):
    for split, photos, walks in (("train", 2805, 63), ("west", 1872, 35)):
        images = datasets.load("campus", shared_data / "campus", split).queries
        assert len(images) == photos
        assert len(images.group_names) == walks
        assert not np.isnan(images.poses.heading).all()


def test_campus_photos_never_match_their_own_walk(opened):
    benchmark = opened("campus_west")
    walk = benchmark.queries.group
    assert benchmark.groups == "other"
    assert (walk[benchmark.positives.rows] != walk[benchmark.positives.indices]).all()


def test_street_views_never_match_their_own_panorama(opened):
    benchmark = opened("cambridge_val")
    assert benchmark.one_set
    graph = benchmark.positives
    assert (benchmark.queries.group[graph.rows] != benchmark.queries.group[graph.indices]).all()
    # Panoramas 6 m apart: none has a neighbour within 5 m, the next within 10 m, four within 25 m, at one's own heading.
    assert {name: truth.pairs for name, truth in benchmark.stricter.items()} == {"5m_40deg": 0, "10m_40deg": 88}
    assert np.diff(graph.indptr).max() == 8


def test_the_second_day_asks_the_first(opened):
    benchmark = opened("racetrack_val")
    assert set(benchmark.queries.columns["day"]) == {2}
    assert set(benchmark.database.columns["day"]) == {1}
    assert list(benchmark.stricter) == ["2m_40deg", "5m_40deg", "10m_40deg"]
    training = benchmark.training()
    assert training.group_names == ("day1", "day2")
    assert (training.group == training.columns["day"] - 1).all()


def test_street_views_and_drives_as_counted_on_the_real_photos(shared_data):
    cambridge = load_benchmark("cambridge_val", shared_data / "cambridge")
    racetrack = load_benchmark("racetrack_val", shared_data / "racetrack")
    answerable = {
        b.name: [int((np.diff(g.indptr) > 0).sum()) for g in (*b.stricter.values(), b.positives)]
        for b in (cambridge, racetrack)
    }
    assert answerable == {"cambridge_val": [292, 488, 640], "racetrack_val": [693, 695, 695, 695]}


def test_campus_counts_on_the_real_photos(shared_data):
    benchmark = load_benchmark("campus_west", shared_data / "campus")
    assert (len(benchmark.queries), int((np.diff(benchmark.positives.indptr) > 0).sum())) == (1872, 1864)


def test_stricter_truths_have_recalls_of_their_own(opened):
    benchmark = opened("racetrack_val")
    pairs = Radius(5.0, 40.0)(benchmark.queries, benchmark.database)
    ideal = [
        np.lexsort([np.linalg.norm(benchmark.database.poses.xy - at, axis=1)])[:25] for at in benchmark.queries.poses.xy
    ]
    figures = evaluate(np.array(ideal), benchmark).figures["recall_stricter"]["5m_40deg"]
    assert figures == {
        "queries": int((np.diff(pairs.indptr) > 0).sum()),
        "recall": dict.fromkeys(figures["recall"], 100.0),
    }
    left = benchmark.without(np.arange(len(benchmark.queries)) == 0, np.zeros(len(benchmark.database), bool), "a test")
    assert left.stricter["5m_40deg"].shape == (len(benchmark.queries) - 1, len(benchmark.database))
    assert left.fingerprint != benchmark.fingerprint
