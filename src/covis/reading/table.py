"""A user's own table: CSV, Parquet or GeoJSON with an image, a position and other columns, one row per image.

Columns: `image` (path relative to the table) and `lat, lon` (WGS84 degrees) or `easting, northing` (metres); optional
`heading` (degrees clockwise from north: true north beside lat/lon, grid north beside easting/northing), `altitude`
(metres), `group` (city, sequence or author). Where both kinds of position are given, lat/lon count, because they have
a place on Earth. Further columns travel along as `ImageSet.columns`. Empty cells mean unknown.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis import gis
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import foreign, read_foreign_text
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Poses, local_frame
from covis.reading.cameras import restored

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
            raise InputError(f"{path} is not a Parquet file ({_first_line(error)})") from None
    import csv

    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        return next(csv.reader(handle), [])


def name_bytes(column: Column, prefix: bytes = b"", suffix: bytes = b"") -> NDArray[np.bytes_]:
    """(N,) file-system bytes `prefix + cell + suffix`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _filled(column.cast(pa.binary()), b"")
    if prefix or suffix:
        column = pc.binary_join_element_wise(prefix, column, suffix, b"")
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
        raise InputError(f"{path} cannot be read as Parquet ({_first_line(error)})") from None
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
    text = _first_line(error)
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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


# A user's own table: CSV, Parquet or GeoJSON with an image, a position and other columns, one row per image.
#
# Columns: `image` (path relative to the table) and `lat, lon` (WGS84 degrees) or `easting, northing` (metres); optional
# `heading` (degrees clockwise from north: true north beside lat/lon, grid north beside easting/northing), `altitude`
# (metres), `group` (city, sequence or author). Where both kinds of position are given, lat/lon count, because they have
# a place on Earth. Further columns travel along as `ImageSet.columns`. Empty cells mean unknown.


_KINDS: dict[str, ColumnKind] = {
    "image": "name",
    "lat": "number",
    "lon": "number",
    "easting": "number",
    "northing": "number",
    "heading": "number",
    "altitude": "number",
    "group": "text",
}
"""The columns with a meaning of their own."""
_EXAMPLE = "image,lat,lon,heading,group (or easting,northing in metres for lat,lon)"
SUFFIXES = (".csv", ".parquet", ".pq", ".geojson", ".gpkg", ".geoparquet")
_SYNONYMS = {
    **dict.fromkeys(("file", "filename", "file_name", "path", "name", "photo", "image_name", "image_path"), "image"),
    **dict.fromkeys(("latitude", "gps_lat"), "lat"),
    **dict.fromkeys(("longitude", "lng", "long", "gps_lon"), "lon"),
    **dict.fromkeys(("utm_east", "east", "utm_easting", "x"), "easting"),
    **dict.fromkeys(("utm_north", "north", "utm_northing", "y"), "northing"),
    **dict.fromkeys(("compass", "ca", "bearing", "yaw", "azimuth", "angle", "direction"), "heading"),
    **dict.fromkeys(("height", "elevation", "alt"), "altitude"),
}


@foreign("a table of images")
def read_table(path: Path | str, frame: str = "") -> ImageSet:
    """The images of one table.

    Positions in degrees go into `frame`, or into one around their own middle; those in metres are in `frame`, or in one
    without a place on Earth.
    """
    path = Path(path)
    return _image_set(path, _cells(path), frame)


@foreign("tables of images")
def read_tables(paths: Sequence[Path | str], frame: str = "") -> tuple[ImageSet, ...]:
    """Several tables in one common frame, so that their images can be matched with each other; `frame` as in `read_table`."""
    files = [Path(p) for p in paths]
    cells = [_cells(file) for file in files]
    degrees = [set(c) >= {"lat", "lon"} for c in cells]
    if any(degrees) and not all(degrees):
        raise InputError(
            f"{files[degrees.index(True)]} has lat/lon and {files[degrees.index(False)]} has only metres; "
            "give both the same kind of position"
        )
    if all(degrees) and not frame:
        places = [_degrees(file, c) for file, c in zip(files, cells, strict=True)]
        frame = local_frame(np.concatenate([p[0] for p in places]), np.concatenate([p[1] for p in places]))
    return tuple(_image_set(file, c, frame) for file, c in zip(files, cells, strict=True))


