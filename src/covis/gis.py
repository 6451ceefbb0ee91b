"""Layers for GIS: GeoParquet (pyarrow) and GeoPackage (pyogrio, extra `gis`), written and read.

Geometries are WGS84 longitude and latitude. A GeoPackage holds several layers and, for QGIS, how they are drawn.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import check_regular, foreign, replacing
from covis.images import ImageSet
from covis.poses import true_headings

if TYPE_CHECKING:
    from covis.graph import SimilarityGraph

Geometry = Literal["Point", "LineString", "Polygon"]
_CODES: dict[str, int] = {"Point": 1, "LineString": 2, "Polygon": 3}
GEOMETRY = "geometry"
_SUFFIXES = (".gpkg", ".parquet", ".geoparquet")


class Layer(NamedTuple):
    """Features of one kind."""

    name: str
    kind: Geometry
    shapes: list[Floats | None]
    """(K, 2) longitudes and latitudes of each feature; None for one without a place."""
    columns: dict[str, NDArray[Any] | list[Any]]


def photos_layer(images: ImageSet, name: str = "photos", more: Mapping[str, Any] | None = None) -> Layer:
    """A point for each image with what is known of it, and `more` columns (full poses and cameras as a table has them)."""
    places = images.poses.latlon()[:, ::-1]
    shapes = [None if np.isnan(p).any() else p[None] for p in places]
    columns: dict[str, Any] = {"image": [images.name(i) for i in range(len(images))]}
    columns["heading"] = true_headings(images.poses)
    columns["group"] = [images.group_names[g] for g in images.group]
    if images.poses.z is not None:
        columns["altitude"] = images.poses.z
    plain = {key: value for key, value in images.columns.items() if value.ndim == 1 and value.dtype.kind in "biufU"}
    return Layer(name, "Point", shapes, columns | plain | dict(more or {}))


def edges_layer(graph: SimilarityGraph, queries: ImageSet, database: ImageSet, name: str = "edges") -> Layer:
    """A line for each labelled pair with its ψ; in one set each pair once."""
    rows, columns, psi = graph.rows, np.asarray(graph.indices, np.int64), graph.psi
    if queries is database:
        once = rows < columns
        rows, columns, psi = rows[once], columns[once], psi[once]
    start, end = queries.poses.latlon()[:, ::-1], database.poses.latlon()[:, ::-1]
    shapes: list[Floats | None] = [np.stack([start[i], end[j]]) for i, j in zip(rows, columns, strict=True)]
    names = {"query": [queries.name(int(i)) for i in rows], "database": [database.name(int(j)) for j in columns]}
    return Layer(name, "LineString", shapes, {**names, "similarity": psi.astype(np.float64)})


def geojson_layers(collection: Mapping[str, Any], name: str) -> list[Layer]:
    """The points of a GeoJSON FeatureCollection as one layer; a property that some lack is empty there."""
    features = [f for f in collection["features"] if (f.get("geometry") or {}).get("type") == "Point"]
    keys = list(dict.fromkeys(key for f in features for key in f["properties"]))
    columns: dict[str, Any] = {k: [_cell(f["properties"].get(k)) for f in features] for k in keys}
    shapes: list[Floats | None] = [np.array([f["geometry"]["coordinates"][:2]], np.float64) for f in features]
    return [Layer(name, "Point", shapes, columns)]


def _cell(value: Any) -> Any:
    return (
        value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
    )


def check_layers_target(path: Path) -> None:
    """Refuses a name whose ending is of no known format."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path} must end in {', '.join(_SUFFIXES)}")


def write_layers(path: Path | str, layers: Sequence[Layer]) -> None:
    """`.gpkg` with all layers, or `.parquet` with one; the old file stays until the new one is whole."""
    path = Path(path)
    check_layers_target(path)
    if path.suffix.lower() != ".gpkg" and len(layers) != 1:
        raise InputError(f"{path}: a Parquet file holds one layer, and there are {len(layers)}; write a .gpkg")
    with replacing(path) as partial:
        if path.suffix.lower() == ".gpkg":
            partial.unlink()  # GDAL makes the file itself
            _write_geopackage(partial, layers)
        else:
            _write_geoparquet(partial, layers[0])


def _table(layer: Layer) -> Any:
    import pyarrow as pa

    columns = {key: pa.array(_arrow(values), from_pandas=True) for key, values in layer.columns.items()}
    columns = {k: v.cast(pa.float64()) if pa.types.is_null(v.type) else v for k, v in columns.items()}
    return pa.table(columns | {GEOMETRY: pa.array([_wkb(layer.kind, s) for s in layer.shapes], pa.binary())})


