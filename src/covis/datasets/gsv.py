"""GSV-Cities style lists: `Dataframes/<City>.csv` and `Images/<City>/…`, places with several views each.

Columns of a list: place_id, year, month, northdeg, city_id, lat, lon, panoid; a view's file name is made of them. A
group is a city, with its own metric frame. Columns here: `place` (unique over all cities), `year`, `month`, `panorama`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covis import images as image_sets
from covis.core.errors import InputError, unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.poses import Poses
from covis.reading.columns import ColumnKind, read_columns

_NAME = "gsv"
PLACES_PER_CITY = 10**5
_KINDS: dict[str, ColumnKind] = {
    "place_id": "integer", "year": "integer", "month": "integer", "northdeg": "integer", "city_id": "text", "lat": "text",
    "lon": "text", "panoid": "name",
}  # fmt: skip


def load(path: Path, split: str) -> Split:
    """`train`: every city there is; or cities by name (`London,Boston`). A set matched with itself."""
    present = sorted(f.stem for f in (path / "Dataframes").glob("*.csv"))
    if not present:
        raise InputError(f"{path / 'Dataframes'} has no <City>.csv; expected Dataframes/ and Images/")
    cities = present if split == "train" else split.split(",")
    for city in cities:
        if city not in present:
            raise unknown_name(f"split of {_NAME}", city, ["train", *present])
    images = image_sets.concatenate([_city(path, city, k) for k, city in enumerate(cities)])
    return Split(images, images)


def _city(path: Path, city: str, order: int) -> ImageSet:
    file = path / "Dataframes" / f"{city}.csv"
    cells = read_columns(file, _KINDS)
    lost = [name for name in _KINDS if name not in cells]
    if lost:
        raise InputError(f"{file} has no column {lost[0]}; expected {', '.join(_KINDS)}")
    place, year, month, north = (cells[k] for k in ("place_id", "year", "month", "northdeg"))
    lat, lon, panorama = cells["lat"], cells["lon"], cells["panoid"]
    poses = Poses.from_latlon(lat.astype(np.float64), lon.astype(np.float64), north.astype(np.float64))
    local = Poses(poses.xy, poses.heading)  # cities have frames of their own; only their groups keep them apart
    number = place % PLACES_PER_CITY
    # file names as the lists' own loader makes them, the numbers as Python prints them
    rows = zip(cells["city_id"], number, year, month, north, lat, lon, panorama, strict=True)
    names = [
        f"Images/{city}/{c}_{p:07d}_{y:04d}_{m:02d}_{n:03d}_{float(a)}_{float(o)}_".encode() + pano + b".jpg"
        for c, p, y, m, n, a, o, pano in rows
    ]
    columns = {"place": number + order * PLACES_PER_CITY, "year": year, "month": month, "panorama": panorama}
    return ImageSet.of(path, names, local, city, columns=columns)


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=("train",),
        more_splits=True,
        licence="CC BY-NC-SA 4.0; images by Google Street View, non-commercial research",
        volume=lambda name: "/".join(name.split("/")[:2]),
    )
)
