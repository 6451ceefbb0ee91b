"""Answers as files, each read back by a library that covis does not use to write it."""

import csv
import io
import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import WORDS, Answer, Match, Place, Position, in_words
from covis.maps.outputs import FORMATS, Located, ending_of, to_csv, to_geojson, to_geopose, write
from covis.maps.outputs.exif import with_position, write_copies
from covis.maps.outputs.geopose import level_camera
from covis.poses import Poses

PLACE = Place(10.0, 20.0, 123.25, 55.7046601, 13.191007)
SOUTH_WEST = Place(-5.0, -6.0, None, -33.456789, -70.654321)


def answer(name="a <b> & \x01.jpg", place=PLACE, probability=0.893, radius_m=12.0):
    match = Match("walk/1.jpg", Path("/photos/walk/1.jpg"), SOUTH_WEST, "walk", 0.4, 0.6, 0.8)
    note = "a precision of 95 % needs a probability above 93 %"
    return Answer(Path(name), (match,), Position(place, radius_m, 0.9, 1), probability, False, note)


def located(answers, frame="EPSG:32633"):
    """The answers of a map that has no photos left."""
    return Located(answers, ImageSet.of(".", [], Poses(np.zeros((0, 2)), np.zeros(0), frame=frame)))


@pytest.fixture
def answers():
    return [
        answer(),
        answer("second.jpg", SOUTH_WEST),
        Answer(Path("bad.jpg"), (), None, None, False, "x", unusable=True),
    ]


def test_an_answer_leads_with_what_is_known():
    assert answer("p.jpg").verdict == (
        "likely at 55.704660, 13.191007 (89 %), within 12 m; not confident: a precision of 95 % needs a probability above 93 %"
    )
    assert [in_words(least) for least, _ in WORDS] == [word for _, word in WORDS]
    assert in_words(0.0) == "unlikely"
    assert [in_words(p) for p in (0.494, 0.496, 0.7496, 0.9496)] == ["unlikely", "possibly", "likely", "very likely"]
    assert "100 %" not in answer("p.jpg", probability=0.99999).verdict


def test_geojson_is_read_by_geopandas(answers, tmp_path):
    geopandas = pytest.importorskip("geopandas")
    write(tmp_path / "a.geojson", located(answers))
    frame = geopandas.read_file(tmp_path / "a.geojson")
    first = ["position", "radius", "match", "line"]
    assert frame["kind"].tolist() == first + first[:3]  # the second photo stands where its match does
    assert frame.is_valid.all()
    ring = frame[frame["kind"] == "radius"].iloc[:1]
    assert ring.is_valid.all()
    area = float(ring.to_crs(ring.estimate_utm_crs()).area.iloc[0])
    assert area == pytest.approx(math.pi * 12**2, rel=0.01)
    assert frame[frame["kind"] == "line"].geometry.iloc[0].length > 0
    assert frame["photo"].iloc[0] == "a <b> & \x01.jpg"


@pytest.mark.parametrize(("lon", "other"), [(179.9999, -179.9995), (-179.9999, 179.9995)])
def test_shapes_are_cut_at_the_antimeridian(tmp_path, lon, other):
    """Uncut, a program would draw them around the world."""
    geopandas = pytest.importorskip("geopandas")
    here = answer(place=replace(PLACE, lon=lon), radius_m=30.0)
    there = replace(here.matches[0], place=replace(SOUTH_WEST, lat=PLACE.lat, lon=other))
    write(tmp_path / "a.geojson", located([replace(here, matches=(there,))]))
    frame = geopandas.read_file(tmp_path / "a.geojson")
    assert frame.is_valid.all()
    west, _, east, _ = frame.total_bounds
    assert -180 <= west < east <= 180
    ring, last = frame.geometry.iloc[1], frame.geometry.iloc[-1]
    parts = [part for part in last.geoms if part.geom_type == "LineString"]
    assert sum(part.length for part in parts) == pytest.approx(6e-4, abs=1e-9)
    sides = ring.geoms
    assert len(sides) == len(parts) == 2
    metres = [111_320 * math.cos(math.radians(PLACE.lat)), 110_574]
    area = sum(side.area for side in sides) * math.prod(metres)
    assert area == pytest.approx(math.pi * 30**2, rel=0.02)


def test_tables_and_layers_have_as_many_digits_as_json():
    exact = answer(probability=0.10579237112649324, radius_m=12.3456789, place=replace(PLACE, lat=55.70466012345678))
    (row,) = csv.DictReader(io.StringIO(to_csv([exact])))
    feature = to_geojson([exact])["features"][0]
    assert (row["probability"], row["lat"], row["radius_m"]) == ("0.10579", "55.70466012", "12.35")
    assert feature["geometry"]["coordinates"] == [13.191007, 55.70466012]
    assert [feature["properties"][key] for key in ("probability", "radius_m")] == [0.10579, 12.35]


def test_a_name_with_a_line_end_stays_on_one_line():
    first = answer("two\nlines \x1b[31m.jpg").lines()[0]
    assert first.startswith("two\\nlines \\x1b[31m.jpg: likely at")