@foreign("a table of images")
def image_files(path: Path) -> list[Path]:
    """The images that a table names; it need not say where they were taken."""
    plain = path.suffix.lower() in (".csv", ".parquet", ".pq") and "image" in header(path)
    cells = read_columns(path, {"image": "name"}, others=False) if plain else _cells(path)
    return [path.parent / os.fsdecode(name) for name in _names(path, cells)]


def _cells(path: Path) -> dict[str, Column]:
    if path.suffix.lower() in (".geojson", ".json"):
        return _geojson(path)
    if gis.is_layer_file(path):
        return _layer(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a table; give a file with the columns {_EXAMPLE}")
    check_columns(path, header(path))
    return read_columns(path, _KINDS)


def _layer(path: Path) -> dict[str, Column]:
    """Point features of a GeoPackage or GeoParquet file with the table's columns beside them."""
    import pyarrow as pa

    points = gis.read_point_layer(path)
    cells = {**points.columns, "lat": pa.array(points.lat), "lon": pa.array(points.lon)}
    check_columns(path, list(cells))
    kinds = {"image": pa.binary(), "heading": pa.float64(), "altitude": pa.float64(), "group": pa.string()}
    for name in ("easting", "northing"):
        cells.pop(name, None)  # the geometry gives the position
    return {k: v.cast(kinds[k]) if k in kinds else v for k, v in cells.items()}


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Refuses a table without the needed columns, or with one whose name looks misspelt."""
    twice = [name for i, name in enumerate(columns) if name in columns[:i]]
    if twice:
        raise InputError(f"{path}: column {twice[0]!r} is there twice; rename one")
    for name in columns:
        meant = _meant(name)
        if name not in _KINDS and meant and meant not in columns:
            raise InputError(f"{path}: row 1 has an unknown column {name!r}; did you mean {meant!r}?")
    placed = {"lat", "lon"} <= set(columns) or {"easting", "northing"} <= set(columns)
    if "image" not in columns or not placed:
        raise InputError(f"{path}: row 1 has the columns {', '.join(columns) or '(none)'}; expected {_EXAMPLE}")


def _meant(name: str) -> str | None:
    plain = name.strip().lower()
    if plain in _KINDS or plain in _SYNONYMS:
        return _SYNONYMS.get(plain, plain)
    near = difflib.get_close_matches(plain, _KINDS, n=1, cutoff=0.8)
    return near[0] if near else None


def _names(path: Path, cells: Mapping[str, Column]) -> NDArray[np.bytes_]:
    encoded = name_bytes(cells["image"])
    blank = np.flatnonzero(encoded == b"")
    if len(blank):
        raise InputError(f"{path}: row {int(blank[0]) + 2} has no image name; fill it in or remove the row")
    if not len(encoded):
        raise InputError(f"{path} has a header and no rows; expected {_EXAMPLE}")
    return encoded


def _image_set(path: Path, cells: Mapping[str, Column], frame: str) -> ImageSet:
    encoded = _names(path, cells)
    group = texts(cells["group"]) if "group" in cells else ""
    extra = {name: any_values(column) for name, column in cells.items() if name not in _KINDS}
    images = ImageSet.of(path.parent, encoded, _poses(path, cells, frame), group, columns=extra)
    return restored(images, path)


def _poses(path: Path, cells: Mapping[str, Column], frame: str) -> Poses:
    heading = _heading(path, cells)
    altitude = numbers(cells["altitude"]) if "altitude" in cells else None
    if {"lat", "lon"} <= set(cells):
        lat, lon = _degrees(path, cells)
        nowhere = int((np.isnan(lat) & (numbers(cells["lat"]) == 0)).sum())
        if nowhere:
            warn(f"{path}: {nowhere} positions are exactly 0, 0 and count as unknown")
        return Poses.from_latlon(lat, lon, heading, z=altitude, frame=frame)
    xy = np.column_stack([numbers(cells["easting"]), numbers(cells["northing"])])
    _whole(path, xy, "easting and northing")
    return Poses(xy, heading, altitude, frame=frame)


def _degrees(path: Path, cells: Mapping[str, Column]) -> tuple[Floats, Floats]:
    """Latitudes and longitudes; exactly 0, 0 is what a receiver without a fix writes, so it means unknown."""
    both = np.column_stack([numbers(cells["lat"]), numbers(cells["lon"])])
    _whole(path, both, "lat and lon")
    outside = np.flatnonzero((np.abs(both[:, 0]) > 90) | (np.abs(both[:, 1]) > 180))
    if len(outside):
        at = int(outside[0])
        raise InputError(
            f"{path}: row {at + 2} has lat {both[at, 0]}, lon {both[at, 1]}, which is not a place on Earth; fix it"
        )
    both[(both == 0).all(axis=1)] = np.nan
    return both[:, 0], both[:, 1]


def _whole(path: Path, pairs: NDArray[np.float64], what: str) -> None:
    wrong = np.flatnonzero((np.isnan(pairs[:, 0]) != np.isnan(pairs[:, 1])) | np.isinf(pairs).any(axis=1))
    if len(wrong):
        raise InputError(f"{path}: row {int(wrong[0]) + 2} has half of {what} or an infinite one; fix or empty both")


def _heading(path: Path, cells: Mapping[str, Column]) -> Floats:
    """Headings with −1 as unknown; one warning where a compass seems stuck."""
    if "heading" not in cells:
        return np.full(len(cells["image"]), np.nan)
    heading = numbers(cells["heading"])
    heading[heading == -1] = np.nan
    endless = np.flatnonzero(np.isinf(heading))
    if len(endless):
        raise InputError(f"{path}: row {int(endless[0]) + 2} has an infinite heading; fix or empty it")
    known = heading[~np.isnan(heading)]
    if len(known) > 2 and (known == known[0]).all():
        warn(f"{path}: every known heading is {known[0]:g}°; was the compass stuck?")
    return heading


def _geojson(path: Path) -> dict[str, Column]:
    """Point features with the table's columns as properties; coordinates are lon, lat (, altitude)."""
    import pyarrow as pa

    try:
        features = json.loads(read_foreign_text(path))["features"]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a GeoJSON FeatureCollection ({error})") from None
    rows = [_feature(path, i, feature) for i, feature in enumerate(features)]
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["image", "lat", "lon"]
    check_columns(path, columns)
    try:
        cells = {key: pa.array([row.get(key) for row in rows], from_pandas=True) for key in columns}
        return {k: v.cast(pa.binary() if k == "image" else pa.float64()) if _typed(k) else v for k, v in cells.items()}
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{path}: a property has mixed or wrong kinds of value ({error})") from None


def _typed(name: str) -> bool:
    return name in _KINDS and name != "group"


def _feature(path: Path, at: int, feature: Any) -> dict[str, Any]:
    geometry = (feature.get("geometry") or {}) if isinstance(feature, dict) else {}
    where = geometry.get("coordinates") or []
    if (geometry and geometry.get("type") != "Point") or len(where) not in (0, 2, 3):
        raise InputError(f"{path}: feature {at} is a {geometry.get('type')}; expected one Point per photo")
    row = dict(feature.get("properties") or {}) if isinstance(feature, dict) else {}
    row["lat"], row["lon"] = (float(where[1]), float(where[0])) if where else (None, None)
    if len(where) == 3:
        row["altitude"] = float(where[2])
    return row
