"""A user's own tables: CSV, Parquet and GeoJSON, and an error with the row for each kind of slip."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from covis.core.errors import InputError
from covis.poses import true_headings
from covis.reading.columns import read_columns
from covis.reading.table import image_files, read_table, read_tables


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_metres(tmp_path):
    table = write(tmp_path / "a.csv", "image,easting,northing,heading,group\na/1.jpg,1.5,2,90,x\nb.jpg,3,4,,y\n")
    images = read_table(table)
    assert images.path(0) == tmp_path / "a/1.jpg"
    assert images.poses.xy.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert images.poses.heading[0] == 90
    assert np.isnan(images.poses.heading[1])
    assert [images.group_names[g] for g in images.group] == ["x", "y"]


def test_degrees_become_metres_around_their_middle(tmp_path):
    table = write(tmp_path / "a.csv", "image,lat,lon\na.jpg,55.0,12.0\nb.jpg,55.001,12.0\n")
    images = read_table(table)
    assert np.hypot(*np.diff(images.poses.xy, axis=0)[0]) == pytest.approx(111.3, abs=0.2)
    assert images.poses.latlon() == pytest.approx(np.array([[55.0, 12.0], [55.001, 12.0]]))


def test_headings_beside_degrees_are_turned_to_the_frames_north(tmp_path):
    table = write(tmp_path / "a.csv", "image,lat,lon,heading\na.jpg,60,10,90\nb.jpg,60,12,90\n")
    heading = read_table(table).poses.heading
    assert heading[0] - heading[1] == pytest.approx(2 * np.sin(np.radians(60)), abs=0.01)


def test_the_antimeridian_and_zone_borders_are_no_borders(tmp_path):
    table = write(tmp_path / "a.csv", "image,lat,lon\na.jpg,-17,179.9999\nb.jpg,-17,-179.9999\n")
    assert np.hypot(*np.diff(read_table(table).poses.xy, axis=0)[0]) == pytest.approx(21.3, abs=0.2)


def test_two_tables_share_one_frame(tmp_path):
    a = write(tmp_path / "a.csv", "image,lat,lon\na.jpg,48.0,11.0\n")
    b = write(tmp_path / "b.csv", "image,lat,lon\nb.jpg,48.001,11.0\n")
    first, second = read_tables([a, b])
    assert first.poses.frame == second.poses.frame
    assert np.hypot(*(first.poses.xy[0] - second.poses.xy[0])) == pytest.approx(111.2, abs=0.2)
    assert read_table(b, frame=first.poses.frame).poses.xy.tolist() == second.poses.xy.tolist()


def test_metres_and_degrees_cannot_be_matched(tmp_path):
    a = write(tmp_path / "a.csv", "image,lat,lon\na.jpg,48.0,11.0\n")
    b = write(tmp_path / "b.csv", "image,easting,northing\nb.jpg,1,1\n")
    with pytest.raises(InputError, match=r"a\.csv has lat/lon and .*b\.csv has only metres"):
        read_tables([a, b])


def test_parquet_equals_csv(tmp_path):
    csv = read_table(write(tmp_path / "a.csv", "image,lat,lon,heading,group,note\na.jpg,1,2,3,g,7\nb.jpg,1,2.1,,h,8\n"))
    columns = {
        "image": ["a.jpg", "b.jpg"],
        "lat": [1, 1],
        "lon": [2.0, 2.1],
        "heading": [3.0, None],
        "group": ["g", "h"],
        "note": [7, 8],
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    parquet = read_table(tmp_path / "a.parquet")
    assert parquet.fingerprint() == csv.fingerprint()
    assert parquet.columns["note"].tolist() == csv.columns["note"].tolist() == [7, 8]


def test_geojson(tmp_path):
    points = [
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": [11.0 + i / 1000, 48.0]},
         "properties": {"image": f"{i}.jpg", "heading": 10 * i, "group": "walk"}}
        for i in range(3)
    ]  # fmt: skip
    path = write(tmp_path / "a.geojson", json.dumps({"type": "FeatureCollection", "features": points}))
    images = read_table(path)
    assert images.group_names == ("walk",)
    assert images.poses.latlon()[1] == pytest.approx([48.0, 11.001])
    points[1]["geometry"] = {"type": "LineString", "coordinates": [[11, 48], [12, 48]]}
    write(path, json.dumps({"type": "FeatureCollection", "features": points}))
    with pytest.raises(InputError, match="no points"):
        read_table(path)


def test_further_columns_travel_along(tmp_path):
    images = read_table(write(tmp_path / "a.csv", "image,easting,northing,sunny,speed,who\na.jpg,1,2,True,1.5,me\n"))
    assert images.columns["sunny"].tolist() == [True]
    assert images.columns["speed"].tolist() == [1.5]
    assert images.columns["who"].tolist() == ["me"]


def test_crlf_byte_order_mark_quotes_and_odd_names(tmp_path):
    rows = b'\xef\xbb\xbfimage,easting,northing\r\n"a, b@1@.jpg",1,2\r\ncaf\xe9.jpg,3,4\r\n"say ""hi"".jpg",5,6\r\n'
    images = read_table(write(tmp_path / "a.csv", rows))
    assert images.names.tolist() == [b"a, b@1@.jpg", b"caf\xe9.jpg", b'say "hi".jpg']
    assert images.path(1) == tmp_path / os.fsdecode(b"caf\xe9.jpg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,lat,lon\na.jpg,1,2\nb.jpg,1\n", r"row 3 has 2 cells, the header has 3"),
        ("image,lat,lon\na.jpg,1,2\nb.jpg,1,2,3\n", r"row 3 has 4 cells, the header has 3"),
        ("image,lat,lon\na.jpg,1,2\nb.jpg,x,2\n", r"row 3, column lat: 'x' is not a number"),
        ("image,lat,lon\na.jpg,91,2\n", r"row 2 has lat 91.0, lon 2.0, which is not a place on Earth"),
        ("image,lat,lon\na.jpg,1,2\nb.jpg,1,\n", r"row 3 has half of lat and lon"),
        ("image,easting,northing\na.jpg,1,inf\n", r"row 2 has half of easting and northing or an infinite"),
        ("image,easting,northing,heading\na.jpg,1,2,inf\n", r"row 2 has an infinite heading"),
        ("image,lat,lon\n,1,2\n", r"row 2 has no image name"),
        ("filename,latitude,lng\na.jpg,north,2\n", r"row 2, column latitude: 'north' is not a number or angle"),
        ("image,x,y\na.jpg,1,2\n", r"unknown column 'x'; did you mean 'easting'"),
        ("image,lat,lon,haeding\na.jpg,1,2,3\n", r"unknown column 'haeding'; did you mean 'heading'"),
        ("image,lat,lon,lat\na.jpg,1,2,3\n", r"column 'lat' is there twice"),
        ("image;lat;lon\na.jpg;1;2\n", r"has the columns image;lat;lon; expected image,lat,lon"),
        ("image,easting\na.jpg,1\n", r"has the columns image, easting; expected"),
        ("image,lat,lon\n", r"a header and no rows"),
        ("", r"has the columns \(none\)"),
    ],
)  # fmt: skip
def test_slips_are_named_with_their_row(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / "a.csv", text))


FOREIGN = {
    "exiftool": """SourceFile,FileName,GPSLatitude,GPSLongitude,GPSImgDirection,GPSAltitude,ImageHeight
