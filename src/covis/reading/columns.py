"""Typed columns of CSV and Parquet files."""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.foreign import first_line, foreign

ColumnKind = Literal["name", "text", "number", "integer", "flag"]
"""What a column holds: file-system bytes, text, float64, int64, True/False."""
_WANTED = {"number": "a number", "integer": "a whole number", "flag": "True or False", "text": "UTF-8 text"}
_EMPTY = frozenset(("", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "NaN", "nan", "-NaN", "-nan"))
"""How tools write that a number is unknown."""
_FLAGS = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
_ROWS_A_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Column:
    """A column: bytes, text, float64, int64 or bool, (N,)."""

    values: NDArray[Any]
    empty: NDArray[np.bool_]
    """(N,) rows without a value, whatever stands in `values`."""

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> Column:
        """Numbers, NaN where empty."""
        return cls(numbers, np.isnan(numbers))


@foreign("a table")
def read_columns(path: Path, kinds: Mapping[str, ColumnKind], *, others: bool = True) -> dict[str, Column]:
    """The columns of a CSV or Parquet file by name, those in `kinds` with that type.

    Other columns are taken as they look, or left out without `others`. An empty cell of a number is null.
    """
    names = header(path)
    wanted = [name for name in names if others or name in kinds]
    if _is_parquet(path):
        return _read_parquet(path, kinds, wanted)
    if not names:
        raise InputError(f"{path}: the file is empty; expected a header and rows")
    return _read_csv(path, kinds, names, wanted)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


@foreign("a table")
def header(path: Path) -> list[str]:
    """The column names of a CSV or Parquet file."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path")
    if _is_parquet(path):
        import pyarrow as pa
        import pyarrow.parquet

        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} is not a Parquet file ({first_line(error)})") from None
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        return next(csv.reader(handle), [])


def name_bytes(column: Column) -> NDArray[np.bytes_]:
    """(N,) file-system bytes."""
    if column.values.dtype.kind == "S":
        return column.values
    return np.array([os.fsencode(text) for text in texts(column).tolist()], "S")


def numbers(column: Column) -> NDArray[np.float64]:
    """(N,) float64, NaN where empty."""
    return np.where(column.empty, np.nan, _numeric(column, np.float64))


def integers(column: Column, empty: int = -1) -> NDArray[np.int64]:
    """(N,) int64, `empty` where a cell is empty."""
    return np.where(column.empty, empty, _numeric(column, np.int64))


def _numeric(column: Column, kind: Any) -> NDArray[Any]:
    values = column.values
    if values.dtype.kind in "SU":
        values = np.where(column.empty | (values == values.dtype.type()), values.dtype.type("0"), values)
    return values.astype(kind)


def flags(column: Column) -> NDArray[np.bool_]:
    """(N,) bool, False where empty."""
    return column.values.astype(np.bool_) & ~column.empty


def texts(column: Column) -> NDArray[np.str_]:
    """(N,) text, empty where a cell is empty."""
    if column.values.dtype.kind == "U":
        return column.values
    if column.values.dtype.kind == "S":
        return np.char.decode(column.values, "utf-8")
    return np.where(column.empty, "", column.values.astype(str))


def any_values(column: Column) -> NDArray[Any]:
    """(N,) a column of unknown kind: numbers, flags or text."""
    kind = column.values.dtype.kind
    if kind == "b":
        return flags(column)
    if kind == "i" and not column.empty.any():
        return column.values
    return numbers(column) if kind in "if" else texts(column)


def _read_csv(path: Path, kinds: Mapping[str, ColumnKind], names: list[str], wanted: list[str]) -> dict[str, Column]:
    """Chunk by chunk: a row of Python's strings takes ten times the memory of its values."""
    place = {name: names.index(name) for name in wanted}
    parts: dict[str, list[Column]] = {name: [] for name in wanted}
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        rows = enumerate(csv.reader(handle), start=1)
        next(rows)
        for chunk in _chunks(path, rows, len(names)):
            cells = list(zip(*(row for _, row in chunk), strict=True))
            for name, at in place.items():
                try:
                    parts[name].append(_parsed(cells[at], kinds.get(name, "text")))
                except (ValueError, OverflowError, KeyError):
                    raise _wrong_cell(path, chunk, at, kinds.get(name, "text")) from None
    return {
        name: _joined(columns, kinds.get(name, "text")) if name in kinds else _guessed(_joined(columns, "text"))
        for name, columns in parts.items()
    }


Numbered = list[tuple[int, list[str]]]


