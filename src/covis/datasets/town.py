"""The simulated town among the datasets; it renders itself (`covis.town`)."""

from __future__ import annotations

from covis.datasets.dataset import DATASETS, Dataset
from covis.town import config, dataset

DATASETS.register(dataset.NAME)(
    Dataset(
        dataset.NAME,
        dataset.load,
        config.SPLITS,
        "MIT; rendered on this machine, nothing is downloaded",
        default=dataset.default_folder,
    )
)