def _arrow(values: Any) -> Any:
    """Text that is not UTF-8 is spelt out; NaN becomes empty."""
    if isinstance(values, list) and any(isinstance(v, str) for v in values):
        return [
            v.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") if isinstance(v, str) else v
            for v in values
        ]
    if isinstance(values, np.ndarray) and values.dtype.kind == "U":
        return values.tolist()
    return values


def _wkb(kind: Geometry, shape: Floats | None) -> bytes | None:
    """Well-known binary, little-endian; a polygon is one ring."""
    if shape is None:
        return None
    data = np.ascontiguousarray(shape, "<f8").tobytes()
    head = struct.pack("<BI", 1, _CODES[kind])
    if kind == "Point":
        return head + data
    count = struct.pack("<I", len(shape))
    return head + (struct.pack("<I", 1) if kind == "Polygon" else b"") + count + data


def _write_geoparquet(path: Path, layer: Layer) -> None:
    """GeoParquet 1.1: WKB in longitude and latitude, which is its default reference system."""
    import pyarrow.parquet

    column = {"encoding": "WKB", "geometry_types": [layer.kind]}
    known = [s for s in layer.shapes if s is not None]
    if known:
        every = np.concatenate(known)
        column["bbox"] = [*every.min(axis=0).tolist(), *every.max(axis=0).tolist()]
    geo = {"version": "1.1.0", "primary_column": GEOMETRY, "columns": {GEOMETRY: column}}
    table = _table(layer)
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"geo": json.dumps(geo).encode()}), path)


def _pyogrio(path: Path) -> Any:
    try:
        import pyogrio.raw
    except ImportError:
        raise InputError(f"{path} is a GeoPackage; that needs pyogrio: pip install 'covis[gis]'") from None
    return pyogrio


def _write_geopackage(path: Path, layers: Sequence[Layer]) -> None:
    ogr = _pyogrio(path)
    for layer in layers:
        ogr.raw.write_arrow(
            _table(layer),
            path,
            layer=layer.name,
            driver="GPKG",
            geometry_name=GEOMETRY,
            geometry_type=layer.kind,
            crs="EPSG:4326",
        )
    _write_styles(path, layers)


_STYLES = {
    "Point": '<symbol type="marker" name="0"><layer class="SimpleMarker"><Option type="Map">'
    '<Option type="QString" name="name" value="filled_arrowhead"/><Option type="QString" name="color" value="{colour}"/>'
    '<Option type="QString" name="size" value="3"/></Option><data_defined_properties><Option type="Map">'
    '<Option type="Map" name="properties"><Option type="Map" name="angle"><Option type="bool" name="active" value="true"/>'
    '<Option type="QString" name="expression" value="coalesce(&quot;heading&quot;,0)-90"/>'
    '<Option type="int" name="type" value="3"/></Option></Option></Option></data_defined_properties></layer></symbol>',
    "LineString": '<symbol type="line" name="0"><layer class="SimpleLine"><Option type="Map">'
    '<Option type="QString" name="line_color" value="{colour}"/><Option type="QString" name="line_width" value="0.3"/>'
    "</Option></layer></symbol>",
    "Polygon": '<symbol type="fill" name="0" alpha="0.5"><layer class="SimpleFill"><Option type="Map">'
    '<Option type="QString" name="color" value="{colour}"/></Option></layer></symbol>',
}
_COLOURS = {"Point": "31,119,180,255", "LineString": "44,160,44,160", "Polygon": "214,39,40,160"}


def style_of(layer: Layer) -> str:
    """QGIS's own style document: arrows by heading, thin lines, see-through cells."""
    symbol = _STYLES[layer.kind].format(colour=_COLOURS[layer.kind])
    renderer = f'<renderer-v2 type="singleSymbol"><symbols>{symbol}</symbols></renderer-v2>'
    return f'<!DOCTYPE qgis PUBLIC "http://mrcc.com/qgis.dtd" "SYSTEM"><qgis version="3.28">{renderer}</qgis>'


