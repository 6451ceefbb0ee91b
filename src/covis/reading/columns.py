"""Typed columns of tables: CSV, Parquet, and the points of GeoJSON."""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis import geojson
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.foreign import first_line, foreign

ColumnKind = Literal["name", "text", "number", "integer", "flag"]
"""What a column holds: file-system bytes, text, float64, int64, True/False; empty cells are b"", "", NaN, −1, False."""
_WANTED = {"number": "a number or angle", "integer": "a whole number", "flag": "True or False", "text": "UTF-8 text"}
_EMPTY = frozenset(("", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "NaN", "nan", "-NaN", "-nan"))
"""How tools write that a value is unknown."""
_FLAGS = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
_PARQUET = (".parquet", ".pq")
SUFFIXES = (".csv", *_PARQUET, geojson.SUFFIX)
_CHUNK = 1 << 16
_ANGLE = re.compile(
    r"""\s*([+-]?[\d.]+)\s*(?:(?:deg|°|d)\s*(?:([\d.]+)\s*['′m]\s*)?(?:([\d.]+)\s*["″s]\s*)?)?([NSEW])?[a-z]*\s*""",
    re.IGNORECASE,
)
_HEIGHT = re.compile(r"\s*([+-]?[\d.]+)\s*m?\s*(above sea level|below sea level)?\s*", re.IGNORECASE)
Columns = dict[str, NDArray[Any]]


@foreign("a table")
def header(path: Path) -> list[str]:
    """The column names of a table."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path")
    if path.suffix.lower() in _PARQUET:
        import pyarrow as pa
        import pyarrow.parquet

        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} is not a Parquet file ({first_line(error)})") from None
    if path.suffix.lower() == geojson.SUFFIX:
        return list(dict.fromkeys(name for row in geojson.read_points(path) for name in row))
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        return next(csv.reader(handle), [])


@foreign("a table")
def read_columns(path: Path, kinds: Mapping[str, ColumnKind], *, others: bool = True) -> Columns:
    """The columns of a table by name, (N,) each, those in `kinds` with that type.

    Other columns are taken as they look (whole numbers, flags, numbers or text), or left out without `others`.
    """
    names = header(path)
    wanted = [name for name in names if others or name in kinds]
    if path.suffix.lower() in _PARQUET:
        return _read_parquet(path, kinds, wanted)
    if path.suffix.lower() == geojson.SUFFIX:
        points = geojson.read_points(path)
        cells = {name: ["" if row.get(name) is None else str(row[name]) for row in points] for name in wanted}
        parts = [{name: _typed(path, name, cells[name], range(1, len(points) + 1), kinds) for name in wanted}]
    else:
        parts = list(_read_csv(path, kinds, names, wanted))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in wanted}
    return {name: values if name in kinds else _guessed(values) for name, values in joined.items()}


def _read_csv(
    path: Path, kinds: Mapping[str, ColumnKind], names: Sequence[str], wanted: Sequence[str]
) -> Iterator[Columns]:
    """Columns piece by piece: a row of Python's strings takes ten times the memory of its values."""
    yield {name: _parsed([], kinds.get(name, "text")) for name in wanted}
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        rows = enumerate(csv.reader(handle), start=1)  # as a person counts them: the header is row 1
        next(rows, None)
        for chunk in _chunks(path, ((number, row) for number, row in rows if row), len(names)):
            columns = list(zip(*(row for _, row in chunk), strict=True))
            numbers = [number for number, _ in chunk]
            yield {name: _typed(path, name, columns[names.index(name)], numbers, kinds) for name in wanted}


def _chunks(path: Path, rows: Iterator[tuple[int, list[str]]], width: int) -> Iterator[list[tuple[int, list[str]]]]:
    try:
        while chunk := list(itertools.islice(rows, _CHUNK)):
            for number, row in chunk:
                if len(row) != width:
                    raise InputError(f"{path}: row {number} has {len(row)} cells, the header has {width}; fix that row")
            yield chunk
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV ({error}); check its quotes") from None


def _typed(
    path: Path, name: str, cells: Sequence[str], numbers: Sequence[int], kinds: Mapping[str, ColumnKind]
) -> NDArray[Any]:
    """Cells of one kind (text if none is given); an error names the row and column of a wrong one."""
    kind = kinds.get(name, "text")
    try:
        return _parsed(cells, kind)
    except (ValueError, OverflowError, KeyError):
        at, cell = next((i, cell) for i, cell in zip(numbers, cells, strict=True) if not _is_parsed(cell, kind))
        raise InputError(f"{path}: row {at}, column {name}: {cell!r} is not {_WANTED[kind]}; fix that cell") from None


