"""Datasets by name: official layout on disk → image sets.

One module per dataset or family of datasets; the simulated town is a package of its own.
"""

from covis.datasets import (
    cmu,
    cutouts,
    gsv,
    msls,
    photos,
    robotcar,
    seven_scenes,
    surveys,
    tb_places,
    utm_folders,
)
from covis.datasets.dataset import DATASETS, Dataset, data_path, given_paths, is_given, load
from covis.images import Split
from covis.town import config as town_config
from covis.town import dataset as town_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "Split",
    "cmu",
    "cutouts",
    "data_path",
    "given_paths",
    "gsv",
    "is_given",
    "load",
    "msls",
    "photos",
    "robotcar",
    "seven_scenes",
    "surveys",
    "tb_places",
    "utm_folders",
]

DATASETS.register(town_dataset.NAME)(
    Dataset(
        town_dataset.NAME,
        town_dataset.load,
        town_config.SPLITS,
        "MIT; rendered on this machine, nothing is downloaded",
        default=town_dataset.default_folder,
    )
)
