"""One of each thing that CONTRIBUTING.md names, added in one place, works from recipe and command."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from covis import cli, experiments
from covis.cli import common, main
from covis.cli.common import emit
from covis.cli.listing import all_names
from covis.core import registry
from covis.datasets import DATASETS, Dataset, Split
from covis.describing.rerankers import RERANKERS
from covis.evaluation.benchmark import BENCHMARKS, NEAR, NEAR_RULE, Protocol, by_rule
from covis.experiments.tables import TABLES, Row, Table
from covis.graph import SimilarityGraph
from covis.labels import RULES, LabelRule
from covis.losses import LOSSES, PairLoss
from covis.losses.pairs import squared_distance
from covis.models import POOLS, PlaceModel
from covis.models.pooling import Pool
from covis.reading.sources import open_images
from covis.sampling import BATCHES, Batches, PairBatch
from covis.search import kinds
from covis.training.recipe import RECIPES
from layouts import builders

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class NextInLine(LabelRule):
    """ψ by how many images lie between two."""

    reach: int = 4

    def __call__(self, queries, database, advance=None):
        i, j = (k.ravel() for k in np.indices((len(queries), len(database))))
        psi = np.clip(1 - np.abs(i - j) / self.reach, 0, 1)
        psi[(i == j) & (queries is database)] = 0
        shape = (len(queries), len(database))
        return SimilarityGraph.from_edges(i, j, psi, shape, self.facts(queries, database))


@dataclass(frozen=True)
class Spring(PairLoss):
    """(D − 2(1−ψ))²."""

    stiffness: float = 1.0

    def __call__(self, za, zb, psi):
        return self.stiffness * (squared_distance(za, zb) - 2 * (1 - psi)).square()


@dataclass(frozen=True)
class _InOrder:
    graph: SimilarityGraph
    size: int

    def __len__(self):
        return self.graph.shape[0] // self.size

    def batch(self, epoch, index):
        rows = np.arange(index * self.size, (index + 1) * self.size)
        columns = rows % self.graph.shape[1]
        return PairBatch(rows, columns, self.graph.lookup(rows, columns), np.ones(self.size, np.float32))


@dataclass(frozen=True)
class InOrder(Batches):
    """Query k with map image k."""

    losses: ClassVar[tuple[str, ...]] = ("pairs",)
    size: int = 4

    def sampler(self, labels, split, seed, *, loss, graphs):
        return _InOrder(labels, self.size)


class Middle(Pool):
    """The median of each channel."""

    def __init__(self, channels, grid):
        super().__init__()
        self.dim = channels

    def forward(self, space, summary):
        return space.flatten(2).float().median(-1).values


@dataclass(frozen=True)
class ByName:
    """Orders the first results by the image's name, backwards."""

    depth: int = 3
    name: ClassVar[str] = "by_name"

    def facts(self):
        return {"depth": self.depth}

    def prepare(self, describer, queries, database):
        def reorder(ranking):
            head = np.argsort(-ranking.ids[:, : self.depth], axis=1)
            tail = np.tile(np.arange(self.depth, ranking.k), (len(ranking), 1))
            return ranking.reordered(np.concatenate([head, tail], axis=1))

        return reorder


def load_lane(path, split):
    """Two walks along a lane, the second as queries."""
    images = open_images(path)
    second = images.group == 1
    return Split(images.subset(second), images.subset(~second))


def lane_benchmark(path):
    """The second walk against the first."""
    return by_rule("lane_walks", DATASETS["lane"].load(path, "all"), NEAR, NEAR_RULE)


def springy():
    """A recipe of all of them."""
    return replace(experiments.get("town_quick"), labels=NextInLine(), loss=Spring(), batches=InOrder(), validation="")


def lane_recipe():
    """The same on photos of a lane, pooled by the median."""
    recipe = springy()
    return replace(recipe, dataset="lane", split="all", model=replace(recipe.model, pool="middle"))


def lane_table():
    """One row."""
    return Table("The lane", (Row("springs", lane_recipe(), ("lane_walks",)),))


def greet(json: bool = False):
    """Say hello.

    Examples: covis greet
    """
    emit({"hello": "world"}, json, "hello")


ADDED = {
    "a dataset": (DATASETS, "lane", Dataset("lane", load_lane, ("all",), "CC0", groups_apart=False)),
    "a protocol": (BENCHMARKS, "lane_walks", Protocol("lane", "all", lane_benchmark)),
    "a label rule": (RULES, "next", NextInLine),
    "a loss": (LOSSES, "spring", Spring),
    "a pooling": (POOLS, "middle", Middle),
    "a sampler": (BATCHES, "in_order", InOrder),
    "a recipe": (RECIPES, "lane_springs", lane_recipe),
    "a table": (TABLES, "lane_table", lane_table),
    "a re-ranker": (RERANKERS, "by_name", lambda argument, depth: ByName(depth or ByName.depth)),
    "an index": (
        kinds.KINDS,
        "hnsw-half",
        replace(kinds.KINDS["hnsw"], name="hnsw-half", factory=f"HNSW{kinds.LINKS}_SQfp16", number_bytes=2),
    ),
    "a verb": (cli.VERBS, "greet", "common.greet"),
}
"""Row of the table in CONTRIBUTING.md → the one place where it is added, under which name, and what."""
LISTED = {"datasets": "lane", "benchmarks": "lane_walks", "rules": "next", "losses": "spring", "pools": "middle",
          "batches": "in_order", "recipes": "lane_springs", "tables": "lane_table", "rerankers": "by_name",
          "indexes": "hnsw-half"}  # fmt: skip