def _is_parsed(cell: str, kind: ColumnKind) -> bool:
    try:
        _parsed([cell], kind)
    except (ValueError, OverflowError, KeyError):
        return False
    return True


def _parsed(cells: Sequence[str], kind: ColumnKind) -> NDArray[Any]:
    """Cells of one kind; ValueError, OverflowError or KeyError for one that is not."""
    if kind == "name":
        return np.array([os.fsencode(cell) for cell in cells], "S")
    if kind == "text":
        "".join(cells).encode()  # bytes that are not UTF-8 are an error
        return np.array(cells, "U")
    if kind == "number":
        return np.array([np.nan if cell.strip() in _EMPTY else _measure(cell) for cell in cells], np.float64)
    if kind == "integer":
        return np.array([-1 if cell.strip() in _EMPTY else int(cell) for cell in cells], np.int64)
    return np.array([cell.strip() not in _EMPTY and _FLAGS[cell] for cell in cells], bool)


def _measure(cell: str) -> float:
    """A number, an angle such as `55 deg 42' 16.92" N` in degrees, or a height such as `12 m Above Sea Level`."""
    try:
        return float(cell)
    except ValueError:
        angle, height = _ANGLE.fullmatch(cell), _HEIGHT.fullmatch(cell)
    if height:
        return float(height[1]) * (-1 if (height[2] or "").lower().startswith("below") else 1)
    if angle:
        degrees = abs(float(angle[1])) + float(angle[2] or 0) / 60 + float(angle[3] or 0) / 3600
        negative = angle[1].startswith("-") or (angle[4] or "").upper() in ("S", "W")
        return -degrees if negative else degrees
    raise ValueError(cell)


def _guessed(values: NDArray[Any]) -> NDArray[Any]:
    """A column of text as whole numbers, flags or numbers, where all its cells are; with gaps as numbers or flags."""
    cells = values.tolist()
    empty = [cell.strip() in _EMPTY for cell in cells]
    if all(empty):
        return values
    if not any(empty):
        for kind in ("integer", "flag"):
            try:
                return _parsed(cells, kind)
            except (ValueError, OverflowError, KeyError):
                continue
    try:
        return np.array([np.nan if gap else float(cell) for gap, cell in zip(empty, cells, strict=True)])
    except ValueError:
        return (
            _parsed(cells, "flag")
            if all(gap or cell in _FLAGS for gap, cell in zip(empty, cells, strict=True))
            else values
        )


def _read_parquet(path: Path, kinds: Mapping[str, ColumnKind], wanted: Sequence[str]) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=list(wanted))
        return {name: _from_arrow(table.column(name), kinds.get(name)) for name in wanted}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({first_line(error)})") from None


def _from_arrow(values: Any, kind: ColumnKind | None) -> NDArray[Any]:
    """A pyarrow column as an array of a kind, or of its own."""
    import pyarrow as pa

    types = pa.types
    if kind is None:
        whole = types.is_integer(values.type) and not values.null_count
        real = types.is_integer(values.type) or types.is_floating(values.type) or types.is_decimal(values.type)
        kind = "flag" if types.is_boolean(values.type) else "integer" if whole else "number" if real else "text"
    if kind == "name":
        cells = values.cast(pa.binary())
        parts = [[v or b"" for v in cells[k : k + _CHUNK].to_pylist()] for k in range(0, len(cells), _CHUNK)]
        return np.concatenate([np.zeros(0, "S1"), *(np.array(part, "S") for part in parts)])
    if kind == "text" or types.is_string(values.type):
        return _parsed([v or "" for v in values.cast(pa.string()).to_pylist()], kind)
    target, empty = {"number": (pa.float64(), np.nan), "integer": (pa.int64(), -1), "flag": (pa.bool_(), False)}[kind]
    return np.array(values.cast(target).fill_null(empty))


def write_columns(columns: Mapping[str, Any], path: Path) -> None:
    """Writes columns (N,) with `image` among them as CSV, or as Parquet by the ending: the whole file, or none."""
    with replacing(path) as partial:
        if path.suffix.lower() in _PARQUET:
            _write_parquet(partial, columns)
            return
        with partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle:
            writer = csv.writer(handle)
            writer.writerow(columns)
            writer.writerows(zip(*map(_cells, columns.values()), strict=True))


def _cells(values: Any) -> Iterable[Any]:
    """Numbers with all their digits, empty where unknown."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return ["" if value != value else repr(value) for value in array.tolist()]
    return values if isinstance(values, list) else array.tolist()


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    names = pa.array([os.fsencode(n) for n in columns["image"]], pa.binary())
    others = {name: pa.array(np.asarray(v), from_pandas=True) for name, v in columns.items() if name != "image"}
    pyarrow.parquet.write_table(pa.table({"image": names, **others}), path)
