"""Points of PLY files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign

_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4", "double": "f8",
    "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4", "float32": "f4",
    "float64": "f8",
}  # fmt: skip
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_MAX_BYTES = 1 << 32
"""Larger clouds are refused before they are read."""


@foreign("a cloud of points")
def read_ply(path: Path) -> NDArray[np.float64]:
    """(N, 3) x, y, z of the vertices, which must come first."""
    raw = read_foreign(path, _MAX_BYTES)
    kind, count, columns, length = _header(path, raw)
    if not {"x", "y", "z"} <= {name for name, _ in columns}:
        raise InputError(f"{path}: vertices have {[name for name, _ in columns]}; expected x, y and z")
    body = raw[length:]
    if kind == "ascii":
        rows = [line.split()[: len(columns)] for line in body.split(b"\n", count)[:count]]
        whole = [tuple(row) for row in rows if len(row) == len(columns)]
        table = np.array(whole, [(name, "S64") for name, _ in columns])
    else:
        dtype = np.dtype([(name, _ORDERS[kind] + _TYPES[code]) for name, code in columns])
        table = np.frombuffer(body, dtype, min(count, len(body) // dtype.itemsize))
    if len(table) < count:
        raise InputError(f"{path} is cut short: {count} vertices announced, {len(table)} are there")
    return np.stack([table[axis].astype(np.float64) for axis in "xyz"], axis=1)


def _header(path: Path, raw: bytes) -> tuple[str, int, list[tuple[str, str]], int]:
    """Format, number of vertices, name and type of their properties, and how many bytes come before the data."""
    end = raw.find(b"end_header")
    line_end = raw.find(b"\n", end)
    lines = [line.split() for line in raw[: max(end, 0)].decode("ascii", errors="replace").splitlines() if line.split()]
    if not lines or lines[0] != ["ply"] or line_end < 0:
        raise InputError(f"{path} is not a PLY file (no header); check the file")
    kind, count, columns, element = "", -1, [], ""
    for word, *rest in lines[1:]:
        if word == "format":
            kind = rest[0]
        elif word == "element":
            element = rest[0]
            count = int(rest[1]) if element == "vertex" else count
            if count < 0:
                raise InputError(f"{path}: {element!r} comes before the vertices; save it with the vertices first")
        elif word == "property" and element == "vertex":
            if rest[0] not in _TYPES:
                raise InputError(f"{path}: vertices have a property of type {rest[0]!r}, which covis cannot read")
            columns.append((rest[1], rest[0]))
    if kind not in _ORDERS or count < 1:
        raise InputError(f"{path} has format {kind!r} and {max(count, 0)} vertices; expected a PLY point cloud")
    return kind, count, columns, line_end + 1
