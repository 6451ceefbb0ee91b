"""NetVLAD's `dbStruct` files, which list cut-outs of street-view panoramas: Pittsburgh, Tokyo 24/7 and Tokyo Time Machine.

Files: `datasets/pitts{30k,250k}_{train,val,test}.mat`, `tokyo247.mat`, `tokyoTM_{train,val}.mat`, images beside them. How
a panorama is turned against north is not known, so headings are unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import check_regular, foreign
from covis.reading.isolation import Ended, run_isolated


class Struct(NamedTuple):
    """What a `dbStruct` says of queries and map."""

    map_names: list[str]
    map_xy: Floats
    """(N, 2) metres."""
    map_times: NDArray[np.int64] | None
    query_names: list[str]
    query_xy: Floats
    query_times: NDArray[np.int64] | None


@foreign("a list of a dataset")
def read_struct(path: Path) -> Struct:
    """Reads `path`, checking that names and positions belong together."""
    check_regular(path)
    try:
        fields = run_isolated(_fields, path)
    except Ended:
        raise InputError(f"{path} is not a MATLAB file with a dbStruct (it breaks the reader); get it again") from None
    sides = [("dbImageFns", "utmDb", "dbTimeStamp"), ("qImageFns", "utmQ", "qTimeStamp")]
    lacking = [name for side in sides for name in side[:2] if name not in fields]
    if lacking:
        raise InputError(f"{path} has no field {lacking[0]}; it has {', '.join(sorted(fields))}")
    values: list[Any] = []
    for names, positions, times in sides:
        listed = [str(np.asarray(cell).item()) for cell in np.atleast_1d(fields[names])]
        xy = np.asarray(fields[positions], np.float64)
        xy = xy[:, None] if xy.ndim == 1 and len(listed) == 1 else xy
        if xy.shape != (2, len(listed)):
            raise InputError(f"{path}: {positions} has shape {xy.shape}; expected (2, {len(listed)})")
        stamps = np.asarray(fields[times]).ravel().astype(np.int64) if times in fields else None
        if stamps is not None and len(stamps) != len(listed):
            raise InputError(f"{path}: {times} has {len(stamps)} entries; expected {len(listed)}")
        values += [listed, np.ascontiguousarray(xy.T), stamps]
    return Struct(*values)


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
