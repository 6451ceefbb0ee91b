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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Poses, local_frame, true_headings
from covis.reading.column_names import meanings_of, read_meanings, recognise
from covis.reading.columns import SUFFIXES as SUFFIXES
from covis.reading.columns import ColumnKind, Columns, header, write_columns
from covis.reading.pose_columns import pose_columns, restored

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
    is_named = "image" in meanings_of(path, ["image"]).values()
    cells = read_meanings(path, {"image": "name"}, others=False) if is_named else _cells(path)
    return [path.parent / os.fsdecode(name) for name in _image_names(path, cells)]


def _cells(path: Path) -> Columns:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a table; give a file with the columns {_EXAMPLE}")
    names = header(path)
    found = recognise(names, _KINDS)
    check_columns(path, [found.get(name, name) for name in names])
    return read_meanings(path, _KINDS)


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


def _image_names(path: Path, cells: Columns) -> NDArray[np.bytes_]:
    names = cells["image"]
    if not len(names):
        raise InputError(f"{path} has a header and no rows; expected {_EXAMPLE}")
    _refuse(path, names == b"", "has no image name; fill it in or remove the row")
    return names


def _refuse(path: Path, wrong: NDArray[np.bool_], what: str) -> None:
    """An error for the first row that is wrong."""
    if wrong.any():
        raise InputError(f"{path}: row {int(wrong.argmax()) + 2} {what}")


def _image_set(path: Path, cells: Columns, frame: str) -> ImageSet:
    extra = {name: values for name, values in cells.items() if name not in _KINDS}
    names, poses = _image_names(path, cells), _poses(path, cells, frame)
    return restored(ImageSet.of(path.parent, names, poses, cells.get("group", ""), columns=extra), path)


def _poses(path: Path, cells: Columns, frame: str) -> Poses:
    heading = _heading(path, cells)
    if {"lat", "lon"} <= set(cells):
        lat, lon = _degrees(path, cells)
        nowhere = int((np.isnan(lat) & (cells["lat"] == 0)).sum())
        if nowhere:
            warn(f"{path}: {nowhere} positions are exactly 0, 0 and count as unknown")
        return Poses.from_latlon(lat, lon, heading, z=cells.get("altitude"), frame=frame)
    xy = np.column_stack([cells["easting"], cells["northing"]])
    _check_pairs(path, xy, "easting and northing")
    return Poses(xy, heading, cells.get("altitude"), frame=frame)


def _degrees(path: Path, cells: Columns) -> tuple[Floats, Floats]:
    """Latitudes and longitudes; exactly 0, 0 is what a receiver without a fix writes, so it means unknown."""
    both = np.column_stack([cells["lat"], cells["lon"]])
    _check_pairs(path, both, "lat and lon")
    outside = (np.abs(both) > (90, 180)).any(axis=1)
    lat, lon = both[int(outside.argmax())]
    _refuse(path, outside, f"has lat {lat}, lon {lon}, which is not a place on Earth; fix it")
    both[(both == 0).all(axis=1)] = np.nan
    return both[:, 0], both[:, 1]


def _check_pairs(path: Path, pairs: Floats, what: str) -> None:
    wrong = (np.isnan(pairs[:, 0]) != np.isnan(pairs[:, 1])) | np.isinf(pairs).any(axis=1)
    _refuse(path, wrong, f"has half of {what} or an infinite one; fix or empty both")


def _heading(path: Path, cells: Columns) -> Floats:
    """Headings with −1 as unknown."""
    heading = cells.get("heading", np.full(len(cells["image"]), np.nan))
    _refuse(path, np.isinf(heading), "has an infinite heading; fix or empty it")
    heading = np.where(heading == -1, np.nan, heading)
    warn_if_stuck(heading, str(path))
    return heading


def warn_if_stuck(heading: Floats, source: str) -> None:
    """One warning where all of several headings are one number."""
    known = heading[~np.isnan(heading)]
    if len(known) > 2 and (known == known[0]).all():
        warn(f"{source}: every known heading is {known[0]:g}°; was the compass stuck?")


def write_images(images: ImageSet, path: Path | str) -> None:
    """Writes images as a CSV or Parquet table that `read_table` gives back as they are."""
    path = Path(path)
    write_columns(_table_columns(images, path.parent), path)


def _table_columns(images: ImageSet, folder: Path) -> dict[str, Any]:
    """Everything known of `images` as columns of a table in `folder`."""
    poses = images.poses
    if not poses.metric:
        raise InputError(
            "the scale of these poses is unknown, and a table is in metres; give --scale METRES_PER_UNIT, or --georeference "
            "with lat and lon of at least three of the images"
        )
    base = os.path.relpath(images.root.resolve(), folder.resolve())
    prefix = "" if base == "." else f"{base}/"
    columns: dict[str, Any] = {"image": [f"{prefix}{images.name(i)}" for i in range(len(images))]}
    if poses.frame:
        columns["lat"], columns["lon"] = poses.latlon().T
    columns["easting"], columns["northing"] = poses.xy.T
    columns["heading"] = true_headings(poses)
    if poses.z is not None:
        columns["altitude"] = poses.z
    columns["group"] = [images.group_names[g] for g in images.group]
    for name, values in {**images.columns, **pose_columns(images)}.items():
        plain = np.char.decode(values, "utf-8", "surrogateescape") if np.asarray(values).dtype.kind == "S" else values
        if name == "depth":
            columns[name] = [f"{prefix}{value}" if value else "" for value in plain.tolist()]
        elif name not in columns and np.ndim(plain) == 1:
            columns[name] = plain
    return columns
