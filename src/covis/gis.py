"""Layers for GIS: cells and answers as GeoJSON or GeoPackage, and points read from either.

Geometries are WGS84 longitude and latitude. GDAL (pyogrio, extra `gis`) reads layers and writes GeoPackages.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.foreign import check_regular, foreign

SUFFIXES = (".geojson", ".gpkg")


class Layer(NamedTuple):
    """Features of one kind."""

    name: str
    kind: Literal["Point", "LineString", "Polygon"]
    shapes: Sequence[Floats | None]
    """(K, 2) longitudes and latitudes of each feature (the ring of a polygon); None for one without a position."""
    columns: Mapping[str, NDArray[Any] | list[Any]]

    def features(self) -> Iterable[dict[str, Any]]:
        """The features as GeoJSON values."""
        columns = {key: np.asarray(values).tolist() for key, values in self.columns.items()}
        for i, shape in enumerate(self.shapes):
            properties = {key: _json_value(values[i]) for key, values in columns.items()}
            yield {"type": "Feature", "geometry": self._geometry(shape), "properties": properties}

    def _geometry(self, shape: Floats | None) -> dict[str, Any] | None:
        if shape is None:
            return None
        points = shape.tolist()
        coordinates = {"Point": points[0], "LineString": points, "Polygon": [points]}[self.kind]
        return {"type": self.kind, "coordinates": coordinates}


def _json_value(value: Any) -> Any:
    """NaN becomes empty; text that is not UTF-8 is written with escapes."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


def check_layers_target(path: Path) -> None:
    """Refuses a name whose ending is of no known format."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} must end in {' or '.join(SUFFIXES)}")


def write_layers(path: Path | str, layers: Sequence[Layer]) -> None:
    """Writes `.gpkg`, or `.geojson` with the features of all layers; an old file stays until the new one is whole."""
    path = Path(path)
    check_layers_target(path)
    write_features(path, {layer.name: list(layer.features()) for layer in layers})


def write_features(path: Path, layers: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Writes GeoJSON features by layer, as `write_layers` does."""
    if path.suffix.lower() == ".gpkg":
        _import_pyogrio(path)
    with replacing(path) as partial:
        if path.suffix.lower() == ".gpkg":
            partial.unlink()  # GDAL creates the file itself
            for name, features in layers.items():
                _add_to_geopackage(partial, name, features)
        else:
            partial.write_bytes(_collection([f for features in layers.values() for f in features]))


def _collection(features: Sequence[dict[str, Any]]) -> bytes:
    text = json.dumps({"type": "FeatureCollection", "features": features}, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "surrogateescape")


def _add_to_geopackage(path: Path, name: str, features: Sequence[dict[str, Any]]) -> None:
    ogr = _import_pyogrio(path)
    metadata, table = ogr.raw.read_arrow(_collection(features), DATE_AS_STRING="YES")
    ogr.raw.write_arrow(
        table,
        path,
        layer=name,
        driver="GPKG",
        geometry_name=metadata["geometry_name"] or "wkb_geometry",
        geometry_type=metadata["geometry_type"],
        crs="EPSG:4326",
    )


def _import_pyogrio(path: Path) -> Any:
    try:
        import pyogrio.raw
    except ImportError:
        raise InputError(f"{path} is a layer for GIS; it needs pyogrio: pip install 'covis[gis]'") from None
    return pyogrio


class Points(NamedTuple):
    """Point features as read."""

    lat: Floats
    lon: Floats
    columns: dict[str, Any]
    """Name → pyarrow array."""


@foreign("a layer of points")
def read_point_layer(path: Path | str) -> Points:
    """The points of a GeoPackage or GeoJSON file with one layer of points, in WGS84 degrees."""
    import pyarrow as pa

    path = Path(path)
    check_regular(path)
    ogr = _import_pyogrio(path)
    try:
        point_layers = [name for name, kind in ogr.list_layers(path) if kind in ("Point", "Point Z", "3D Point")]
        if len(point_layers) != 1:
            listed = ", ".join(point_layers) or "none"
            raise InputError(f"{path} has {len(point_layers)} layers of points ({listed}); expected one")
        metadata, read = ogr.raw.read_arrow(path, layer=point_layers[0])
    except (ogr.errors.DataSourceError, ogr.errors.DataLayerError) as error:
        raise InputError(f"{path} cannot be read as a layer ({error})") from None
    table = pa.table(read)
    name = metadata.get("geometry_name")
    geometry = name if name in table.column_names else "wkb_geometry"
    xy = np.array([_wkb_point(path, i, v) for i, v in enumerate(table.column(geometry).to_pylist())]).reshape(-1, 2)
    lon, lat = _to_wgs84(xy, metadata["crs"] or "OGC:CRS84")
    return Points(lat, lon, {n: table.column(n).combine_chunks() for n in table.column_names if n != geometry})


def _wkb_point(path: Path, row: int, data: bytes | None) -> tuple[float, float]:
    """x and y of a point in well-known binary, which GDAL writes in little-endian order, with or without height."""
    if data is None:
        return np.nan, np.nan
    kind, x, y = struct.unpack_from("<I2d", data, 1)
    if kind % 1000 != 1:
        raise InputError(f"{path}: feature {row} is not a point; expected one point per photo")
    return x, y


def _to_wgs84(xy: Floats, crs: str) -> tuple[Floats, Floats]:
    """Longitudes and latitudes; `crs` as PROJ knows it."""
    from pyproj import CRS, Transformer

    if re.search("PARAMETERFILE|EXTENSION|BOUNDCRS|[+]", crs, re.IGNORECASE):
        raise InputError("its coordinate system names files or PROJ text; save the layer in EPSG:4326")
    system = CRS.from_user_input(crs)
    if system.is_geographic and system.to_epsg() in (4326, None):
        return xy[:, 0], xy[:, 1]
    lon, lat = Transformer.from_crs(system, "OGC:CRS84", always_xy=True).transform(*xy.T)
    unknown = np.isnan(xy[:, 0])
    return np.where(unknown, np.nan, lon), np.where(unknown, np.nan, lat)
