"""One of each thing that CONTRIBUTING.md names, as the text of the file that a contributor writes."""

DATASET = '''"""The lane: photos of two walks, as a table."""

from covis.datasets.dataset import DATASETS, Dataset
from covis.images import Split
from covis.reading.sources import open_images


def load_lane(path, split):
    """The second walk as queries, the first as the map."""
    images = open_images(path)
    second = images.group == 1
    return Split(images.subset(second), images.subset(~second))


DATASETS.register("lane")(Dataset("lane", load_lane, ("all",), "CC0", groups_apart=False))
'''
MINIATURE = '''"""The lane in miniature."""

from layouts import builders
from layouts.miniatures import miniature


@miniature("lane")
def lane(root):
    """Eight photos per walk."""
    return builders.lane(root, photos=8, apart_m=20, turned_deg=0) / "lane.csv"
'''
PROTOCOL = '''"""The lane's protocol."""

from covis import datasets
from covis.evaluation.benchmark import register
from covis.evaluation.relevance import by_rule
from covis.labels import Radius


@register("lane_walks", "lane", "all")
def lane_walks(path):
    """The second walk against the first."""
    return by_rule("lane_walks", datasets.load("lane", path, "all"), Radius(25.0), "within 25 m")
'''
LOSS = '''"""A spring between two descriptors."""

from dataclasses import dataclass

from covis.losses.pairs import LOSSES, PairLoss, squared_distance


@LOSSES.register("spring")
@dataclass(frozen=True)
class Spring(PairLoss):
    """(D − 2(1−ψ))²."""

    stiffness: float = 1.0

    def __call__(self, za, zb, psi):
        squared = squared_distance(za, zb)
        return abs(self.stiffness) * (squared - 2 * (1 - psi.to(squared.dtype))).square()
'''
POOLING = '''"""A median as a pooling."""

from covis.models.pooling.base import POOLS, Pool


@POOLS.register("middle")
class Middle(Pool):
    """The median of each channel."""

    def __init__(self, channels, grid):
        super().__init__()
        self.dim = channels

    def forward(self, space, summary):
        return space.flatten(2).float().median(-1).values
'''
SAMPLER = '''"""Pairs in the order of the files."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from covis.graph import SimilarityGraph
from covis.sampling.batches import BATCHES, Batches
from covis.sampling.pairs import PairBatch


@dataclass(frozen=True)
class InOrderSampler:
    graph: SimilarityGraph
    size: int

    def __len__(self):
        return self.graph.shape[0] // self.size

    def batch(self, epoch, index):
        rows = np.arange(index * self.size, (index + 1) * self.size)
        columns = (rows + 1) % self.graph.shape[1]
        return PairBatch(rows, columns, self.graph.lookup(rows, columns), np.ones(self.size, np.float32))


@BATCHES.register("in_order")
@dataclass(frozen=True)
class InOrder(Batches):
    """Query k with map image k + 1."""

    losses: ClassVar[tuple[str, ...]] = ("pairs",)
    size: int = 4

    def sampler(self, labels, split, seed, *, loss, graphs):
        return InOrderSampler(labels, self.size)
'''
RERANKER = '''

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from covis.describing.rerankers import RERANKERS


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


@RERANKERS.register("by_name")
def make_by_name(argument, depth):
    """By the image's name, backwards."""
    return ByName(depth or ByName.depth)
'''
RECIPE = '''"""A recipe of all that was added."""

from dataclasses import replace

from covis.experiments.recipes import get
from covis.losses import LOSSES
from covis.sampling import BATCHES
from covis.training.recipe import RECIPES


@RECIPES.register("lane_springs")
def lane_springs():
    """Springs along the lane."""
    base = get("town_quick")
    parts = {"loss": LOSSES["spring"](), "batches": BATCHES["in_order"](), "validation": ""}
    return replace(base, dataset="lane", split="all", model=replace(base.model, pool="middle"), **parts)
'''
VERB = '''"""`covis greet`."""

import json as json_text
from typing import Annotated

import typer

from covis.cli.verbs import verb


@verb("greet", section="This installation")
def greet(json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False):
    """Say hello.

    Examples:
      covis greet
    """
    print(json_text.dumps({"hello": "world"}) if json else "hello")
'''
FILES = {
    "a dataset": ("datasets/lane.py", DATASET),
    "a protocol": ("evaluation/protocols/lane.py", PROTOCOL),
    "a loss": ("losses/spring.py", LOSS),
    "a pooling": ("models/pooling/middle.py", POOLING),
    "a sampler": ("sampling/in_order.py", SAMPLER),
    "a re-ranker": ("describing/rerankers.py", RERANKER),
    "a recipe": ("experiments/lane.py", RECIPE),
    "a verb": ("cli/greet.py", VERB),
}
"""What is added → its file in the package, new or one that is there, and what is written into it."""
LISTED = {"datasets": "lane", "benchmarks": "lane_walks", "losses": "spring", "pools": "middle", "batches": "in_order",
          "rerankers": "by_name", "recipes": "lane_springs"}  # fmt: skip
"""Kind of `covis list` → the name that was added."""
