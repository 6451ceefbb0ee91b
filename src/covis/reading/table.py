"""A user's own table: CSV, Parquet, or points of GeoJSON, with an image, a position and other columns, one row per image.

Columns: `image` (path relative to the table) and `lat, lon` (WGS84 degrees) or `easting, northing` (metres); optional
`heading` (degrees clockwise from north: true north beside lat/lon, grid north beside easting/northing), `altitude`
(metres), `group` (city, sequence or author). Where both kinds of position are given, lat/lon count, because they have
a place on Earth. Further columns travel along as `ImageSet.columns`. Empty cells mean unknown. Names and notations of
other tools are understood (`covis.reading.column_names`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covis import geojson
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Poses, local_frame
from covis.reading.column_names import parse_cells, recognise, reference_column, tell_recognised
from covis.reading.columns import (
    Column,
    ColumnKind,
    any_values,
    from_cells,
    header,
    name_bytes,
    numbers,
    read_columns,
    texts,
)
from covis.reading.pose_columns import restored

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
_METRES = ("easting", "northing")
_EXAMPLE = "image,lat,lon,heading,group (or easting,northing in metres for lat,lon)"
SUFFIXES = (".csv", ".parquet", ".pq", geojson.SUFFIX)
_SLIPS = {"x": "easting", "y": "northing"}
"""Not taken for them: they may as well be degrees."""


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
    if path.suffix.lower() not in (".csv", ".parquet", ".pq"):
        cells = _cells(path)
    else:
        names = header(path)
        [column] = ["image"] if "image" in names else [*recognise(names, ["image"])] or [""]
        cells = {"image": read_columns(path, {column: "name"}, others=False)[column]} if column else _cells(path)
    return [path.parent / os.fsdecode(name) for name in _image_names(path, cells)]


def _cells(path: Path) -> dict[str, Column]:
    if path.suffix.lower() == geojson.SUFFIX:
        return _points(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a table; give a file with the columns {_EXAMPLE}")
    names = header(path)
    found = recognise(names, _KINDS)
    check_columns(path, [found.get(name, name) for name in names])
    tell_recognised(path, found)
    foreign_kinds: dict[str, ColumnKind] = {name: _foreign_kind(meaning) for name, meaning in found.items()}
    cells = read_columns(path, {**_KINDS, **foreign_kinds})
    return {**{name: column for name, column in cells.items() if name not in found}, **_renamed(path, cells, found)}


def _foreign_kind(meaning: str) -> ColumnKind:
    """Numbers of other tools may carry units."""
    return "text" if _KINDS[meaning] == "number" else _KINDS[meaning]


def _renamed(path: Path, cells: Mapping[str, Column], found: Mapping[str, str]) -> dict[str, Column]:
    """The columns of other tools by their meaning."""
    columns = {}
    for name, meaning in found.items():
        columns[meaning] = cells[name]
        if _KINDS[meaning] == "number":
            reference = reference_column(list(cells), name)
            signs = None if reference is None else texts(cells[reference])
            columns[meaning] = Column.of(parse_cells(path, name, texts(cells[name]), signs))
    return columns


def _points(path: Path) -> dict[str, Column]:
    """Points with the table's columns beside them; the geometry gives the position."""
    rows = geojson.read_points(path)
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in _METRES]
    found = recognise(names, _KINDS)
    tell_recognised(path, found)
    check_columns(path, [found.get(name, name) for name in names])
    meanings = {name: found.get(name, name) for name in names}
    try:
        return {m: from_cells([row.get(name) for row in rows], _KINDS.get(m)) for name, m in meanings.items()}
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} has a value that does not fit its column ({error}); fix it") from None


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Refuses a table without the needed columns, or with one whose name looks misspelt."""
    twice = [name for i, name in enumerate(columns) if name in columns[:i]]
    if twice:
        raise InputError(f"{path}: column {twice[0]!r} is there twice; rename one")
    for name in columns:
        meant = _likely_meaning(name)
        if name not in _KINDS and meant and meant not in columns:
            raise InputError(f"{path}: row 1 has an unknown column {name!r}; did you mean {meant!r}?")
    placed = {"lat", "lon"} <= set(columns) or {"easting", "northing"} <= set(columns)
    if "image" not in columns or not placed:
        raise InputError(f"{path}: row 1 has the columns {', '.join(columns) or '(none)'}; expected {_EXAMPLE}")


def _likely_meaning(name: str) -> str | None:
    plain = name.strip().lower()
    if plain in _SLIPS:
        return _SLIPS[plain]
    near = difflib.get_close_matches(plain, _KINDS, n=1, cutoff=0.8)
    return near[0] if near else None


def _image_names(path: Path, cells: Mapping[str, Column]) -> NDArray[np.bytes_]:
    encoded = name_bytes(cells["image"])
    blank = np.flatnonzero(encoded == b"")
    if len(blank):
        raise InputError(f"{path}: row {int(blank[0]) + 2} has no image name; fill it in or remove the row")
    if not len(encoded):
        raise InputError(f"{path} has a header and no rows; expected {_EXAMPLE}")
    return encoded


def _image_set(path: Path, cells: Mapping[str, Column], frame: str) -> ImageSet:
    encoded = _image_names(path, cells)
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
    _check_pairs(path, xy, "easting and northing")
    return Poses(xy, heading, altitude, frame=frame)


def _degrees(path: Path, cells: Mapping[str, Column]) -> tuple[Floats, Floats]:
    """Latitudes and longitudes; exactly 0, 0 is what a receiver without a fix writes, so it means unknown."""
    both = np.column_stack([numbers(cells["lat"]), numbers(cells["lon"])])
    _check_pairs(path, both, "lat and lon")
    outside = np.flatnonzero((np.abs(both[:, 0]) > 90) | (np.abs(both[:, 1]) > 180))
    if len(outside):
        at = int(outside[0])
        raise InputError(
            f"{path}: row {at + 2} has lat {both[at, 0]}, lon {both[at, 1]}, which is not a place on Earth; fix it"
        )
    both[(both == 0).all(axis=1)] = np.nan
    return both[:, 0], both[:, 1]


def _check_pairs(path: Path, pairs: NDArray[np.float64], what: str) -> None:
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
