"""NetVLAD's `dbStruct` files, which list cut-outs of street-view panoramas: Pittsburgh, Tokyo 24/7 and Tokyo Time Machine.

Files: `datasets/pitts{30k,250k}_{train,val,test}.mat`, `tokyo247.mat`, `tokyoTM_{train,val}.mat`, images beside them. How
a panorama is turned against north is not known, so headings are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import check_regular, foreign
from covis.core.machine import run_isolated


@dataclass(frozen=True)
class Struct:
    """What a `dbStruct` says of queries and map."""

    path: Path
    map_names: list[str]
    map_xy: Floats
    """(N, 2) metres."""
    query_names: list[str]
    query_xy: Floats
    radius_m: float
    map_times: NDArray[np.int64] | None
    query_times: NDArray[np.int64] | None


@foreign("a list of a dataset")
def read_struct(path: Path) -> Struct:
    """Reads `path`, checking that names and positions belong together."""
    check_regular(path)
    fields = run_isolated(_fields, path)
    if fields is None:
        raise InputError(f"{path} is not a MATLAB file with a dbStruct (it breaks the reader); get it again")
    map_names, query_names = _strings(fields, "dbImageFns", path), _strings(fields, "qImageFns", path)
    return Struct(
        path,
        map_names,
        _positions(fields, "utmDb", len(map_names), path),
        query_names,
        _positions(fields, "utmQ", len(query_names), path),
        float(np.asarray(_field(fields, "posDistThr", path)).ravel()[0]),
        _times(fields, "dbTimeStamp", len(map_names), path),
        _times(fields, "qTimeStamp", len(query_names), path),
    )


def find_file(path: Path, name: str) -> Path:
    """The file `name` at `path`, in its `datasets/` folder or directly there."""
    for candidate in (path / "datasets" / name, path / name):
        if candidate.is_file():
            return candidate
    raise InputError(f"{path / 'datasets' / name} does not exist; unpack the NetVLAD dataset files there")


def _fields(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        struct = loadmat(path, squeeze_me=True, struct_as_record=True)["dbStruct"]
        return {name: struct[name].item() for name in struct.dtype.names}
    except NotImplementedError:
        raise InputError(f"{path} is a MATLAB 7.3 file; use the original file (version 7 or older)") from None
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise InputError(f"{path} is not a MATLAB file with a dbStruct ({error})") from None


def _field(fields: dict[str, Any], name: str, path: Path) -> Any:
    if name not in fields:
        raise InputError(f"{path} has no field {name}; it has {', '.join(sorted(fields))}")
    return fields[name]


def _strings(fields: dict[str, Any], name: str, path: Path) -> list[str]:
    return [str(np.asarray(cell).item()) for cell in np.atleast_1d(_field(fields, name, path))]


def _positions(fields: dict[str, Any], name: str, n: int, path: Path) -> Floats:
    values = np.asarray(_field(fields, name, path), np.float64)
    if values.ndim == 1 and n == 1:
        values = values[:, None]
    if values.shape != (2, n):
        raise InputError(f"{path}: {name} has shape {values.shape}; expected (2, {n})")
    return np.ascontiguousarray(values.T)


def _times(fields: dict[str, Any], name: str, n: int, path: Path) -> NDArray[np.int64] | None:
    if name not in fields:
        return None
    values = np.asarray(fields[name]).ravel()
    if len(values) != n:
        raise InputError(f"{path}: {name} has {len(values)} entries; expected {n}")
    return values.astype(np.int64)
