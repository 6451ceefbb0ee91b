"""The evidence page: its tables are written by docs/measured.py (see test_site) from what the named commands left behind."""

import json
import re
from pathlib import Path

import pytest

from covis.experiments import TABLES

pytestmark = pytest.mark.usefixtures("evidence")
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
SHOWN = sorted(set(re.findall(r"<!-- (?:table|gains) (\w+)", PAGE)))


def results(name):
    folders = (ROOT / "benchmarks" / "results", ROOT / "evidence" / "results")
    return json.loads(next(p for f in folders if (p := f / f"{name}.json").is_file()).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SHOWN)
def test_every_table_stands_below_the_command_that_makes_it(name):
    assert f"covis reproduce {name}" in COMMANDS
    told = results(name)
    assert f"covis reproduce {name}" in told["command"]
    assert len(told["seeds"]) >= TABLES[name]().seeds


@pytest.mark.parametrize("name", SHOWN)
def test_every_row_is_one_that_the_command_would_run(name):
    table = TABLES[name]()
    rows = {row.name for row in table.rows}
    told = results(name)
    assert {row["row"] for row in told["rows"]} <= rows
    assert {row["against"] for row in told.get("differences", [])} == set(table.against)