a.jpg,a.jpg,"33 deg 51' 25.20"" S","151 deg 12' 36.00"" E",90.5,12 m Above Sea Level,3024
""",
    "exiftool -n": "SourceFile,GPSLatitude,GPSLongitude,GPSImgDirection,GPSAltitude\na.jpg,-33.857,151.21,90.5,12\n",
    "exiftool -G": """SourceFile,EXIF:GPSLatitude,EXIF:GPSLatitudeRef,EXIF:GPSLongitude,EXIF:GPSImgDirection,EXIF:GPSAltitude
a.jpg,33.857,South,151.21,90.5,12
""",
    "QGIS": "photo,filename,altitude,direction,longitude,latitude\na.jpg,a,12,90.5,151.21,-33.857\n",
    "phone": "filename,latitude,longitude,compass,altitude\na.jpg,-33.857,151.21,90.5,12\n",
    "drone": "File Name,Latitude,lng,GimbalYawDegree,AbsoluteAltitude\na.jpg,-33.857,151.21,90.5,12\n",
}


@pytest.mark.parametrize("tool", FOREIGN)
def test_tables_of_other_tools_are_read_as_they_are(tmp_path, tool, capsys):
    file = write(tmp_path / "a.csv", FOREIGN[tool])
    images = read_table(file)
    assert images.names.tolist() == [b"a.jpg"]
    np.testing.assert_allclose(images.poses.latlon(), [[-33.857, 151.21]], atol=1e-9)
    np.testing.assert_allclose(true_headings(images.poses), 90.5, atol=1e-6)
    assert images.poses.z.tolist() == [12.0]
    assert "is read as heading" in capsys.readouterr().err
    assert image_files(file) == [tmp_path / "a.jpg"]


def test_a_missing_table_a_folder_and_a_broken_parquet(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder, not a table"):
        read_table(tmp_path)
    with pytest.raises(InputError, match="not a Parquet file"):
        read_table(write(tmp_path / "a.parquet", "PAR0"))


def test_zero_zero_is_unknown_with_one_warning(tmp_path, capsys):
    file = write(tmp_path / "a.csv", "image,lat,lon\na.jpg,0,0\nb.jpg,1,2\nc.jpg,,\n")
    for images in (read_table(file), *read_tables([file])):
        assert images.poses.known.tolist() == [False, True, False]
    assert capsys.readouterr().err.count("warning: ") == 2  # one for each reading


def test_headings_minus_one_over_360_and_stuck(tmp_path, capsys):
    images = read_table(write(tmp_path / "a.csv", "image,easting,northing,heading\na,1,1,-1\nb,1,1,370\nc,1,1,-90\n"))
    assert np.isnan(images.poses.heading[0])
    assert images.poses.heading[1:].tolist() == [10.0, 270.0]
    assert capsys.readouterr().err == ""
    read_table(write(tmp_path / "b.csv", "image,easting,northing,heading\na,1,1,7\nb,1,1,7\nc,1,1,7\n"))
    assert "every known heading is 7°" in capsys.readouterr().err


def test_names_of_any_bytes_and_width_come_from_parquet(tmp_path):
    cells = [b"", b"abc", b"d\xff", b"x" * 70000]
    pyarrow.parquet.write_table(pa.table({"image": pa.array(cells, pa.binary())}), tmp_path / "a.parquet")
    assert read_columns(tmp_path / "a.parquet", {"image": "name"})["image"].tolist() == cells


def test_a_table_wider_than_a_local_frame_needs_a_frame(tmp_path, capsys):
    from covis.poses import parse_frame
    from covis.reading.sources import open_images

    table = tmp_path / "t.csv"
    table.write_text("image,lat,lon\na.jpg,55.7,13.2\nb.jpg,55.7003,13.2\nc.jpg,40.7,-74.0\n")
    with pytest.raises(InputError, match=r"--frame EPSG:CODE"):
        open_images(table)
    images = open_images(table, frame=parse_frame("EPSG:3857"))
    assert images.poses.frame == "EPSG:3857"
    assert "off by up to 77 %" in capsys.readouterr().err  # 1 / cos(55.7°)
    np.testing.assert_allclose(images.poses.latlon(), [[55.7, 13.2], [55.7003, 13.2], [40.7, -74.0]], atol=1e-9)
    with pytest.raises(InputError, match="more than one local frame"):
        open_images(table, frame=parse_frame("55.7,13.2"))
    table.write_text("image,easting,northing\na.jpg,500000,6200000\n")
    assert open_images(table, frame=parse_frame("EPSG:32633")).poses.latlon().round(1).tolist() == [[55.9, 15.0]]
    for wrong, cause in (
        ("EPSG:4326", "not in metres"),
        ("x", "not a frame"),
        ("95,0", "not a place"),
        ("1.2.3,4", "not a place"),
    ):
        with pytest.raises(InputError, match=cause):
            parse_frame(wrong)
