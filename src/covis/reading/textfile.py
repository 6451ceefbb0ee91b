"""Text files of names and numbers, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign_text


def lines(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of each line that is neither empty nor a comment."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check that the dataset is unpacked completely")
    numbered = ((i, line.strip()) for i, line in enumerate(read_foreign_text(path).splitlines(), 1))
    return [(i, line) for i, line in numbered if line and not line.startswith("#")]


def cells_of(path: Path, separator: str | None = None) -> list[tuple[int, list[str]]]:
    """(line number, cells) of each line that is neither empty nor a comment."""
    return [(i, [cell.strip() for cell in line.split(separator)]) for i, line in lines(path)]


class Named(NamedTuple):
    """Names and the numbers behind them."""

    names: list[str]
    values: Floats
    """(N, width)."""


@foreign("a list of numbers")
def read_named(path: Path, width: int) -> Named:
    """Lines of one name and `width` numbers each."""
    names: list[str] = []
    rows: list[list[float]] = []
    for number, cells in cells_of(path):
        if len(cells) - 1 != width:
            raise InputError(f"{path}: line {number} has {len(cells) - 1} numbers behind the name; expected {width}")
        names.append(cells[0])
        rows.append(_floats(path, number, cells[1:]))
    return Named(names, np.array(rows, np.float64).reshape(len(rows), width))


def _floats(path: Path, number: int, cells: list[str]) -> list[float]:
    try:
        return [float(cell) for cell in cells if cell]
    except ValueError as error:
        raise InputError(f"{path}: line {number}: {error}; fix that line") from None
