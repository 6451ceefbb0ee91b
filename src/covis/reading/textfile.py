"""Text files of names and numbers, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import read_foreign_text


def lines(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of each line that is neither empty nor a comment."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check that the dataset is unpacked completely")
    numbered = ((i, line.strip()) for i, line in enumerate(read_foreign_text(path).splitlines(), 1))
    return [(i, line) for i, line in numbered if line and not line.startswith("#")]


class Named(NamedTuple):
    """Names and the numbers behind them."""

    names: list[str]
    values: Floats
    """(N, width)."""


def read_named(path: Path, width: int) -> Named:
    """Lines of one name and `width` numbers each."""
    names: list[str] = []
    rows: list[list[float]] = []
    for number, line in lines(path):
        name, *cells = line.split()
        if len(cells) != width:
            raise InputError(f"{path}: line {number} has {len(cells)} numbers behind the name; expected {width}")
        try:
            rows.append([float(cell) for cell in cells])
        except ValueError as error:
            raise InputError(f"{path}: line {number}: {error}; fix that line") from None
        names.append(name)
    return Named(names, np.array(rows, np.float64).reshape(len(rows), width))
