"""Reports and their figures as files."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

import covis as package
import forked
from covis.core.errors import InputError
from covis.describing.describers import open_describer
from covis.evaluation import Evaluation, evaluate, load_benchmark
from covis.evaluation.render import NAMES
from covis.evaluation.result import find_evaluations
from covis.evaluation.run import Variants, evaluate_to
from covis.models import ModelConfig, PlaceModel
from covis.ranking import Ranking
from covis.report import tables, write_report
from covis.report.figures import FIGURES
from covis.report.query_map import severity
from covis.report.study import Study
from covis.report.style import save, svg
from layouts import builders


@pytest.fixture(scope="module")
def evaluated(hamlet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evals")
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 32), "all"), 0).save(folder / "small")
    source = open_describer(folder / "small", workers=0, cache=folder / "cache")
    evaluate_to(source, load_benchmark("town", hamlet), folder / "evals", Variants(sizes=(None, 8, 16)), alone=False)
    return folder / "evals"


def covis(*args):
    return forked.run(args)


@pytest.mark.slow
def test_a_report_from_the_command_line(evaluated, hamlet, tmp_path):
    done = covis("report", evaluated, "-o", tmp_path / "r.html", "--data", hamlet, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["models"]) == 3
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for part in ("recall", "figures", "parts", "map", "distance", "sizes", "differences", "activations", "overlap"):
        assert f'<section id="{part}">' in page
        assert f'<a href="#{part}">' in page
    assert '<section id="batches">' not in page  # nothing was trained here


def test_a_report_is_of_one_benchmark(evaluated, tmp_path):
    """Runs that were scored on several are refused with the way out, and reported on the one that is chosen."""
    benchmark = load_benchmark("table", builders.lane(tmp_path) / "lane.csv")
    others = np.where(np.arange(12)[:, None] < 6, np.arange(6, 12), np.arange(6))
    ranking = Ranking(others, np.tile(np.linspace(0, 1, 6, dtype=np.float32), (12, 1)))
    evaluate(ranking, benchmark).save(tmp_path / "lane")
    command = ("report", evaluated, tmp_path / "lane", "-o", tmp_path / "f.svg", "--figure", "recall")
    done = covis(*command)
    assert done.returncode == 2
    assert "scored on town, table; choose one, such as --benchmark town" in done.stderr
    done = covis(*command, "--benchmark", "table", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["models"]) == 1


@pytest.mark.parametrize(
    ("figure", "ending", "magic"),
    [
        ("recall", "svg", b"<?xml"),
        ("sizes", "png", b"\x89PNG"),
        ("distance", "pdf", b"%PDF"),
    ],
)
def test_each_figure_as_a_file(evaluated, tmp_path, figure, ending, magic):
    file = tmp_path / f"f.{ending}"
    done = covis("report", evaluated, "-o", file, "--figure", figure)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--figure", "recal"], "'recal' is not one of 'recall'"),
        (["--figure", "batches"], "give run folders"),
        (["--figure", "training"], "give run folders"),
        ([], "needs --figure NAME"),
    ],
)
def test_wrong_figures_are_told(evaluated, tmp_path, args, words):
    done = covis("report", evaluated, "-o", tmp_path / "f.png", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_figures_of_other_protocols_do_not_mix(evaluated, hamlet, tmp_path):
    other = load_benchmark("town_val", hamlet)
    found = [Evaluation.open(p) for p in find_evaluations(evaluated)]
    with pytest.raises(InputError, match="other protocols"):
        write_report(tmp_path / "r.html", {"a": found}, other)
    with pytest.raises(InputError, match="at least one"):
        write_report(tmp_path / "r.html", {}, other)


def study_of(folder, data=None):
    return Study({e.label: [e] for e in map(Evaluation.open, find_evaluations(folder))}, {}, data)


def test_the_model_behind_evaluations_is_opened_once(evaluated, hamlet):
    study = study_of(evaluated, hamlet)
    assert study.model_folders == {"small": evaluated.parent / "small"}
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 32), "all"), 1).save(evaluated.parent / "small", replace=True)
    assert study.model_folders == {}  # another model lies there now
    with pytest.raises(InputError, match="evaluations whose model is still there"):
        FIGURES["activations"].draw(study)
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 32), "all"), 0).save(evaluated.parent / "small", replace=True)


def test_confident_wrong_answers_come_first_whether_their_place_is_known_or_not():
    worst_first = [(0.2, 900.0), (0.2, 30.0), (0.2, np.nan), (0.5, 900.0), (0.5, np.nan), (np.nan, np.nan)]
    assert sorted(worst_first, key=lambda answer: -severity(*answer)) == worst_first


def test_a_model_that_cannot_be_opened_is_told_in_its_section(evaluated, hamlet):
    weights = evaluated.parent / "small" / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(b"no")
    section = FIGURES["activations"].section("activations", study_of(evaluated, hamlet))
    weights.write_bytes(content)
    assert "weights.safetensors" in section.body
    assert "<svg" not in section.body


def test_every_figure_of_an_evaluation_is_in_a_table(evaluated):
    study = study_of(evaluated)
    [first] = study.evaluations["small"]
    recalls, rest = tables.recall(study, []).body, tables.further(study).body
    assert f"{first.recall[1]:.1f} [" in recalls
    assert recalls[: recalls.index("</table>")].count("(p = ") == 2
    assert "&lt;" not in recalls
    for key, name in NAMES.items():
        assert (escape(name.text) in rest) == (key in first.figures)
    by_condition = tables.parts(study).body
    assert all(f'<th scope="row">{part}</th>' in by_condition for part in first.figures["breakdown"]["condition"])


def test_figures_are_fit_for_a_paper(evaluated, tmp_path):
    """Type 42 fonts, ticks at the reported k, a band and a marker each line, the width that was asked for, no title."""
    study = study_of(evaluated)
    figure = FIGURES["recall"].draw(study)
    [axes] = figure.axes
    assert axes.get_xticks().tolist() == sorted(study.first.recall)
    assert len(axes.collections) == len({line.get_marker() for line in axes.lines}) == len(study.evaluations)
    for line, band in zip(axes.lines, axes.collections, strict=True):  # the curve runs inside its band, at every k
        low, high = band.get_datalim(axes.transData).intervaly
        assert low <= line.get_ydata().min()
        assert line.get_ydata().max() <= high
        assert len(band.get_paths()[0].vertices) > 2 * len(line.get_ydata())
    save(figure, tmp_path / "recall.pdf", width_in=3.25)
    pdf = (tmp_path / "recall.pdf").read_bytes()
    assert b"/FontType 42" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert figure.get_size_inches()[0] == pytest.approx(3.25)
    assert axes.get_title() == ""


def test_drawings_and_tables_speak_to_screen_readers(evaluated, hamlet):
    study = study_of(evaluated)
    drawn = svg(FIGURES["recall"].draw(study))
    assert 'role="img"' in drawn
    assert "<title>Recall@k, % against k: small" in drawn
    body = tables.recall(study, []).body
    assert body.count('scope="col"') == body.count("<th ") - len(study.evaluations)
    assert "<b>" in body
    assert 'data-copy="LaTeX"' in body
    assert "toprule" in body


def test_names_of_models_cannot_break_the_page(evaluated):
    [first] = study_of(evaluated).evaluations["small"]
    body = tables.recall(Study({"<script>alert(1)</script>": [first]}), []).body
    assert "<script>" not in body


def test_no_html_is_put_together_by_hand():
    """Values reach pages through templates or `Markup.format`, which escape them."""
    tag = re.compile(
        r"</?(a|b|br|code|div|figure|html|i|img|li|ol|p|pre|section|span|svg|table|td|th|title|tr|ul)\b[^>]*>?"
    )
    for file in Path(package.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) and any(isinstance(part, ast.FormattedValue) for part in node.values):
                words = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
                assert not tag.search(words), f"{file.name}:{node.lineno}"
