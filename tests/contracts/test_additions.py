"""A rule, a loss, a kind of batches and a recipe of one's own, each added in one place, work from recipe and command."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from covis import experiments
from covis.cli import main
from covis.graph import SimilarityGraph
from covis.labels import RULES, LabelRule
from covis.losses import LOSSES, PairLoss
from covis.losses.pairs import squared_distance
from covis.models import PlaceModel
from covis.sampling import BATCHES, Batches, PairBatch
from covis.training.recipe import RECIPES


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


def springy():
    """A recipe of all of them."""
    return replace(experiments.get("town_quick"), labels=NextInLine(), loss=Spring(), batches=InOrder(), validation="")


@pytest.fixture
def added(monkeypatch):
    """Each registered as its decorator would, for this test alone."""
    for registry, name, thing in ((RULES, "next", NextInLine), (LOSSES, "spring", Spring), (BATCHES, "in_order", InOrder), (RECIPES, "springy", springy)):  # fmt: skip
        monkeypatch.setattr(registry, "_entries", {**registry._entries})
        registry.register(name)(thing)


def covis(*args):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    return end.value.code


SMALL = ("--set", "model.image_size=16,16", "--set", "steps=2", "--set", "cache_gb=0.5", "--workers", "0")


def test_what_is_registered_is_listed_labels_and_trains(added, hamlet, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    for kind, name in (("rules", "next"), ("losses", "spring"), ("batches", "in_order"), ("recipes", "springy")):
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
