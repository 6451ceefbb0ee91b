"""Global descriptors as hloc keeps them: `global-feats.h5`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.files import writing_hdf5

DESCRIPTOR = "global_descriptor"
"""hloc's name of the global feature of an image."""


def write_global_features(path: Path | str, names: Sequence[str], rows: Iterable[NDArray[Any]]) -> None:
    """hloc's `global-feats.h5`: a group for each image name, its descriptor (D,) inside."""

    with writing_hdf5(path, libver="latest") as file:
        for name, row in zip(names, rows, strict=True):
            file.create_group(name).create_dataset(DESCRIPTOR, data=np.asarray(row, np.float32))


def read_global_features(path: Path | str, names: Sequence[str]) -> NDArray[np.float32]:
    """(N, D) descriptors by name, as hloc or covis wrote them."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            missing = next((n for n in names if n not in file or DESCRIPTOR not in file[n]), None)
            if missing is not None:
                raise InputError(f"{path} has no {DESCRIPTOR} of {missing}; extract features of all images")
            return np.stack([np.asarray(file[n][DESCRIPTOR], np.float32) for n in names])
    except OSError as error:
        raise InputError(f"{path} is not an HDF5 file ({error})") from None
