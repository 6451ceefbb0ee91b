"""The simulated town, the embedded default: rendered on this machine where it is not there yet."""

from __future__ import annotations

from covis.datasets.dataset import DATASETS, Dataset
from covis.town.config import SPLITS
from covis.town.dataset import NAME, default_folder, load

DATASETS.register(NAME)(
    Dataset(NAME, load, SPLITS, "MIT; rendered on this machine, nothing is downloaded", default=default_folder)
)
