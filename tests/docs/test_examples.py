"""Examples that readers copy: in docstrings, and the two notebooks, run as written on the smallest town."""

import ast
import doctest
import importlib
import json
import operator
import pydoc
import re
import sys
from pathlib import Path

import pytest

import covis

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MODULES = (
    "artifacts",
    "errors",
    "evaluation.metrics",
    "graph",
    "labels.fov",
    "poses",
    "progress",
    "ranking",
    "reading.sources",
    "registry",
    "whitening",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"covis.{name}"), raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_of_covis_in_python_on_the_pages_exist(page):
    """Blocks that need a reader's data are not run; what they import and call of covis is there all the same."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covis"):
                for alias in node.names:
                    __import__(node.module, fromlist=[alias.name])
                    assert hasattr(sys.modules[node.module], alias.name), f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"covis(\.\w+)+", name := ast.unparse(node)):
                operator.attrgetter(name.removeprefix("covis."))(covis)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_of_covis_in_the_text_of_the_pages_exist(page):
    for name in set(re.findall(r"`(covis(?:\.\w+)+)(?:\([^`]*\))?`", page.read_text(encoding="utf-8"))):
        assert pydoc.locate(name) is not None, name


def cells(notebook, kind):
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(notebook, hamlet, tmp_path, monkeypatch, capsys):
    from covis.town.dataset import default_folder

    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    default_folder().symlink_to(hamlet)
    names = {"__name__": "__main__"}
    code = cells(notebook, "code")
    assert sum("STEPS = 500" in cell for cell in code) == 1
    for number, cell in enumerate(code):
        exec(compile(cell.replace("STEPS = 500", "STEPS = 3"), f"{notebook.name}[{number}]", "exec"), names)
    printed = capsys.readouterr().out
    assert "within 25 m" in printed or "p = " in printed


def test_notebooks_are_linked_and_hold_no_output():
    assert len(NOTEBOOKS) == 2
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for notebook in NOTEBOOKS:
        assert f"notebooks/{notebook.name}" in page
        assert all(
            not cell.get("outputs")
            for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
            if cell["cell_type"] == "code"
        )
