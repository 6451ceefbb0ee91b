"""Every named protocol on a miniature of its official layout: who is asked, what is relevant, what may match."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.evaluation import BENCHMARKS, load_benchmark
from covis.evaluation.retrieval import evaluate_descriptors, rank_descriptors
from covis.evaluation.submissions import keys, write_submission
from layouts import builders

LAYOUTS = {
    "msls": builders.msls,
    "pitts30k": builders.pitts,
    "tokyo247": builders.tokyo247,
    "tokyotm": builders.tokyotm,
    "robotcar_v2": builders.robotcar,
    "cmu_extended": lambda root, images: builders.cmu(root, slices=range(2, 26), images=images),
    "tb_places": builders.tb_places,
    "7scenes": lambda root, images: builders.seven_scenes(root, ("stairs",), images=True),
    "utm_folders": builders.utm_folders,
}
"""Layouts with what the tests below ask about; every protocol is scored on its dataset's miniature in the contracts."""


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    root = tmp_path_factory.mktemp("layouts")
    return {name: build(root / name, images=False) for name, build in LAYOUTS.items()}


@pytest.fixture(scope="module")
def opened(layouts):
    cache = {}

    def open_once(name):
        if name not in cache:
            cache[name] = load_benchmark(name, layouts[BENCHMARKS[name].dataset])
        return cache[name]

    return open_once


def random_descriptors(benchmark, dim=8):
    rng = np.random.default_rng(0)
    sides = []
    for images in (benchmark.queries, benchmark.database):
        z = rng.normal(size=(len(images), dim)).astype(np.float32)
        sides.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    return (sides[0], sides[0]) if benchmark.one_set else tuple(sides)


def test_every_protocol_that_was_asked_for_has_a_name():
    subtasks = ("s2w", "w2s", "o2n", "n2o", "d2n", "n2d")
    wanted = {"msls_val", "msls_val_all", "msls_test", *(f"msls_{s}_{t}" for s in ("val", "test") for t in subtasks)}
    wanted |= {"pitts30k_val", "pitts30k_test", "pitts250k_test"}
    wanted |= {"tokyo247", "tokyotm_val", "robotcar_v2", "cmu_extended"}
    wanted |= {"tb_places_w17_w18", "tb_places_w18", "town", "table"}
    wanted |= {f"7scenes_{s}" for s in ("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs")}
    assert wanted <= set(BENCHMARKS)


# MSLS


def test_msls_val_is_the_official_reading(opened):
    """Two cities of 8 queries; the last of each is 5 km away, and the last map image is a panorama."""
    val = opened("msls_val")
    assert (len(val.queries), len(val.database)) == (16, 22)
    assert int((np.diff(val.positives.indptr) > 0).sum()) == 14
    assert val.groups == "same"
    assert set(val.breakdown["city"]) == {"cph", "sf"}
    # 30 m apart, 3 m beside: each query has its own map image alone within 25 m.
    assert val.positives.pairs == 14


def test_msls_readings_differ_and_say_so(opened):
    names = ("msls_val", "msls_val_all", "msls_val_s2w")
    assert len({opened(name).fingerprint for name in names}) == 3
    assert opened("msls_val_all").groups == "any"
    assert opened("msls_val_40deg").relevance.facts["max_angle_deg"] == 40
    assert opened("msls_val").relevance.facts["max_angle_deg"] is None


def test_msls_cities_never_share_relevance(opened):
    val = opened("msls_val_all")
    mine, theirs = val.group_codes
    assert (mine[val.positives.rows] == theirs[val.positives.indices]).all()


def test_msls_subtask_filters_both_sides(opened):
    s2w = opened("msls_val_s2w")
    assert all(side.columns["s2w"].all() for side in (s2w.queries, s2w.database))
    assert len(s2w.queries) == 8


def test_msls_search_stays_in_the_city(opened):
    val = opened("msls_val")
    ids, _ = val.settle(rank_descriptors(*random_descriptors(val), val))
    mine, theirs = val.group_codes
    rows, columns = np.nonzero(ids >= 0)
    assert (mine[rows] == theirs[ids[rows, columns]]).all()


def test_msls_test_keys_are_file_names(opened, tmp_path):
    hidden = opened("msls_test")
    path = write_submission(rank_descriptors(*random_descriptors(hidden), hidden), hidden, tmp_path / "p.csv")
    first = path.read_text().splitlines()[1].split(" ")
    assert first[0] == keys(hidden.queries)[0]
    assert "/" not in first[0]
    assert len(first) == 1 + 12


# Pittsburgh, Tokyo, folders


@pytest.mark.parametrize("name", ["pitts30k_test", "tokyo247", "tokyotm_val", "folders_test"])
def test_the_original_evaluators_divide_by_all(opened, name):
    assert opened(name).denominator == "all"


def test_pittsburgh_counts_a_query_without_positive_as_a_miss(opened):
    benchmark = opened("pitts30k_test")
    perfect = np.array([row[0][:1] if len(row[0]) else [0] for row in map(benchmark.positives.row, range(5))])
    from covis.evaluation import evaluate

    figures = evaluate(perfect, benchmark).figures
    assert figures["recall"]["1"] == 80
    assert figures["recall_over_answerable"]["1"] == 100


def test_tokyo247_keeps_the_best_cutout_of_each_panorama(opened):
    benchmark = opened("tokyo247")
    ids, _ = benchmark.settle(rank_descriptors(*random_descriptors(benchmark), benchmark))
    found = [benchmark.database.columns["panorama"][row[row >= 0]].tolist() for row in ids]
    assert all(len(set(row)) == len(row) == 3 for row in found)
    assert benchmark.depth == min(12 * 20, 36)
    assert opened("tokyo247_cutouts").fingerprint != benchmark.fingerprint


