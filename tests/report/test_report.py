"""Reports and their figures as files."""

import json
import subprocess
import sys

import pytest

from covis.benchmarking import ModelSource, WhiteningPlan, evaluate_to
from covis.errors import InputError
from covis.evaluation import load_benchmark
from covis.models import ModelConfig, PlaceModel
from covis.report import write_report


@pytest.fixture(scope="module")
def evaluated(hamlet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evals")
    model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 32), "all"), 0)
    source = ModelSource(model, "small", workers=0, cache=folder / "cache")
    evaluate_to(
        source, load_benchmark("town", hamlet), folder / "evals", WhiteningPlan(sizes=(None, 8, 16)), alone=False
    )
    return folder / "evals"


def covis(*args):
    return subprocess.run([sys.executable, "-m", "covis", *map(str, args)], capture_output=True, text=True, timeout=120)


def test_a_report_from_the_command_line(evaluated, hamlet, tmp_path):
    done = covis("report", evaluated, "-o", tmp_path / "r.html", "--data", hamlet, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["models"]) == 3
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for part in ("recall", "map", "distance", "sizes"):
        assert f'<section id="{part}">' in page


@pytest.mark.parametrize(
    ("figure", "ending", "magic"),
    [("recall", "svg", b"<?xml"), ("sizes", "png", b"\x89PNG"), ("distance", "pdf", b"%PDF")],
)
def test_each_figure_as_a_file(evaluated, tmp_path, figure, ending, magic):
    file = tmp_path / f"f.{ending}"
    done = covis("report", evaluated, "-o", file, "--figure", figure)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--figure", "recal"], "did you mean 'recall'"),
        (["--figure", "batches"], "give run folders"),
    ],
)
def test_wrong_figures_are_told(evaluated, tmp_path, args, words):
    done = covis("report", evaluated, "-o", tmp_path / "f.png", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_figures_of_other_protocols_do_not_mix(evaluated, hamlet, tmp_path):
    from covis.evaluation.result import Evaluation, find_evaluations

    other = load_benchmark("town_val", hamlet)
    found = [Evaluation.open(p) for p in find_evaluations(evaluated)]
    with pytest.raises(InputError, match="other protocols"):
        write_report(tmp_path / "r.html", {"a": found}, other)
    with pytest.raises(InputError, match="at least one"):
        write_report(tmp_path / "r.html", {}, other)
