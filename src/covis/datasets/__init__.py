"""Datasets by name: official layout on disk → image sets, one file per dataset."""

from covis.datasets import (
    cmu,
    gsv,
    msls,
    photos,
    pitts,
    robotcar,
    seven_scenes,
    surveys,
    tb_places,
    tokyo,
    town,
    utm_folders,
)
from covis.datasets.dataset import DATASETS, Dataset, data_path, given_paths, is_given, load
from covis.images import Split

__all__ = [
    "DATASETS",
    "Dataset",
    "Split",
    "campus",
    "cmu",
    "data_path",
    "given_paths",
    "gsv",
    "is_given",
    "load",
    "msls",
    "photos",
    "pitts",
    "robotcar",
    "seven_scenes",
    "surveys",
    "tb_places",
    "tokyo",
    "town",
    "utm_folders",
]
