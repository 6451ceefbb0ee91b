"""Every benchmark knows its dataset and split, and loads on that dataset's miniature."""

import pytest

from covis.datasets import DATASETS
from covis.evaluation import BENCHMARKS, load_benchmark
from layouts import builders


def own_photos(root, images):
    """Four walks up one street, as a table of photos that are not looked at."""
    rows = [f"{w}-{i}.jpg,0,{3 * i},0,{w}" for w in range(4) for i in range(5)]
    (root / "photos.csv").write_text("\n".join(["image,easting,northing,heading,group", *rows]) + "\n")
    return root / "photos.csv"


OURS = {"photos": own_photos, "utm_folders": builders.utm_folders, "campus": builders.campus,
        "cambridge": builders.cambridge, "racetrack": builders.racetrack}  # fmt: skip


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_benchmark_names_its_dataset_and_split(name):
    protocol = BENCHMARKS[name]
    assert protocol.dataset in DATASETS
    assert protocol.split in DATASETS[protocol.dataset].splits


@pytest.mark.parametrize("name", [n for n in BENCHMARKS if BENCHMARKS[n].dataset not in ("table", "town")])
def test_every_benchmark_loads_on_its_miniature(name, request, tmp_path):
    protocol = BENCHMARKS[name]
    if name == "campus_east":
        pytest.skip("the miniature has no photos in the east")
    if protocol.dataset in OURS:
        path = OURS[protocol.dataset](tmp_path, images=False)
    else:
        path = request.getfixturevalue("official")[protocol.dataset]
    benchmark = load_benchmark(name, {protocol.dataset: path})
    assert (benchmark.dataset, benchmark.split) == (protocol.dataset, protocol.split)
    assert (benchmark.relevance is None) == protocol.hidden
    assert bool(benchmark.submission) == protocol.hidden
    assert len(benchmark.queries) > 0


def test_the_truth_of_test_cities_is_used_where_it_is_there(tmp_path):
    builders.msls(tmp_path, images=False)
    hidden = load_benchmark("msls_test", tmp_path)
    for city in builders.MSLS_TEST:  # positions appear beside the lists
        for side in ("query", "database"):
            builders.msls_positions(tmp_path / "test" / city / side)
    scored = load_benchmark("msls_test", tmp_path)
    assert scored.relevance is not None
    assert [q.tolist() for q in (scored.queries.names, scored.database.names)] == [
        q.tolist() for q in (hidden.queries.names, hidden.database.names)
    ]
