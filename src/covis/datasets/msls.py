"""Mapillary Street-Level Sequences: `train_val/<city>/{query,database}` and `test/<city>/…`, CSV files and images.

A group is a city, and images of two cities are never compared: each city has its own metric frame. Only the columns
that something needs are read, under their official names: `key`, `pano`, `lat`, `lon`,
`ca` (compass, true north) and the subtask flags `all`, `s2w`, `w2s`, `o2n`, `n2o`, `d2n`, `n2d`. `row` is an image's line
in the city's CSV files and `rows` how many lines these have: panoramas are left out but keep their numbers, since the
labels that the method's authors released count them. The test cities have no positions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import images as image_sets
from covis.core.arrays import Floats
from covis.core.errors import InputError, unknown_name
from covis.core.progress import say, warn
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.labels.rules import FovOverlap
from covis.poses import Poses, convergence_deg, one_zone
from covis.reading.columns import ColumnKind, read_columns

_NAME = "msls"
CITIES = {
    "train": (
        "trondheim", "london", "boston", "melbourne", "amsterdam", "helsinki", "tokyo", "toronto", "saopaulo",
        "moscow", "zurich", "paris", "bangkok", "budapest", "austin", "berlin", "ottawa", "phoenix", "goa", "amman",
        "nairobi", "manila",
    ),
    "val": ("cph", "sf"),
    "test": ("miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala"),
}  # fmt: skip
SUBTASKS = ("all", "s2w", "w2s", "o2n", "n2o", "d2n", "n2d")
_SIDES = ("query", "database")
POSITIONS = ("raw.csv", "postprocessed.csv")
_KINDS: dict[str, ColumnKind] = {
    "key": "name",
    "lon": "number",
    "lat": "number",
    "ca": "number",
    "pano": "flag",
    "easting": "number",
    "northing": "number",
    **dict.fromkeys(SUBTASKS, "flag"),
}
"""Columns that are read; `captured_at` (a date as text) and the others are not even parsed."""


def load(path: Path, split: str) -> Split:
    """Queries and map of `train`, `val`, `test` or of cities (`zurich,goa`), without panoramas, which have no heading."""
    return read_cities(path, _present(path, _cities(split), complete=split != "train"))


def _cities(split: str) -> tuple[str, ...]:
    """The cities of a split, or those that it lists."""
    known = [city for cities in CITIES.values() for city in cities]
    cities = CITIES.get(split) or tuple(dict.fromkeys(split.split(",")))
    for city in cities:
        if city not in known:
            raise unknown_name(f"split of {_NAME}", city, [*CITIES, *known])
    return cities


def read_cities(path: Path | str, cities: Sequence[str]) -> Split:
    """Queries and map of `cities`, in the order of the CSV files."""
    sides = []
    for side in _SIDES:
        parts = [_city(Path(path), city, side) for city in cities]
        sides.append(image_sets.concatenate([_without_panoramas(part) for part in parts]))
        left = sum(map(len, parts)) - len(sides[-1])
        if left:
            say(f"{_NAME} {side}: {left} panoramas left out")
    return Split(*sides)


def _without_panoramas(images: ImageSet) -> ImageSet:
    panorama = images.columns["pano"]
    return images.subset(~panorama) if panorama.any() else images


def _present(path: Path, wanted: tuple[str, ...], complete: bool) -> tuple[str, ...]:
    """The cities whose metadata is there; a benchmark needs all of them, training takes what there is."""
    present = tuple(city for city in wanted if (path / _volume(city) / city / "query" / "seq_info.csv").is_file())
    missing = [city for city in wanted if city not in present]
    if missing and (complete or not present):
        raise InputError(
            f"{path / _volume(missing[0]) / missing[0]} has no query/seq_info.csv (missing: {', '.join(missing)}); "
            "unpack metadata.zip of MSLS there"
        )
    if missing:
        warn(f"{path} lacks {len(missing)} of {len(wanted)} cities: {', '.join(missing)}")
    return present


def _volume(city: str) -> str:
    return "test" if city in CITIES["test"] else "train_val"


def _city(path: Path, city: str, side: str) -> ImageSet:
    """One side of one city."""
    folder = path / _volume(city) / city / side
    test = city in CITIES["test"]
    truth = not test or all((folder / name).is_file() for name in POSITIONS)  # some have the test cities' positions
    cells = _columns(folder, located=truth)
    n = len(cells["key"])
    if test:  # the server asks for panoramas too
        cells["pano"] = np.zeros(n, bool)
    cells["row"], cells["rows"] = np.arange(n), np.full(n, n)
    poses = _poses(cells, n)
    encoded = np.char.add(np.char.add(f"{_volume(city)}/{city}/{side}/images/".encode(), cells["key"]), b".jpg")
    return ImageSet.of(path, encoded, poses, city, columns=cells)


def _columns(folder: Path, located: bool) -> dict[str, NDArray[Any]]:
    """The columns of a folder's CSV files by official name, all in one order."""
    files = ["seq_info.csv", "subtask_index.csv", *(POSITIONS if located else ())]
    cells: dict[str, NDArray[Any]] = {}
    keys: NDArray[np.bytes_] | None = None
    for name in files:
        if name == "subtask_index.csv" and located and not (folder / name).exists():
            continue  # training needs none; a benchmark asks for its flags by name
        table = read_columns(folder / name, _KINDS, others=False)
        own_keys = table.pop("key", keys) if keys is not None else table["key"]
        if keys is not None and not np.array_equal(own_keys, keys):
            raise InputError(f"{folder / name}: {_misaligned(keys, own_keys)}; take all files of one release")
        keys = own_keys
        cells |= table
        if any(len(values) != len(keys) for values in cells.values()):
            raise InputError(f"{folder / name} has other rows than seq_info.csv; take all files of one release")
    return cells


def _misaligned(expected: NDArray[np.bytes_], actual: NDArray[np.bytes_]) -> str:
    if len(expected) != len(actual):
        return f"{len(actual)} rows, but seq_info.csv has {len(expected)}"
    at = int(np.flatnonzero(expected != actual)[0])
    return f"row {at + 2} is {os.fsdecode(actual[at])}, seq_info.csv has {os.fsdecode(expected[at])}"


def _poses(cells: dict[str, NDArray[Any]], n: int) -> Poses:
    """Positions as released, in one UTM zone; the compass turned from true to grid north, −1 as unknown."""
    if "easting" not in cells:
        return Poses(np.full((n, 2), np.nan), np.full(n, np.nan))
    lat, lon, compass = cells["lat"], cells["lon"], cells["ca"].copy()
    xy: Floats = np.column_stack([cells.pop("easting"), cells.pop("northing")])
    xy, zone = one_zone(xy, lat, lon)
    compass[compass == -1] = np.nan
    return Poses(xy, compass - (convergence_deg(lat, lon, zone) if zone else 0.0))


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=tuple(CITIES),
        licence="CC BY-NC-SA 4.0 for research; images by Mapillary's contributors, request at mapillary.com",
        more_splits=True,
        published={"val": (None, 18871)},
        at_least={"test": (20_000, 20_000)},
        rule=FovOverlap(within_group=True),
        groups={split: len(cities) for split, cities in CITIES.items()},
        splits_by_group=True,
    )
)