def test_csv_is_read_by_pandas(answers):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(to_csv(answers)))
    assert frame["lat"].tolist()[:2] == [55.7046601, -33.456789]
    assert frame["verdict"].tolist()[:2] == ["likely", "likely"]
    assert frame["lat"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize("heading", [0.0, 90.0, 123.25, 300.0])
def test_a_geopose_looks_along_the_heading(heading):
    """By scipy's rotations: the camera's x axis in east-north-up is the direction of the heading."""
    from scipy.spatial.transform import Rotation

    place = Place(0, 0, heading, 55.7, 13.2)
    expected = [math.sin(math.radians(heading)), math.cos(math.radians(heading)), 0]
    angles = level_camera(place)["angles"]
    turned = Rotation.from_euler("ZYX", [angles["yaw"], angles["pitch"], angles["roll"]], degrees=True)
    assert turned.apply([1, 0, 0]) == pytest.approx(expected, abs=1e-9)


def test_geoposes_have_the_standards_members(answers, tmp_path):
    assert write(tmp_path / "a.geopose.json", located(answers)).startswith("wrote 2 GeoPoses to")
    for pose in json.loads((tmp_path / "a.geopose.json").read_text()):
        assert set(pose["position"]) == {"lat", "lon", "h"}
        assert set(pose["angles"]) == {"yaw", "pitch", "roll"}
    assert to_geopose(answers[:1])["covis"]["heading_known"]


def jpeg(**options):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("place", [PLACE, SOUTH_WEST], ids=["north east", "south west"])
@pytest.mark.parametrize("with_exif", [False, True])
def test_exif_of_a_copy_is_read_by_piexif(place, with_exif):
    piexif = pytest.importorskip("piexif")
    before = jpeg()
    if with_exif:
        exif = Image.Exif()
        exif[0x0112], exif[0x010F] = 6, "Camera"
        before = jpeg(exif=exif.tobytes())
    after = with_position(before, answer("p.jpg", place))
    found = piexif.load(after)
    gps = found["GPS"]

    def degrees(tag):
        d, m, s = (n / over for n, over in gps[tag])
        return d + m / 60 + s / 3600

    assert degrees(2) * (1 if gps[1] == b"N" else -1) == pytest.approx(place.lat, abs=1e-7)
    assert degrees(4) * (1 if gps[3] == b"E" else -1) == pytest.approx(place.lon, abs=1e-7)
    assert gps[31][0] / gps[31][1] == 12.0
    assert (17 in gps) == (place.heading is not None)
    if with_exif:
        assert (found["0th"][0x0112], found["0th"][0x010F]) == (6, b"Camera")
    pixels = [np.asarray(Image.open(io.BytesIO(data))) for data in (before, after)]
    assert np.array_equal(*pixels)


def pictures(folder):
    """A photo in each format, some with an EXIF block or transparency."""
    pixels = np.random.default_rng(1).integers(0, 256, (30, 41, 4), np.uint8)
    rgb, rgba = Image.fromarray(pixels[..., :3]), Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Camera"
    block = exif.tobytes()
    kinds = {
        "plain.png": (rgb, {}), "alpha.png": (rgba, {"exif": block}), "lossy.webp": (rgb, {}),
        "lossless.webp": (rgba, {"lossless": True}), "camera.webp": (rgb, {"exif": block}), "layers.tif": (rgb, {}),
    }  # fmt: skip
    for name, (image, options) in kinds.items():
        image.save(folder / name, **options)
    return [folder / name for name in kinds]


def read_back(file):
    """Latitude, longitude, heading and maker by a library for the format: piexif for WebP, exifread for PNG."""
    if file.suffix == ".webp":
        tags = pytest.importorskip("piexif").load(str(file))
        gps, maker = tags["GPS"], tags["0th"].get(0x010F, b"").decode()
        lat, lon = (sum(n / over / 60**i for i, (n, over) in enumerate(gps[tag])) for tag in (2, 4))
        return lat, lon, gps[17][0] / gps[17][1], maker
    exifread = pytest.importorskip("exifread")
    with file.open("rb") as handle:
        tags = exifread.process_file(handle)
    lat, lon = exifread.utils.get_gps_coords(tags)
    return lat, lon, float(tags["GPS GPSImgDirection"].values[0]), str(tags.get("Image Make", ""))


def test_exif_of_png_and_webp_is_read_by_other_libraries(tmp_path):
    photos = pictures(tmp_path)
    assert "6 photos with GPS (1 not in JPEG" in write_copies(tmp_path / "out", [answer(str(p)) for p in photos])
    for photo in photos:
        copy = tmp_path / "out" / photo.name
        pixels = [np.asarray(Image.open(file)) for file in (photo, copy)]
        assert np.array_equal(*pixels)
        if photo.suffix == ".tif":
            assert copy.read_bytes() == photo.read_bytes()
            continue
        lat, lon, heading, maker = read_back(copy)
        assert (lat, lon, heading) == pytest.approx((PLACE.lat, PLACE.lon, PLACE.heading), abs=1e-7)
        assert maker == ("Camera" if photo.stem in ("alpha", "camera") else "")
        again = with_position(copy.read_bytes(), answer(str(photo)))
        assert again == copy.read_bytes()  # what was there is replaced, not repeated


def test_xmp_beside_other_formats_is_read_by_exiftool(tmp_path):
    exiftool = shutil.which("exiftool") or pytest.skip("exiftool is not installed")
    photos = pictures(tmp_path)[-1:]
    write_copies(tmp_path / "out", [answer(str(p), SOUTH_WEST) for p in photos])
    command = [exiftool, "-json", "-n", str(tmp_path / "out" / "layers.tif.xmp")]
    [tags] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (tags["GPSLatitude"], tags["GPSLongitude"]) == pytest.approx((SOUTH_WEST.lat, SOUTH_WEST.lon), abs=1e-7)
    assert tags["GPSHPositioningError"] == 12
    assert "GPSImgDirection" not in tags
    command = [exiftool, "-validate", "-warning", "-a", str(tmp_path / "out" / "layers.tif.xmp")]
    assert "OK" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_an_earlier_fix_said_of_itself_does_not_stay():
    piexif = pytest.importorskip("piexif")
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: (1.0, 2.0, 3.0), 6: 37.0, 11: 10.0, 17: 5.0, 31: 3.0}
    after = with_position(jpeg(exif=exif.tobytes()), answer("p.jpg", SOUTH_WEST, radius_m=None))
    gps = piexif.load(after)["GPS"]
    assert gps[6] == (37, 1)  # the height was not asked for
    assert not {11, 17, 31} & set(gps)


