"""Text files of names and pose numbers, a line each: blank lines, comments and CRLF allowed, errors with the line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covis.errors import InputError
from covis.poses import Floats, quaternion_matrices


class Named(NamedTuple):
    """Names and the numbers behind them."""

    names: list[str]
    values: Floats
    """(N, width)."""


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


def read_matrix(path: Path, shape: tuple[int, int] = (4, 4), separator: str | None = None) -> Floats:
    """A matrix of numbers, a row a line."""
    rows = [_floats(path, number, line.split(separator)) for number, line in lines(path)]
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise InputError(f"{path} is not a {shape[0]}×{shape[1]} matrix; it may be cut short")
    return np.array(rows, np.float64)


def lines(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of each line that says something."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        raise InputError(f"{path} is not there; check that the dataset is unpacked completely") from None
    found = ((i + 1, line.strip()) for i, line in enumerate(text.splitlines()))
    return [(i, line) for i, line in found if line and not line.startswith("#")]


def centred_matrices(quaternions: Floats, centres: Floats) -> Floats:
    """(N, 3, 4) camera-to-world matrices from world-to-camera quaternions (w first) and camera centres."""
    rotation = quaternion_matrices(quaternions, "wxyz").transpose(0, 2, 1)
    return np.concatenate([rotation, centres[:, :, None]], axis=2)


def _floats(path: Path, number: int, cells: list[str]) -> list[float]:
    try:
        return [float(cell) for cell in cells if cell.strip()]
    except ValueError as error:
        raise InputError(f"{path}: line {number}: {error}; mend that line") from None
