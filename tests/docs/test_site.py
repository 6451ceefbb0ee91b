"""The documentation's site builds without a warning, and its figures are those of the results."""

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import covis

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
    written = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "site" / "api").glob("*/index.html"))
    anchors = set(re.findall(r'id="(covis[\w.]*)"', written))
    for name in covis.__all__:
        thing = getattr(covis, name)
        if not inspect.ismodule(thing):
            assert f"{thing.__module__}.{thing.__qualname__}" in anchors, f"covis.{name} is on no page of the reference"
    study = (tmp_path / "site" / "train" / "index.html").read_text(encoding="utf-8")
    assert "../images/report-training-dark.webp#only-dark" in study
    assert "<source" not in study


def test_the_front_door_is_on_its_page():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in covis.__all__:
        assert f"`covis.{name}`" in page, name


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[:\[ ](\w\S*\.md)\]?$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


PICTURE = re.compile(r'!\[([^\]]*)\]\(([^)#]+)|(?:src|srcset)="([^"]+)"(?: alt="([^"]*)")?')


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pictures_are_there_small_and_described(page):
    text = page.read_text(encoding="utf-8")
    for alt, file, source, other in PICTURE.findall(text):
        picture = page.parent / (file or source)
        assert picture.stat().st_size < 150_000, picture
        assert alt or other or "-dark." in source, picture
        twin = Path(str(picture).replace("-light.", "-dark."))
        assert twin.is_file(), twin


def test_every_screenshot_is_shown_somewhere():
    text = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    for picture in (ROOT / "docs" / "images").glob("*.webp"):
        assert f"images/{picture.name}" in text, picture.name


@pytest.fixture(scope="module")
def measured():
    spec = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_measured_table_is_that_of_the_results(measured, page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- / -->" not in text, "figures belong into tables"
    assert measured.written(text) == text, "run: python docs/measured.py"