def test_tokyotm_drops_the_querys_own_time(opened):
    benchmark = opened("tokyotm_val")
    ids, _ = benchmark.settle(rank_descriptors(*random_descriptors(benchmark), benchmark))
    mine, theirs = benchmark.queries.columns["time_stamp"], benchmark.database.columns["time_stamp"]
    assert all((theirs[row[row >= 0]] != mine[q]).all() for q, row in enumerate(ids))
    assert (ids[:, 0] >= 0).all()
    assert (theirs[benchmark.positives.indices] != mine[benchmark.positives.rows]).all()


# Seasons


def test_robotcar_scores_the_rear_camera(opened):
    benchmark = opened("robotcar_v2_train")
    assert set(benchmark.queries.columns["camera"]) == set(benchmark.database.columns["camera"]) == {"rear"}
    from covis.evaluation import evaluate

    # Queries stand 0.2 m east and 0.1 m north of the reference drive's images 0, 1, 2, turned by 1°.
    figures = evaluate(np.array([[0], [1], [2], [0], [1], [3]]), benchmark).figures
    assert figures["localised"] == pytest.approx({"0.25m_2deg": 500 / 6, "0.5m_5deg": 500 / 6, "5m_10deg": 500 / 6})
    assert figures["breakdown"]["condition"]["dawn"]["localised"]["0.25m_2deg"] == 100
    assert figures["breakdown"]["light"]["night-all"]["localised"]["0.25m_2deg"] == pytest.approx(200 / 3)


def test_cmu_is_searched_slice_by_slice_and_told_by_surroundings(opened):
    benchmark = opened("cmu_extended")
    assert benchmark.groups == "same"
    assert set(benchmark.breakdown["environment"]) == {"urban", "suburban", "park"}
    assert len(benchmark.queries) == 14 * 4
    known = opened("cmu_extended_train")
    assert known.queries.poses.known.all()
    assert len(known.queries) == 10 * 2


# Small places and own photos


def test_small_places_are_graded_and_count_pairs(opened):
    for name in ("tb_places_w17_w18", "tb_places_w18", "7scenes_stairs"):
        benchmark = opened(name)
        assert benchmark.pairs
        assert benchmark.denominator == "all"
        assert benchmark.relevance.psi.min() < 1


def table_of(path, rows, head="image,easting,northing,heading,group"):
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_a_users_table_is_scored_by_distance_and_heading_where_known(tmp_path):
    """0 and 1 face alike 10 m apart; 2 faces away; 3 has no heading; 4 is 30 m off; 5 is of the first's walk."""
    path = table_of(
        tmp_path / "photos.csv",
        ["0.jpg,0,0,10,a", "1.jpg,10,0,350,b", "2.jpg,5,0,190,b", "3.jpg,0,5,,c", "4.jpg,0,-30,10,d", "5.jpg,1,0,10,a"],
    )
    benchmark = load_benchmark("table", path)
    near = {i: benchmark.positives.row(i)[0].tolist() for i in range(6)}
    assert near == {0: [1, 3], 1: [0, 3, 5], 2: [3], 3: [0, 1, 2, 5], 4: [], 5: [1, 3]}


def test_a_table_without_groups_matches_everyone_and_says_so(tmp_path):
    path = table_of(tmp_path / "photos.csv", ["0.jpg,0,0", "1.jpg,10,0", "2.jpg,500,0"], "image,easting,northing")
    benchmark = load_benchmark("table", path)
    assert benchmark.groups == "any"
    assert "no groups" in benchmark.notes[0]
    assert benchmark.positives.row(0)[0].tolist() == [1]


def test_a_table_over_a_continent_is_scored_in_the_metres_that_are_chosen(tmp_path):
    rows = ["0.jpg,55.7,13.2", "1.jpg,55.7001,13.2", "2.jpg,38.7,-9.1", "3.jpg,38.7001,-9.1", "4.jpg,61.4,32.0"]
    path = table_of(tmp_path / "photos.csv", rows, "image,lat,lon")
    with pytest.raises(InputError, match=r"--frame EPSG:CODE"):
        load_benchmark("table", path)
    benchmark = load_benchmark("table", path, frame="EPSG:3035")
    assert benchmark.positives.indices.tolist() == [1, 0, 3, 2]
    assert benchmark.facts()["frame"] == "EPSG:3035"
    with pytest.raises(InputError, match="--frame goes with benchmark table"):
        load_benchmark("photos_new_walks", tmp_path, frame="EPSG:3035")


def test_photos_without_a_position_are_left_out_and_counted(tmp_path):
    path = table_of(tmp_path / "photos.csv", ["0.jpg,0,0,,a", "1.jpg,10,0,,b", "2.jpg,,,,c"])
    benchmark = load_benchmark("table", path)
    assert len(benchmark.queries) == 2
    assert "1 photos without a position are left out" in benchmark.notes
    with pytest.raises(InputError, match="none of the 1 photos has a position"):
        load_benchmark("table", table_of(tmp_path / "none.csv", ["2.jpg,,,,c"]))


def test_the_town_is_scored_by_condition(hamlet):
    benchmark = load_benchmark("town", hamlet)
    figures = evaluate_descriptors(*random_descriptors(benchmark), benchmark).figures
    parts = figures["breakdown"]["condition"]
    assert len(parts) > 1
    assert sum(part["queries"] for part in parts.values()) == figures["queries"]
    assert figures["spearman_psi_distance"] == pytest.approx(0, abs=0.1)
