"""The figures on the evidence page are those that the named commands left behind."""

import json
import re
from pathlib import Path

import pytest

from covis.experiments import TABLES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"covis reproduce ((?:campus|town)_\w+)", PAGE)))


def cell(figure):
    return f"{figure['mean']:.1f}" + ("" if figure["half"] is None else f" ± {figure['half']:.1f}")


@pytest.mark.parametrize("name", NAMED)
def test_every_row_stands_on_the_page_as_it_was_measured(name):
    told = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert f"covis reproduce {name}" in told["command"]
    assert len(told["seeds"]) >= 3
    for row in told["rows"]:
        [figures] = row["figures"].values()
        cells = " | ".join(cell(figures[f"recall@{k}"]) for k in (1, 5, 10))
        assert f"| {row['row']} | {cells} |" in PAGE


@pytest.mark.parametrize("name", NAMED)
def test_every_row_is_one_that_the_command_would_run(name):
    told = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert {row["row"] for row in told["rows"]} <= {row.name for row in TABLES[name]().rows}


def test_the_page_names_its_commands():
    assert len(NAMED) >= 5
