"""Datasets by name: official layout on disk → image sets.

One module per dataset or family of datasets, found by scanning this folder; the simulated town is a package of its own.
"""

from covis.core.registry import import_modules
from covis.datasets.dataset import DATASETS, Dataset, data_path, given_paths, is_given, load
from covis.images import Split

__all__ = ["DATASETS", "Dataset", "Split", "data_path", "given_paths", "is_given", "load"]

import_modules(__name__, __path__)
