"""Matrices that others wrote: lines of numbers in pose files, and the `dbStruct` of MATLAB files, by field name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.errors import InputError
from covis.files import check_regular, foreign, read_foreign_text
from covis.machine import apart
from covis.poses import quaternion_matrices


class Named(NamedTuple):
    """Names and the numbers behind them."""

    names: list[str]
    values: Floats
    """(N, width)."""


@foreign("a list of numbers")
def read_named(path: Path, width: int | Sequence[int], separator: str | None = None) -> Named:
    """Lines of one name and `width` numbers each, all alike (several widths: whichever the first line has)."""
    allowed = (width,) if isinstance(width, int) else tuple(width)
    names: list[str] = []
    rows: list[list[float]] = []
    for number, line in lines(path):
        cells = line.split(separator)
        if len(cells) - 1 not in allowed or (rows and len(cells) - 1 != len(rows[0])):
            expected = " or ".join(str(w) for w in allowed)
            raise InputError(f"{path}: line {number} has {len(cells) - 1} numbers behind the name; expected {expected}")
        names.append(cells[0])
        rows.append(_floats(path, number, cells[1:]))
    return Named(names, np.array(rows, np.float64).reshape(len(rows), len(rows[0]) if rows else max(allowed)))


@foreign("a matrix")
def read_matrix(path: Path, shape: tuple[int, int] = (4, 4), separator: str | None = None) -> Floats:
    """A matrix of numbers, one row per line."""
    rows = [_floats(path, number, line.split(separator)) for number, line in lines(path)]
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise InputError(f"{path} is not a {shape[0]}×{shape[1]} matrix; it may be cut short")
    return np.array(rows, np.float64)


def lines(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of each line that says something."""
    if not path.exists():
        raise InputError(f"{path} is not there; check that the dataset is unpacked completely")
    text = read_foreign_text(path)
    lines = ((i + 1, line.strip()) for i, line in enumerate(text.splitlines()))
    return [(i, line) for i, line in lines if line and not line.startswith("#")]


def centred_matrices(quaternions: Floats, centres: Floats) -> Floats:
    """(N, 3, 4) camera-to-world matrices from world-to-camera quaternions (w first) and camera centres."""
    rotation = quaternion_matrices(quaternions, "wxyz").transpose(0, 2, 1)
    return np.concatenate([rotation, centres[:, :, None]], axis=2)


def _floats(path: Path, number: int, cells: list[str]) -> list[float]:
    try:
        return [float(cell) for cell in cells if cell.strip()]
    except ValueError as error:
        raise InputError(f"{path}: line {number}: {error}; fix that line") from None


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
    fields = apart(_fields, path)
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
    raise InputError(f"{path / 'datasets' / name} is not there; unpack the NetVLAD dataset files there")


def _fields(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        struct = loadmat(path, squeeze_me=True, struct_as_record=True)["dbStruct"]
        return {name: struct[name].item() for name in struct.dtype.names}
    except NotImplementedError:
        raise InputError(f"{path} is a MATLAB 7.3 file; take the original, which is version 7 or older") from None
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
