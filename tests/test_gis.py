"""Layers read by geopandas as covis wrote them, and by covis as geopandas wrote them."""

import numpy as np
import pytest
from shapely.geometry import Point

from covis import gis
from covis.core.errors import InputError

geopandas = pytest.importorskip("geopandas", reason="reads and writes the layers")
pytest.importorskip("pyogrio")

LAT, LON = np.array([52.5, 52.501, 52.502, np.nan]), np.array([13.4, 13.401, 13.402, np.nan])


def photos_layer():
    """Four photos, the last without a position."""
    points = [np.array([[x, y]]) for x, y in zip(LON[:3], LAT[:3], strict=True)]
    columns = {
        "image": [f"{c}.jpg" for c in "abcd"],
        "heading": np.array([10.0, 20.0, np.nan, np.nan]),
        "altitude": np.array([30.0, 31.5, np.nan, np.nan]),
        "minute": np.arange(4),
        "note": np.array(["ä", "b", "", "d"]),
    }
    return gis.Layer("photos", "Point", [*points, None], columns)


@pytest.mark.parametrize("name", ["out.gpkg", "out.geojson"])
def test_geopandas_reads_what_covis_writes(tmp_path, name):
    gis.write_layers(tmp_path / name, [photos_layer()])
    frame = geopandas.read_file(tmp_path / name)
    assert frame.crs.to_epsg() == 4326 or frame.crs.to_string() == "OGC:CRS84"
    np.testing.assert_allclose(frame.geometry.y[:3], LAT[:3], atol=1e-12)
    np.testing.assert_allclose(frame.geometry.x[:3], LON[:3], atol=1e-12)
    assert frame.geometry[3] is None or frame.geometry[3].is_empty
    assert frame["image"].tolist() == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    np.testing.assert_allclose(frame["heading"][:2], [10.0, 20.0], atol=1e-9)
    assert frame["heading"].isna().tolist() == [False, False, True, True]
    assert frame["note"][0] == "ä"
    assert frame["minute"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:25833"])
def test_covis_reads_what_geopandas_writes(tmp_path, crs):
    points = [Point(x, y) for x, y in zip(LON[:3], LAT[:3], strict=True)]
    cells = {"image": ["a", "b", "c"], "heading": [1.5, None, 3.0], "n": [1, 2, 3]}
    frame = geopandas.GeoDataFrame(cells, geometry=points, crs=4326).to_crs(crs)
    frame.to_file(tmp_path / "in.gpkg")
    read = gis.read_point_layer(tmp_path / "in.gpkg")
    np.testing.assert_allclose(read.lat, LAT[:3], atol=1e-9)
    np.testing.assert_allclose(read.lon, LON[:3], atol=1e-9)
    assert read.columns["image"].to_pylist() == ["a", "b", "c"]
    assert read.columns["heading"].null_count + np.isnan(read.columns["heading"].to_pandas()).sum() >= 1


def test_round_trips_are_exact(tmp_path):
    layer = photos_layer()
    gis.write_layers(tmp_path / "x.gpkg", [layer])
    read = gis.read_point_layer(tmp_path / "x.gpkg")
    np.testing.assert_array_equal(np.column_stack([read.lat, read.lon]), np.column_stack([LAT, LON]))
    np.testing.assert_array_equal(read.columns["altitude"].to_pandas().to_numpy(float), [30.0, 31.5, np.nan, np.nan])


def test_what_cannot_be_is_told(tmp_path):
    layer = photos_layer()
    with pytest.raises(InputError, match="must end in"):
        gis.write_layers(tmp_path / "x.shp", [layer])
    (tmp_path / "bad.gpkg").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read as a layer"):
        gis.read_point_layer(tmp_path / "bad.gpkg")