def test_covis_reads_the_position_it_wrote_and_leaves_the_photo_alone(tmp_path, capsys):
    from covis.reading.exif import read_photo

    photo, other = tmp_path / "p.jpg", tmp_path / "more" / "p.jpg"
    other.parent.mkdir()
    for file in (photo, other):
        file.write_bytes(jpeg())
    lost = Answer(tmp_path / "q.jpg", (), None, None, False, "", unusable=True)
    before = photo.read_bytes()
    assert "2 photos" in write_copies(tmp_path / "out", [*(answer(str(file)) for file in (photo, other)), lost])
    assert f"1 photo left out because no position could be written, such as {lost.photo}" in capsys.readouterr().err
    assert photo.read_bytes() == before
    for name in ("p.jpg", "p-2.jpg"):
        found = read_photo(tmp_path / "out" / name)
        assert (found.lat, found.lon) == pytest.approx((PLACE.lat, PLACE.lon), abs=1e-7)
        assert (found.heading, found.reference) == (123.25, "true")


def test_copies_never_overwrite_a_photo(tmp_path):
    """Neither the original, nor another photo of the same name; a copy of before is replaced."""
    photo, other = tmp_path / "new" / "p.jpg", tmp_path / "p.jpg"
    photo.parent.mkdir()
    for file in (photo, other):
        file.write_bytes(jpeg())
    link = tmp_path / "links" / "p.jpg"
    link.parent.mkdir()
    link.symlink_to(photo)
    before = photo.read_bytes()
    for file, folder in ((photo, photo.parent), (link, photo.parent), (link, link.parent)):
        with pytest.raises(InputError, match="holds the original"):
            write_copies(folder, [answer(str(file))])
    with pytest.raises(InputError, match=r"p\.jpg already exists and was not written by covis"):
        write_copies(tmp_path, [answer(str(photo))])
    assert photo.read_bytes() == other.read_bytes() == before
    for _ in range(2):
        assert "1 photo with GPS" in write_copies(tmp_path / "out", [answer(str(photo))])


def test_numbered_copies_do_not_take_another_photos_name(tmp_path):
    files = [tmp_path / name for name in ("a/p.jpg", "b/p.jpg", "a/p-2.jpg", "c/p.jpg")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(jpeg())
    assert "4 photos" in write_copies(tmp_path / "out", [answer(str(file)) for file in files])
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["p-2.jpg", "p-3.jpg", "p-4.jpg", "p.jpg"]


@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_each_ending_is_written_whole(answers, tmp_path, ending):
    for a in answers[:2]:
        (tmp_path / a.photo).write_bytes(jpeg())
    answers = [replace(a, photo=tmp_path / a.photo) for a in answers]
    target = tmp_path / "out" / ("copies" if ending == "/" else f"Found{ending.upper()}")
    assert ending_of(target) == ending
    assert str(target) in write(target, located(answers))
    assert target.exists()


def test_an_unknown_ending_and_a_map_without_a_place_on_earth_are_refused(answers, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.csv"):
        write(tmp_path / "a.kml", located(answers))
    with pytest.raises(InputError, match="without a place on Earth"):
        write(tmp_path / "a.geojson", located(answers, frame=""))
    write(tmp_path / "a.json", located(answers, frame=""))
    assert [a["photo"] for a in json.loads((tmp_path / "a.json").read_text())] == [
        a.to_dict()["photo"] for a in answers
    ]
