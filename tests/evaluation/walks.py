"""A dataset and a benchmark of walks, as a user's plugin would register them."""

from contextlib import contextmanager
from pathlib import Path

from covis import datasets
from covis.datasets import DATASETS, Dataset
from covis.evaluation.benchmark import register
from covis.evaluation.protocols.photos import leave_one_group_out
from covis.images import Split
from covis.reading.table import read_table
from plugins import forgotten_afterwards


def load(path, split):
    images = read_table(Path(path) / f"{split}.csv")
    return Split(images, images)


def walks_west(path):
    """Each photo of `west.csv` against the photos of other walks."""
    images = datasets.load("walks", path, "west").queries
    return leave_one_group_out("walks_west", images, lambda: datasets.load("walks", path, "train").queries)


@contextmanager
def registered():
    """With dataset `walks` (`builders.walk_tables`) and benchmark `walks_west`."""
    with forgotten_afterwards():
        DATASETS.register("walks")(Dataset("walks", load, ("train", "west"), "made by tests"))
        register("walks_west", "walks", "west")(walks_west)
        yield
