"""Examples that readers copy: in docstrings, and the two notebooks, run as written on the smallest town."""

import ast
import doctest
import importlib
import inspect
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
    "core.artifacts",
    "core.errors",
    "evaluation.metrics",
    "graph",
    "labels.fov",
    "poses",
    "core.progress",
    "ranking",
    "reading.sources",
    "core.registry",
    "whitening",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"covis.{name}"), raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


ON_THE_TOWN = (
    "descriptors",
    "describing.describers",
    "describing.embedding",
    "evaluation.benchmark",
    "evaluation.result",
    "experiments.recipes",
    "images",
    "maps.map",
    "models.place_model",
    "training.recipe",
    "training.run",
)


@pytest.fixture
def small_town(hamlet, tmp_path, monkeypatch):
    """A folder to run in, where the default town is the smallest one."""
    from covis.town.dataset import default_folder

    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    default_folder().symlink_to(hamlet)


def test_examples_in_docstrings_on_the_town(small_town):
    for name in ON_THE_TOWN:
        result = doctest.testmod(importlib.import_module(f"covis.{name}"), raise_on_error=False)
        assert result.attempted > 0, name
        assert result.failed == 0, name


def test_every_name_of_the_front_door_has_an_example():
    """In its docstring, or in that of the class it returns; packages are described on the pages."""
    shown = {"InputError": "core.errors", "load_benchmark": "evaluation.benchmark"}
    for name in covis.__all__:
        thing = getattr(covis, name)
        if not inspect.ismodule(thing):
            module = shown.get(name)
            text = thing.__doc__ if module is None else inspect.getsource(importlib.import_module(f"covis.{module}"))
            assert ">>> " in text, name


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
        assert name == "covis.plugins" or pydoc.locate(name) is not None, name  # a group of entry points


def cells(notebook, kind):
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(notebook, small_town, capsys, monkeypatch):
    from covis.town.config import TownConfig
    from covis.town.sample import write_sample

    monkeypatch.setattr(write_sample, "__defaults__", (TownConfig.small(),))
    names = {"__name__": "__main__"}
    code = cells(notebook, "code")
    assert sum("STEPS = 500" in cell for cell in code) == 1
    for number, cell in enumerate(code):
        exec(compile(cell.replace("STEPS = 500", "STEPS = 3"), f"{notebook.name}[{number}]", "exec"), names)
    printed = capsys.readouterr().out
    assert "within 25 m" in printed or "p = " in printed


def test_notebooks_are_linked_and_hold_what_they_print_and_draw():
    assert len(NOTEBOOKS) == 2
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for notebook in NOTEBOOKS:
        assert f"notebooks/{notebook.name}" in page
        code = [c for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        outputs = [output for cell in code for output in cell["outputs"]]
        assert any("image/png" in output.get("data", {}) for output in outputs)
        assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
