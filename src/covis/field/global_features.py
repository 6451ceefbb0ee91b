"""Global descriptors as hloc keeps them: `global-feats.h5`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.files import writing_hdf5


def write_global_features(path: Path | str, names: Sequence[str], rows: Iterable[NDArray[Any]]) -> None:
    """hloc's `global-feats.h5`: a group for each image name, its `global_descriptor` (D,) inside."""
    with writing_hdf5(path, libver="latest") as file:
        for name, row in zip(names, rows, strict=True):
            file.create_group(name).create_dataset("global_descriptor", data=np.asarray(row, np.float32))
