"""What CONTRIBUTING.md says of adding a thing is true: its files, really written, are found and work, in the package and outside."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import covis
from contracts.additions import FILES, LISTED, MINIATURE
from layouts import builders

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(covis.__file__).parents[1]
SMALL = ["--set", "model.image_size=16,16", "--set", "steps=2", "--set", "cache_gb=0.5", "--workers", "0"]
COMMANDS = """
import contextlib, io, json, sys
from covis.cli import main
said = []
for args in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main(args)
        except SystemExit as end:
            said.append([end.code or 0, out.getvalue()])
print(json.dumps(said))
"""
"""Runs commands one after another in one process; prints the exit code and output of each."""


CONTRACTS = ("datasets", "protocol_entries", "losses", "models", "samplers", "recipes")


class Place:
    """A folder, the environment of commands in it, and what stands before every verb."""

    def __init__(self, folder, paths, before=()):
        self.folder, self.before = folder, list(before)
        path = os.pathsep.join(map(str, paths))
        self.environment = {**os.environ, "PYTHONPATH": path, "COVIS_CACHE": str(folder / "cache")}

    def python(self, *args):
        return subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=280,
        )  # fmt: skip

    def covis(self, *commands):
        """The outputs of commands, which must all end well."""
        lines = [[*self.before, *map(str, command)] for command in commands]
        done = self.python("-c", COMMANDS, json.dumps(lines))
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        assert [code for code, _ in said] == [0] * len(commands), done.stderr
        return [text for _, text in said]


@pytest.fixture
def copy(tmp_path):
    """A copy of the package with a file of each kind, and of its contract tests with one more miniature."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in FILES.values():
        with (tmp_path / "src" / "covis" / path).open("a", encoding="utf-8") as file:
            file.write(text)
    (tmp_path / "tests" / "layouts" / "lane.py").write_text(MINIATURE, encoding="utf-8")
    return Place(tmp_path, [tmp_path / "src", tmp_path / "tests"])


@pytest.fixture
def plugin(tmp_path):
    """A package outside covis that brings the same, and a module with the miniature for its tests."""
    package = tmp_path / "lane_plugin"
    package.mkdir()
    modules = []
    for number, (_, text) in enumerate(FILES.values()):
        modules.append(f"part{number}")
        (package / f"{modules[-1]}.py").write_text(text, encoding="utf-8")
    (package / "__init__.py").write_text(f"from lane_plugin import {', '.join(modules)}\n", encoding="utf-8")
    (tmp_path / "lane_layout.py").write_text(MINIATURE, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return Place(
        tmp_path,
        [SOURCE, ROOT / "tests", tmp_path],
        ["--import", "lane_plugin"],
    )


def check(place):
    lane = builders.lane(place.folder / "photos", photos=8, apart_m=20, turned_deg=0) / "lane.csv"
    train = ("train", "lane_springs", "--data", lane, *SMALL, "-o", "run")
    evaluate = ("evaluate", "run", "lane_walks", "--data", lane, "--json")
    lists = [("list", kind, "--json") for kind in LISTED]
    *listed, shown, said, _, plain, reranked = place.covis(
        *lists, ("--help",), ("greet", "--json"), train,
        (*evaluate, "-o", "plain"), (*evaluate, "--rerank", "by_name", "-o", "reranked"),
    )  # fmt: skip
    for (kind, name), names in zip(LISTED.items(), listed, strict=True):
        assert name in json.loads(names), kind
    assert re.search(r"This installation:\n(.+\n)*  greet +Say hello\.\n", shown)
    assert json.loads(said) == {"hello": "world"}
    assert json.loads(plain)["recall"]["1"] == 100.0  # the second walk repeats the first, photo by photo
    assert json.loads(reranked)["recall"]["1"] < 100.0


def check_contracts(place, tests, *options):
    files = [tests / "contracts" / f"test_{kind}.py" for kind in CONTRACTS]
    done = place.python("-m", "pytest", "-p", "no:cacheprovider", *options, *files, "-k", " or ".join(LISTED.values()))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.count(".") > len(LISTED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_files_in_the_package_are_found(copy):
    check(copy)
    check_contracts(copy, copy.folder / "tests")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plugin_brings_the_same(plugin):
    check(plugin)
    recorded = [json.loads((plugin.folder / "run" / file).read_text()) for file in ("run.json", "model/card.json")]
    assert recorded[0]["config"]["plugins"] == recorded[1]["plugins"] == ["lane_plugin"]
    plugin.before = []
    refused = plugin.python("-m", "covis", "embed", "run", "photos/lane.csv", "-o", "store")
    assert refused.returncode == 2
    assert "--import lane_plugin" in refused.stderr.splitlines()[-1]
    check_contracts(plugin, ROOT / "tests", "-p", "lane_plugin", "-p", "lane_layout")


@pytest.mark.slow
def test_a_recipe_file_names_its_plugins(plugin):
    [text] = plugin.covis(("train", "lane_springs", "--dry-run"))
    assert json.loads(text)["plugins"] == ["lane_plugin"]
    (plugin.folder / "mine.json").write_text(text)
    plugin.before = []
    [again] = plugin.covis(("train", "mine.json", "--set", "loss.stiffness=2", "--dry-run"))
    assert json.loads(again)["loss"] == {"type": "Spring", "stiffness": 2.0}
    (plugin.folder / "theirs.toml").write_text('plugins = ["absent_plugin"]\nbase = "lane_springs"\n')
    refused = plugin.python("-m", "covis", "train", "theirs.toml", "--dry-run")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "absent_plugin" in refused.stderr


def test_installed_plugins_are_found_and_a_broken_one_is_a_warning(tmp_path):
    for name, text in (
        ("good", "from covis.labels import RULES\nRULES.register('mine')(type('Mine', (), {'__doc__': 'My own.'}))\n"),
        ("bad", "import nothing_of_that_name\n"),
    ):
        (tmp_path / f"{name}_plugin.py").write_text(text)
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        (tmp_path / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(
            f"[covis.plugins]\n{name} = {name}_plugin\n"
        )
    place = Place(tmp_path, [SOURCE, tmp_path])
    done = place.python("-m", "covis", "list", "rules")
    assert "My own." in done.stdout
    assert done.stderr.count("warning") == 1
    assert "bad_plugin" in done.stderr


def test_the_guide_names_what_is_added_here():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for thing, (path, _) in FILES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {thing} |"))
        assert f"{Path(path).parent.name}/" in row, thing
