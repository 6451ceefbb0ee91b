"""The figures on the page about reliability are those that the drills left behind."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "reliability.json").read_text(encoding="utf-8"))
PROMISES = {
    "kills": "no acknowledged change of a map is lost by SIGKILL, beside a reader",
    "points": "killed at any step on disk, index, add and remove leave the old map or the new one, and go on",
    "engine": "the same in an engine: Milvus Lite dies at steps of load, upsert and delete",
    "ranks": "one of two ranks killed while embedding: the same command gives the same store",
    "power": "after a power failure a map is the old one or the new one",
    "mutations": "damage of an artefact or cache is refused, or changes nothing",
    "sources": "damaged scenes, trajectories, models, layers, clouds, videos and bags end with exit code 2",
    "inputs": "bad images, tables, labels, weights and arguments end with exit code 2, or are left out",
}


def row(name: str) -> str:
    """The line of the page for a drill."""
    found = RESULTS[name]
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(found["total"].items()))
    command = found.get("command") or f"`--{name} {found['asked']} --seed {found['seed']}`"
    return f"| {PROMISES[name]} | {command} | {found['tried']} | {total} |"


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_every_drill_stands_on_the_page_as_it_was_run(name):
    assert row(name) in PAGE
    assert not any(RESULTS[name]["total"].get(kind) for kind in ("wrong", "crashed", "hung", "lost", "mixed"))