def _write_styles(path: Path, layers: Sequence[Layer]) -> None:
    """The table `layer_styles`, from which QGIS takes a layer's default style."""
    fields = (
        "id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, f_table_catalog TEXT(256), f_table_schema TEXT(256), f_table_name "
        "TEXT(256), f_geometry_column TEXT(256), styleName TEXT(30), styleQML TEXT, styleSLD TEXT, useAsDefault BOOLEAN, "
        "description TEXT, owner TEXT(30), ui TEXT(30), update_time DATETIME DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now'))"
    )
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE layer_styles ({fields})")
        database.execute(
            "INSERT INTO gpkg_contents (table_name, data_type, identifier) VALUES ('layer_styles', 'attributes', 'layer_styles')"
        )
        rows = [(layer.name, GEOMETRY, f"covis {layer.name}", style_of(layer), "", 1, "", "") for layer in layers]
        database.executemany(
            "INSERT INTO layer_styles (f_table_catalog, f_table_schema, f_table_name, f_geometry_column, styleName, styleQML, "
            "styleSLD, useAsDefault, description, owner) VALUES ('', '', ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    database.close()


class Points(NamedTuple):
    """Point features as read."""

    lat: Floats
    lon: Floats
    columns: dict[str, Any]
    """Name → pyarrow array."""


def is_layer_file(path: Path) -> bool:
    """Whether a file is a GeoPackage, or a Parquet file with geometries."""
    if path.suffix.lower() == ".gpkg":
        return path.is_file()
    return path.suffix.lower() in (".parquet", ".pq", ".geoparquet") and path.is_file() and _geo(path) is not None


def _geo(path: Path) -> dict[str, Any] | None:
    import pyarrow.parquet

    try:
        metadata = (pyarrow.parquet.read_schema(path).metadata or {}).get(b"geo")
        return json.loads(metadata) if metadata else None
    except (OSError, ValueError):
        return None


@foreign("a layer of points")
def read_point_layer(path: Path | str, layer: str | None = None) -> Points:
    """The points of a GeoPackage (of its only point layer, or `layer`) or a GeoParquet file, in WGS84 degrees."""
    path = Path(path)
    check_regular(path)
    table, crs, geometry = _read_geopackage(path, layer) if path.suffix.lower() == ".gpkg" else _read_geoparquet(path)
    xy = np.array([_point(path, i, v) for i, v in enumerate(table.column(geometry).to_pylist())]).reshape(-1, 2)
    lon, lat = _degrees(xy, crs)
    columns = {n: table.column(n).combine_chunks() for n in table.column_names if n != geometry}
    return Points(lat, lon, columns)


def _read_geoparquet(path: Path) -> tuple[Any, Any, str]:
    import pyarrow.parquet

    metadata = _geo(path)
    if metadata is None:
        raise InputError(f"{path} is Parquet without geometries; it is a table, not a layer")
    primary = metadata["primary_column"]
    column = metadata["columns"][primary]
    if column.get("encoding") != "WKB":
        raise InputError(f"{path}: geometries are in {column.get('encoding')}; expected WKB")
    return pyarrow.parquet.read_table(path), column.get("crs", "OGC:CRS84"), primary


def _read_geopackage(path: Path, layer: str | None) -> tuple[Any, Any, str]:
    import pyarrow as pa

    ogr = _pyogrio(path)
    try:
        listed = [name for name, kind in ogr.list_layers(path) if kind in ("Point", "Point Z", "3D Point")]
        if layer is None and len(listed) != 1:
            raise InputError(f"{path} has {len(listed)} layers of points ({', '.join(listed) or 'none'}); choose one")
        metadata, table = ogr.raw.read_arrow(path, layer=layer or listed[0])
    except (ogr.errors.DataSourceError, ogr.errors.DataLayerError) as error:
        raise InputError(f"{path} cannot be read as a GeoPackage ({error})") from None
    name = metadata.get("geometry_name") or "wkb_geometry"
    return pa.table(table), metadata["crs"] or "OGC:CRS84", name if name in table.column_names else "wkb_geometry"


def _point(path: Path, at: int, data: bytes | None) -> tuple[float, float]:
    """x and y of a WKB point, of either byte order and with or without height."""
    if data is None:
        return np.nan, np.nan
    order = "<" if data[0] == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, 1)
    skip = 4 if kind & 0x20000000 else 0
    if (kind & 0xFFFF) % 1000 != 1:
        raise InputError(f"{path}: feature {at} is not a point; expected one point per photo")
    x, y = struct.unpack_from(f"{order}2d", data, 5 + skip)
    return x, y


def _degrees(xy: Floats, crs: Any) -> tuple[Floats, Floats]:
    """Longitudes and latitudes; `crs` as PROJ knows it."""
    from pyproj import CRS, Transformer

    system = CRS.from_user_input(crs) if crs is not None else CRS.from_user_input("OGC:CRS84")
    if system.is_geographic and system.to_epsg() in (4326, None):
        return xy[:, 0], xy[:, 1]
    lon, lat = Transformer.from_crs(system, "OGC:CRS84", always_xy=True).transform(*xy.T)
    unknown = np.isnan(xy[:, 0])
    return np.where(unknown, np.nan, lon), np.where(unknown, np.nan, lat)
