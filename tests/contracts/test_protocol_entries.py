"""Every benchmark knows its dataset and split, and loads on that dataset's miniature."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.datasets import DATASETS
from covis.evaluation import BENCHMARKS, load_benchmark
from covis.evaluation.retrieval import evaluate_descriptors, rank_descriptors
from covis.evaluation.submissions import write_submission
from layouts import builders
from layouts.miniatures import miniatures

EVERY = pytest.mark.parametrize("name", list(BENCHMARKS))


def random_descriptors(benchmark, dim=8):
    rng = np.random.default_rng(0)
    sides = [
        rng.normal(size=(len(images), dim)).astype(np.float32) for images in (benchmark.queries, benchmark.database)
    ]
    queries, database = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in sides)
    return queries, queries if benchmark.one_set else database


@EVERY
def test_it_names_its_dataset_and_split(name):
    protocol = BENCHMARKS[name]
    assert protocol.dataset in DATASETS
    assert protocol.split in DATASETS[protocol.dataset].splits


@EVERY
def test_it_scores_or_writes_a_submission_on_its_miniature(name, official, tmp_path):
    protocol = BENCHMARKS[name]
    path = official[protocol.dataset]
    if protocol.split in miniatures()[protocol.dataset].without:
        return
    benchmark = load_benchmark(name, {protocol.dataset: path})
    assert (benchmark.dataset, benchmark.split) == (protocol.dataset, protocol.split)
    assert (benchmark.relevance is None) == protocol.hidden == bool(benchmark.submission)
    queries, database = random_descriptors(benchmark)
    if protocol.hidden:
        upload = write_submission(rank_descriptors(queries, database, benchmark), benchmark, tmp_path / "upload")
        assert len(upload.read_text().strip().splitlines()) >= len(benchmark.queries)
        with pytest.raises(InputError, match="hidden"):
            evaluate_descriptors(queries, database, benchmark)
    else:
        figures = evaluate_descriptors(queries, database, benchmark).figures
        assert figures["queries"] > 0
        assert figures["rule"]
        assert figures["fingerprint"] == benchmark.fingerprint


@EVERY
def test_it_asks_for_its_data(name):
    if DATASETS[BENCHMARKS[name].dataset].default is None:
        with pytest.raises(InputError, match="give --data"):
            load_benchmark(name)


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
