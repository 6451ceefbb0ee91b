"""The documentation's site builds without a warning, with measured figures put in."""

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
    for page in ("cost", "evidence", "labels"):
        assert "{{" not in (tmp_path / "site" / page / "index.html").read_text(encoding="utf-8")


def test_measured_figures_come_from_result_files():
    spec = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
    measured = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measured)
    images = measured.value("metadata", "rows.0.images")
    assert measured.on_page_markdown("a {{ metadata rows.0.images , }} b") == f"a {images:,} b"
    assert measured.on_page_markdown("{{ 60/2 / metadata rows.0.images .9f }}") == f"{30 / images:.9f}"
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    filled = measured.on_page_markdown(page)
    assert "{{" in page
    assert "{{" not in filled
    scripts = re.findall(r"bench_(\w+)\.py`", page)
    assert all((ROOT / "benchmarks" / f"bench_{name}.py").is_file() for name in scripts if name != "NAME")
