"""The figures on the page about reliability are the sums of what the drills left behind."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "drills")]

from run import BAD, NAMES, total  # noqa: E402 - where drills lie

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "reliability.json").read_text(encoding="utf-8"))
PROMISES = {
    "kills": "no acknowledged change of a map is lost by SIGKILL, beside a reader",
    "points": "killed at any step on disk, index, add and remove leave the old map or the new one, and go on",
    "engine": "the same in an engine: Milvus Lite dies at steps of load, upsert and delete",
    "postgres": "the same in PostgreSQL: its server or its client dies at steps of load, upsert and delete",
    "ranks": "one of two ranks killed while training and embedding: the same command gives the same model and store",
    "torchrun": "the same under the launcher `torchrun`, with and without its restarts",
    "imports": "a killed `map import` leaves no map or the whole one, and the same command finishes",
    "services": "two services on one map, an engine that dies under a service, and a map of many photos lose and confuse nothing",
    "power": "after a power failure a map is the old one or the new one",
    "mutations": "damage of an artefact or cache is refused, said, or changes nothing",
    "sources": "damaged scenes, trajectories, models, layers, clouds, videos and bags end with exit code 2",
    "inputs": "bad images, tables, labels, weights and arguments end with exit code 2, or are left out",
}


def row(name: str) -> str:
    """The line of the page for a drill."""
    found = total(name, RESULTS[name])
    tried = found["kills"] or sum(found.values())
    text = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.items()))
    commands = ", ".join(f"`{run['command']}`" for run in RESULTS[name])
    return f"| {PROMISES[name]} | {commands} | {tried:,} | {text} |"


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_every_drill_stands_on_the_page_as_it_was_run(name):
    assert row(name) in PAGE
    assert not any(total(name, RESULTS[name])[kind] for kind in BAD)


def test_the_page_says_the_most_memory_that_a_drill_took():
    peak = max(run.get("peak_mb", 0) for runs in RESULTS.values() for run in runs)
    assert f"The most memory that a drill took was {peak} MB" in PAGE


if __name__ == "__main__":
    print("\n".join(row(name) for name in NAMES if name in RESULTS))
