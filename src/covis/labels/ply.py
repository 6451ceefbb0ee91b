"""Points of PLY files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_MOST_HEADER_LINES = 1000
_MAX_BYTES = 1 << 32
"""Larger clouds are refused before they are read."""


class Header(NamedTuple):
    """What the first lines say."""

    kind: str
    vertices: int
    columns: list[tuple[str, str]]
    """Name and NumPy type code of each property of a vertex."""
    length: int
    """Bytes up to the data."""


@foreign("a cloud of points")
def read_ply(path: Path) -> NDArray[np.float64]:
    """(N, 3) x, y, z of the vertices, which must come first."""
    raw = read_foreign(path, _MAX_BYTES)
    header = _header(path, raw)
    names = [name for name, _ in header.columns]
    if not {"x", "y", "z"} <= set(names):
        raise InputError(f"{path}: vertices have {names}; expected x, y and z")
    body = raw[header.length :]
    if header.kind == "ascii":
        table = _ascii(path, body, header)
    else:
        order = "<" if header.kind == "binary_little_endian" else ">"
        dtype = np.dtype([(name, order + code) for name, code in header.columns])
        if len(body) < header.vertices * dtype.itemsize:
            raise InputError(
                f"{path} is cut short: {header.vertices} vertices announced, room for {len(body) // dtype.itemsize}"
            )
        table = np.frombuffer(body, dtype, header.vertices)
    return np.stack([np.asarray(table[axis], np.float64) for axis in "xyz"], axis=1)


def _ascii(path: Path, body: bytes, header: Header) -> NDArray[np.void]:
    rows = [line.split() for line in body.split(b"\n", header.vertices)[: header.vertices]]
    wrong = [k for k, row in enumerate(rows) if len(row) < len(header.columns)]
    if wrong or len(rows) < header.vertices:
        raise InputError(f"{path}: vertex {wrong[0] if wrong else len(rows)} of {header.vertices} is cut short")
    dtype = np.dtype([(name, "f8") for name, _ in header.columns])
    try:
        return np.array([tuple(map(float, row[: len(header.columns)])) for row in rows], dtype)
    except ValueError as error:
        raise InputError(f"{path}: a vertex is not made of numbers ({error})") from None


def _header(path: Path, raw: bytes) -> Header:
    end = raw.find(b"end_header")
    line_end = raw.find(b"\n", end)
    lines = raw[: max(end, 0)].decode("ascii", errors="replace").splitlines()
    if not lines or lines[0].strip() != "ply" or line_end < 0 or len(lines) > _MOST_HEADER_LINES:
        raise InputError(f"{path} is not a PLY file (no header); check the file")
    kind, count, columns, element = "", -1, [], ""
    for line in (entry.split() for entry in lines[1:] if entry.split()):
        if line[0] == "format":
            kind = line[1]
        elif line[0] == "element":
            element = line[1]
            count = int(line[2]) if element == "vertex" else count
            if element != "vertex" and count < 0:
                raise InputError(
                    f"{path}: element {element!r} comes before the vertices; save it with the vertices first"
                )
        elif line[0] == "property" and element == "vertex":
            if line[1] not in _TYPES:
                raise InputError(f"{path}: vertices have a property of type {line[1]!r}, which covis cannot read")
            columns.append((line[2], _TYPES[line[1]]))
    if kind not in ("ascii", "binary_little_endian", "binary_big_endian") or count < 1:
        raise InputError(f"{path} has format {kind!r} and {max(count, 0)} vertices; expected a PLY point cloud")
    return Header(kind, count, columns, line_end + 1)