def _chunks(path: Path, rows: Iterable[tuple[int, list[str]]], width: int) -> Iterable[Numbered]:
    """Rows with their numbers, as a person counts them (the header is row 1), without blank ones."""
    filled = ((number, row) for number, row in rows if row)
    try:
        while chunk := list(itertools.islice(filled, _ROWS_A_CHUNK)):
            for number, row in chunk:
                if len(row) != width:
                    raise InputError(f"{path}: row {number} has {len(row)} cells, the header has {width}; fix that row")
            yield chunk
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV ({error}); check its quotes") from None


def _parsed(cells: Sequence[str], kind: ColumnKind) -> Column:
    """Cells of one kind; ValueError, OverflowError or KeyError for one that is not."""
    if kind == "name":
        return Column(np.array([os.fsencode(cell) for cell in cells], "S"), np.zeros(len(cells), bool))
    if kind == "text":
        "".join(cells).encode()  # bytes that are not UTF-8 are an error
        return Column(np.array(cells, "U"), np.array([not cell for cell in cells], bool))
    empty = np.array([cell.strip() in _EMPTY for cell in cells], bool)
    gaps = empty.tolist()
    if kind == "number":
        numbers_ = [np.nan if gap else float(cell) for gap, cell in zip(gaps, cells, strict=True)]
        return Column(np.array(numbers_, np.float64), empty)
    if kind == "integer":
        whole = [0 if gap else int(cell) for gap, cell in zip(gaps, cells, strict=True)]
        return Column(np.array(whole, np.int64), empty)
    return Column(np.array([not gap and _FLAGS[cell] for gap, cell in zip(gaps, cells, strict=True)], bool), empty)


def _wrong_cell(path: Path, chunk: Numbered, at: int, kind: ColumnKind) -> InputError:
    for number, row in chunk:
        try:
            _parsed(row[at : at + 1], kind)
        except (ValueError, OverflowError, KeyError):
            return InputError(
                f"{path}: row {number}, column {at + 1}: {row[at]!r} is not {_WANTED[kind]}; fix that cell"
            )
    return InputError(f"{path}: column {at + 1} does not hold {_WANTED[kind]}; fix it")


def _joined(parts: list[Column], kind: ColumnKind) -> Column:
    if not parts:
        return _parsed([], kind)
    return Column(np.concatenate([p.values for p in parts]), np.concatenate([p.empty for p in parts]))


def _guessed(column: Column) -> Column:
    """A column of text as whole numbers, flags or numbers, where all its cells are."""
    if column.empty.all():
        return column
    cells = column.values.tolist()
    for kind in ("integer", "flag", "number"):
        try:
            return _parsed(cells, kind)
        except (ValueError, OverflowError, KeyError):
            continue
    return column


def from_cells(cells: Sequence[Any], kind: ColumnKind | None) -> Column:
    """Values of JSON (None where empty) as a column of a kind, or as they look; ValueError for one that does not fit."""
    written = ["" if cell is None else str(cell) for cell in cells]
    return _guessed(_parsed(written, "text")) if kind is None else _parsed(written, kind)


def _read_parquet(path: Path, kinds: Mapping[str, ColumnKind], wanted: list[str]) -> dict[str, Column]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=wanted)
        return {name: from_arrow(table.column(name), kinds.get(name)) for name in wanted}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({first_line(error)})") from None


def from_arrow(values: Any, kind: ColumnKind | None = None) -> Column:
    """A pyarrow array as a column of a kind, or of its own."""
    import pyarrow as pa

    empty = np.asarray(values.is_null())
    types = {"number": pa.float64(), "integer": pa.int64(), "flag": pa.bool_(), "text": pa.string()}
    if kind == "name" or (kind is None and (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type))):
        cells = values.cast(pa.binary())
        parts = [
            np.array([v or b"" for v in cells[k : k + _ROWS_A_CHUNK].to_pylist()], "S")
            for k in range(0, len(cells), _ROWS_A_CHUNK)
        ]
        return Column(np.concatenate(parts) if parts else np.zeros(0, "S1"), empty)
    if kind is None:
        kind = (
            "flag" if pa.types.is_boolean(values.type)
            else "integer" if pa.types.is_integer(values.type)
            else "number" if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)
            else "text"
        )  # fmt: skip
    filled = values.cast(types[kind]).fill_null({"number": np.nan, "integer": 0, "flag": False, "text": ""}[kind])
    if kind == "text":
        return Column(np.array(filled.to_pylist(), "U"), empty)
    return Column(np.array(filled, {"number": np.float64, "integer": np.int64, "flag": np.bool_}[kind]), empty)
