"""Campus walks: two tables of phone photos, `train.csv` and `west.csv`, each matched with itself.

A group is one person's walk: photos of one walk are never each other's match. `minute_of_day` (−1 = unknown) and
`region` are columns.
"""

from __future__ import annotations

from pathlib import Path

from covis.datasets import DATASETS, Dataset, Split
from covis.datasets.table import read_table
from covis.errors import InputError, unknown_name

NAME = "campus"
SPLITS = ("train", "west")


def load(path: Path, split: str) -> Split:
    """The walks of `split`, matched with themselves."""
    if split not in SPLITS:
        raise unknown_name(f"split of {NAME}", split, SPLITS)
    table = Path(path) / f"{split}.csv"
    if not table.is_file():
        raise InputError(f"{table} is not there; give the folder that holds {split}.csv and images/")
    images = read_table(table)
    return Split(images, images)


DATASETS.register(NAME)(
    Dataset(
        name=NAME,
        load=load,
        splits=SPLITS,
        licence="no licence stated: testing only, not to be published",
        published={"train/queries": 2805, "west/queries": 1872},
    )
)