@pytest.fixture
def added(monkeypatch):
    """Each added as its decorator, or a line in its table, would do it, and `make names` run; for this test alone."""
    monkeypatch.setattr(common, "greet", greet, raising=False)
    for place, name, thing in (*ADDED.values(), (RECIPES, "springy", springy)):
        if isinstance(place, dict):
            monkeypatch.setitem(place, name, thing)
        else:
            if name != "springy":
                monkeypatch.setattr(place, "_entries", {**place._entries})
            place.register(name)(thing)
    names = all_names()
    monkeypatch.setattr(registry, "_listed", lambda: names)


def covis(*args):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    return end.value.code


SMALL = ("--set", "model.image_size=16,16", "--set", "steps=2", "--set", "cache_gb=0.5", "--workers", "0")


def test_what_is_registered_is_listed_labels_and_trains(added, hamlet, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    for kind, name in LISTED.items():
        assert covis("list", kind) == 0
        assert name in capsys.readouterr().out.split()
    label = ("label", "--dataset", "town", "--data", hamlet, "--split", "val", "--rule", "next", "--set", "reach=9")
    assert covis(*label, "-o", tmp_path / "graph") == 0
    assert SimilarityGraph.open(tmp_path / "graph").facts["reach"] == 9
    assert covis("train", "springy", "--data", hamlet, *SMALL, "-o", tmp_path / "run") == 0
    card = PlaceModel.load(tmp_path / "run" / "model").card["recipe"]
    assert [card[part]["type"] for part in ("labels", "loss", "batches")] == ["NextInLine", "Spring", "InOrder"]


def test_each_fits_the_parts_that_covis_brings(added, hamlet, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    changes = [
        f"--set={s}" for s in ("labels=next", "loss=spring", "loss.stiffness=2", "batches=in_order", "batches.size=3")
    ]
    assert covis("train", "town_quick", *changes, "--dry-run") == 0
    (tmp_path / "mine.json").write_text(capsys.readouterr().out)
    recipe = experiments.get(str(tmp_path / "mine.json"))
    assert (recipe.labels, recipe.loss, recipe.batches) == (NextInLine(), Spring(2.0), InOrder(3))
    assert covis("train", tmp_path / "mine.json", "--data", hamlet, *SMALL, "-o", tmp_path / "run") == 0
    assert covis("train", "springy", "--set", "loss=triplet", "--dry-run") == 2
    assert "set batches=tuples as well" in capsys.readouterr().err
    assert covis("train", "springy") == 2
    assert "covis train springy -o RUN" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["recipe"]["loss"]["stiffness"] == 2.0


def test_the_guide_names_what_is_added_here():
    rows = re.findall(r"^\| (an? [\w -]+?) \| ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert set(rows) - {"a backbone"} == set(ADDED)  # any backbone of timm works: nothing is added


@pytest.fixture
def lane(tmp_path):
    """Photos of two walks along a lane, as a table."""
    return builders.lane(tmp_path, photos=8, apart_m=20, turned_deg=0) / "lane.csv"


def test_a_dataset_a_pooling_a_benchmark_a_reranker_an_index_a_table_and_a_verb(
    added, lane, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    assert covis("greet", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"hello": "world"}
    assert covis("data", "check", "lane", lane, "-o", tmp_path / "check") == 0
    capsys.readouterr()
    assert covis("train", "lane_springs", "--data", lane, *SMALL, "-o", tmp_path / "run") == 0
    assert PlaceModel.load(tmp_path / "run" / "model").config.pool == "middle"
    capsys.readouterr()
    scored = ("evaluate", tmp_path / "run", "lane_walks", "--data", lane, "--json")
    assert covis(*scored, "-o", tmp_path / "plain") == 0
    assert (
        json.loads(capsys.readouterr().out)["recall"]["1"] == 100.0
    )  # the second walk repeats the first, photo by photo
    assert covis(*scored, "--rerank", "by_name", "-o", tmp_path / "reranked") == 0
    assert json.loads(capsys.readouterr().out)["recall"]["1"] < 100.0
    assert covis("embed", tmp_path / "run", lane, "-o", tmp_path / "store") == 0
    assert covis("search", "build", tmp_path / "store", "-o", tmp_path / "index", "--kind", "hnsw-half") == 0
    capsys.readouterr()
    assert covis("search", "query", tmp_path / "index", tmp_path / "store", "-k", 1, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["results"] if isinstance(found, dict) else found) == 16
    changes = [a for pair in zip(SMALL[0::2], SMALL[1::2], strict=True) for a in pair if pair[0] == "--set"]
    assert covis("reproduce", "lane_table", "--data", lane, *changes, "--seeds", 1, "-o", tmp_path / "table") == 0
    assert "springs" in capsys.readouterr().out
