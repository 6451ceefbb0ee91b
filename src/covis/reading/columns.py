"""Typed columns of CSV and Parquet files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.foreign import first_line, foreign

Column = Any
"""A pyarrow array. pyarrow is imported where it is used: naming a dataset must not cost its import."""
ColumnKind = Literal["name", "text", "number", "integer", "flag"]
"""What a column holds: file-system bytes, text, float64, int64, True/False."""


@foreign("a table")
def read_columns(path: Path, kinds: Mapping[str, ColumnKind], *, others: bool = True) -> dict[str, Column]:
    """The columns of a CSV or Parquet file by name, those in `kinds` with that type.

    Other columns are taken as they look, or left out without `others`. An empty cell of a number is null.
    """
    columns = header(path)
    types = {name: _type(kind) for name, kind in kinds.items()}
    only = None if others else [name for name in columns if name in kinds]
    if path.suffix.lower() in (".parquet", ".pq"):
        table = _read_parquet(path, types, only)
    else:
        table = _read_csv(path, types, only)
    return {name: _joined(table.column(i)) for i, name in enumerate(table.column_names)}


@foreign("a table")
def header(path: Path) -> list[str]:
    """The column names of a CSV or Parquet file."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path")
    if path.suffix.lower() in (".parquet", ".pq"):
        import pyarrow as pa
        import pyarrow.parquet

        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} is not a Parquet file ({first_line(error)})") from None
    import csv

    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        return next(csv.reader(handle), [])


def name_bytes(column: Column) -> NDArray[np.bytes_]:
    """(N,) file-system bytes."""
    import pyarrow as pa

    column = _filled(column.cast(pa.binary()), b"")
    # a copy through Python objects would take 10 times the memory of the names at a million rows
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    if not len(column) or column.buffers()[2] is None:
        return np.zeros(len(column), "S1")
    data = np.frombuffer(column.buffers()[2], np.uint8)
    lengths = np.diff(offsets)
    width = max(1, int(lengths.max()))
    if int(lengths.min()) == width:
        return data[offsets[0] : offsets[-1]].view(f"S{width}").copy()
    padded = np.zeros((len(column), width), np.uint8)
    step = max(1, (1 << 22) // width)
    for start in range(0, len(column), step):
        part = slice(start, min(start + step, len(column)))
        inside = np.arange(width) < lengths[part, None]
        padded[part][inside] = data[offsets[part.start] : offsets[part.stop]]
    return padded.view(f"S{width}")[:, 0]


def numbers(column: Column) -> NDArray[np.float64]:
    """(N,) float64, NaN where empty."""
    import pyarrow as pa

    return np.array(_filled(column.cast(pa.float64()), float("nan")), np.float64)


def integers(column: Column, empty: int = -1) -> NDArray[np.int64]:
    """(N,) int64, `empty` where a cell is empty."""
    import pyarrow as pa

    return np.array(_filled(column.cast(pa.int64()), empty), np.int64)


def flags(column: Column) -> NDArray[np.bool_]:
    """(N,) bool, False where empty."""
    import pyarrow as pa

    return np.asarray(_filled(column.cast(pa.bool_()), False).to_numpy(zero_copy_only=False), np.bool_)


def texts(column: Column) -> NDArray[np.str_]:
    """(N,) text, empty where a cell is empty."""
    import pyarrow as pa

    coded = _filled(column.cast(pa.string()), "").dictionary_encode()
    labels = np.array(coded.dictionary.to_pylist(), dtype=str)
    return labels[np.asarray(coded.indices)] if len(labels) else np.zeros(len(column), "U1")


def any_values(column: Column) -> NDArray[Any]:
    """(N,) a column of unknown kind: numbers, flags or text."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        return flags(column)
    if pa.types.is_integer(column.type) and not column.null_count:
        return integers(column)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return numbers(column)
    return texts(column)


def _filled(column: Column, empty: Any) -> Column:
    return column.fill_null(empty) if column.null_count else column


def _read_csv(path: Path, types: Mapping[str, Any], only: list[str] | None) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    def attempt(threads: bool) -> Any:
        return pyarrow.csv.read_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(use_threads=threads),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict(types),
                include_columns=only,
                true_values=["True", "true", "1"],
                false_values=["False", "false", "0"],
            ),
        )

    try:
        return attempt(threads=True)
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        pass
    try:  # again without threads: only then does the message name the row
        return attempt(threads=False)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise InputError(f"{path}: {_explain(error)}") from None


def _read_parquet(path: Path, types: Mapping[str, Any], only: list[str] | None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=only)
        for name in set(table.column_names) & set(types):
            at = table.column_names.index(name)
            table = table.set_column(at, name, table.column(at).cast(types[name]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({first_line(error)})") from None
    return table


def _type(kind: ColumnKind) -> Any:
    import pyarrow as pa

    return {
        "name": pa.binary(),
        "text": pa.string(),
        "number": pa.float64(),
        "integer": pa.int64(),
        "flag": pa.bool_(),
    }[kind]


def _joined(column: Any) -> Column:
    import pyarrow as pa

    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _explain(error: Exception) -> str:
    """pyarrow's message, shorter, with the row as a person counts it (the header is row 1)."""
    text = first_line(error)
    empty = re.search(r"Empty CSV file", text)
    if empty:
        return "the file is empty; expected a header and rows"
    row = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", text)
    if row:
        return f"row {row[1]} has {row[3]} cells, the header has {row[2]}; fix that row"
    value = re.search(
        r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): invalid value '(.*)'", text
    )
    if value:
        place = f"row {value[2]}, " if value[2] else ""
        wanted = {"double": "a number", "int64": "a whole number", "bool": "True or False"}.get(value[3], value[3])
        return f"{place}column {int(value[1]) + 1}: {value[4]!r} is not {wanted}; fix that cell"
    return text
