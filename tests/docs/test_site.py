"""The documentation's site builds without a warning, and its figures are those of the results."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the `docs` extra")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "SimilarityGraph" in (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def measured():
    spec = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_measured_figures_come_from_result_files(measured):
    images = measured.value("metadata", "rows.0.images")
    assert measured.written("a <!-- metadata rows.0.images , --><!-- / --> b") == (
        f"a <!-- metadata rows.0.images , -->{images:,}<!-- / --> b"
    )
    assert f">{30 / images:.9f}<" in measured.written("<!-- 60/2 / metadata rows.0.images .9f -->0<!-- / -->")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_figure_on_a_page_is_that_of_the_results(measured, page):
    text = page.read_text(encoding="utf-8")
    assert "{{" not in text
    assert text.count("<!-- / -->") == len(measured._FIGURE.findall(text))
    assert measured.written(text) == text, "run: python docs/measured.py"


def test_every_benchmark_that_a_page_names_is_there():
    for page in (ROOT / "docs").rglob("*.md"):
        scripts = re.findall(r"bench_(\w+)\.py`", page.read_text(encoding="utf-8"))
        assert all((ROOT / "benchmarks" / f"bench_{name}.py").is_file() for name in scripts if name != "NAME"), page
