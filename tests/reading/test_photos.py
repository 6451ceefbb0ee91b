"""One's own photos: EXIF as cameras really write it, tracks beside it, and nothing guessed."""

import csv
import json
import os

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from covis.core.errors import InputError
from covis.reading.exif import read_photo
from covis.reading.photos import import_photos
from covis.reading.sources import open_images
from covis.reading.table import read_table, write_images

LUND = {1: "N", 2: (55.0, 41.0, 53.4), 3: "E", 4: (13.0, 11.0, 43.4)}


def photo(path, gps=None, main=None, exif=None, xmp=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8))
    block = image.getexif()
    for tag, value in (main or {}).items():
        block[tag] = value
    for ifd, values in ((0x8825, gps), (0x8769, exif)):
        for tag, value in (values or {}).items():
            block.get_ifd(ifd)[tag] = value
    image.save(path, exif=block, **({"xmp": xmp} if xmp else {}))
    return path


def test_position_heading_and_height(tmp_path):
    path = photo(tmp_path / "a.jpg", {**LUND, 5: b"\x01", 6: 12.5, 16: "T", 17: 271.25}, {0x0112: 6})
    found = read_photo(path)
    assert (found.lat, found.lon) == pytest.approx((55.6981667, 13.1953889), abs=1e-7)
    assert (found.heading, found.reference, found.altitude, found.orientation) == (271.25, "true", -12.5, 6)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_names_of_any_bytes_make_a_table_that_can_be_read(tmp_path, ending):
    name = os.fsdecode(b"a\xff/b\nc\xfe.jpg")
    photo(tmp_path / "photos" / name, LUND)
    write_images(import_photos(tmp_path / "photos").images(), tmp_path / f"set.{ending}")
    read = read_table(tmp_path / f"set.{ending}")
    assert (read.name(0), read.group_names) == (f"photos/{name}", ("a\\xff",))


def test_south_and_west_are_negative(tmp_path):
    found = read_photo(photo(tmp_path / "a.jpg", {**LUND, 1: "S", 3: "W"}))
    assert found.lat == pytest.approx(-55.6981667)
    assert found.lon == pytest.approx(-13.1953889)


@pytest.mark.parametrize(
    "gps",
    [
        {},
        {**LUND, 2: (IFDRational(0, 0), IFDRational(0, 0), IFDRational(0, 0))},
        {**LUND, 2: (0.0, 0.0, 0.0), 4: (0.0, 0.0, 0.0)},
        {**LUND, 2: (91.0, 0.0, 0.0)},
        {**LUND, 4: (200.0, 0.0, 0.0)},
        {k: v for k, v in LUND.items() if k != 1},
        {k: v for k, v in LUND.items() if k != 3},
        {k: v for k, v in LUND.items() if k != 4},
        {**LUND, 1: "X"},
    ],
    ids=["none", "0/0", "0,0", "lat 91", "lon 200", "no N/S", "no E/W", "no lon", "wrong letter"],
)
def test_a_position_that_makes_no_sense_is_unknown(tmp_path, gps):
    found = read_photo(photo(tmp_path / "a.jpg", gps))
    assert np.isnan(found.lat)
    assert np.isnan(found.lon)


@pytest.mark.parametrize(
    ("direction", "reference", "expected"),
    [(370.0, "T", 10.0), (360.0, "T", 0.0), (12.0, "M", 12.0), (IFDRational(0, 0), "T", None), (None, "T", None)],
)
def test_headings(tmp_path, direction, reference, expected):
    gps = {**LUND, 16: reference} | ({} if direction is None else {17: direction})
    found = read_photo(photo(tmp_path / "a.jpg", gps))
    if expected is None:
        assert np.isnan(found.heading)
        assert found.reference == ""
    else:
        assert (found.heading, found.reference) == (expected, {"T": "true", "M": "magnetic"}[reference])


def test_the_mapillary_apps_compass(tmp_path):
    text = json.dumps({"MAPCompassHeading": {"TrueHeading": 179.2, "MagneticHeading": 85.9}})
    found = read_photo(photo(tmp_path / "a.jpg", LUND, {0x010E: text}))
    assert (found.heading, found.reference) == (179.2, "true")
    assert np.isnan(read_photo(photo(tmp_path / "b.jpg", LUND, {0x010E: "a nice day"})).heading)


def test_a_folder_becomes_a_table_that_reads_back(tmp_path):
    for i in range(3):
        photo(tmp_path / "photos" / "walk 1" / f"{i}.jpg", {**LUND, 2: (55.0, 41.0, 53.4 + i), 16: "T", 17: 90.0 + i})
    photo(tmp_path / "photos" / "top.jpg", LUND, {0x010F: "Canon", 0x0110: "EOS 5D"})
    imported = import_photos(tmp_path / "photos")
    write_images(imported.images(), tmp_path / "set.csv")
    images = read_table(tmp_path / "set.csv")
    assert [images.name(i) for i in range(4)] == [
        f"photos/{n}" for n in ("top.jpg", *(f"walk 1/{i}.jpg" for i in range(3)))
    ]
    assert all(images.path(i).is_file() for i in range(4))
    assert sorted(images.group_names) == ["", "walk 1"]
    assert images.columns["camera"].tolist() == ["Canon EOS 5D", "", "", ""]
    assert np.abs(images.poses.xy - imported.images().poses.xy).max() < 0.002
    assert images.poses.heading[1:] == pytest.approx([90.0, 91.0, 92.0], abs=0.01)
    steps = np.hypot(*np.diff(images.poses.xy[1:], axis=0).T)
    assert steps == pytest.approx([30.9, 30.9], abs=0.1)
    with (tmp_path / "set.csv").open() as handle:
        row = next(csv.DictReader(handle))
    assert row["heading"] == ""
    assert float(row["lat"]) == pytest.approx(55.6981667)


def test_parquet_equals_csv(tmp_path):
    photo(tmp_path / "photos" / "a.jpg", {**LUND, 17: 10.0, 16: "T"})
    photo(tmp_path / "photos" / "b.jpg")
    imported = import_photos(tmp_path / "photos")
    for name in ("set.csv", "set.parquet"):
        write_images(imported.images(), tmp_path / name)
    first, second = read_table(tmp_path / "set.csv"), read_table(tmp_path / "set.parquet")
    assert first.fingerprint() == second.fingerprint()
    assert first.poses.known.tolist() == [True, False]


def test_heading_warnings(tmp_path, capsys):
    for i in range(3):
        photo(tmp_path / f"{i}.jpg", {**LUND, 16: "M", 17: 45.0})
    import_photos(tmp_path)
    said = capsys.readouterr().err
    assert "3 headings are relative to magnetic north" in said
    assert "every known heading is 45°" in said


def test_bad_files_are_rejected_and_panoramas_left_out(tmp_path):
    for i in range(40):
        photo(tmp_path / f"{i:02d}.jpg", LUND)
    (tmp_path / "00.jpg").write_bytes(b"")
    (tmp_path / "01.jpg").write_text("text")
    pano = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" GPano:ProjectionType="equirectangular"/>'
    photo(tmp_path / "02.jpg", LUND, xmp=pano)
    imported = import_photos(tmp_path)
    assert [(r.image, r.reason) for r in imported.rejects] == [
        ("00.jpg", "empty"), ("01.jpg", "not-an-image"), ("02.jpg", "panorama"),
    ]  # fmt: skip
    assert len(imported.names) == 37


def test_more_than_five_percent_bad_stops(tmp_path):
    for i in range(20):
        photo(tmp_path / f"{i:02d}.jpg", LUND)
    for i in range(2):
        (tmp_path / f"{i:02d}.jpg").write_bytes(b"")
    with pytest.raises(InputError, match="2 of 20 images"):
        import_photos(tmp_path)


def test_corrupt_exif_keeps_the_photo(tmp_path, capsys):
    good = photo(tmp_path / "a.jpg", LUND)
    data = good.read_bytes()
    at = data.index(b"Exif\0\0") + 10
    (tmp_path / "b.jpg").write_bytes(data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :])
    imported = import_photos(tmp_path)
    assert imported.names == ["a.jpg", "b.jpg"]
    assert np.isnan(imported.column("lat")).tolist() == [False, True]
    assert "1 photos have a damaged EXIF block" in capsys.readouterr().err


def test_an_empty_folder_and_one_without_positions(tmp_path):
    with pytest.raises(InputError, match=r"has no photos; expected PHOTOS/walk-1/"):
        import_photos(tmp_path)
    photo(tmp_path / "a.jpg")
    with pytest.raises(InputError, match=r"no photo has a position; expected PHOTOS/walk-1/"):
        import_photos(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        import_photos(tmp_path / "a.jpg")
    assert len(open_images(tmp_path)) == 1


GPX = """<?xml version="1.0"?><gpx xmlns="http://www.topografix.com/GPX/1/1" version="1.1"><trk>
<trkseg><trkpt lat="55.0" lon="13.0"><ele>10</ele><time>2024-05-01T10:00:00Z</time></trkpt>
<trkpt lat="55.001" lon="13.002"><ele>20</ele><time>2024-05-01T10:00:10Z</time></trkpt></trkseg>
<trkseg><trkpt lat="55.1" lon="13.1"><time>2024-05-01T10:10:00Z</time></trkpt>
<trkpt lat="55.2" lon="13.2"><time>2024-05-01T10:15:00Z</time></trkpt></trkseg></trk></gpx>"""


def timed(path, clock, offset="+02:00"):
    return photo(path, exif={0x9003: f"2024:05:01 {clock}"} | ({0x9011: offset} if offset else {}))


def test_a_gpx_track_places_photos_by_time(tmp_path):
    for name, clock in (("a", "12:00:05"), ("b", "12:00:10"), ("c", "12:05:00"), ("d", "12:12:00"), ("e", "11:59:59")):
        timed(tmp_path / f"{name}.jpg", clock)
    (tmp_path / "walk.gpx").write_text(GPX)
    imported = import_photos(tmp_path)
    assert imported.column("lat")[:2] == pytest.approx([55.0005, 55.001])
    assert imported.column("lon")[:2] == pytest.approx([13.001, 13.002])
    assert imported.column("altitude")[:2] == pytest.approx([15.0, 20.0])
    assert np.isnan(imported.column("lat")[2:]).all()  # between segments, in a gap of minutes, and before the track
    assert np.isnan(imported.column("heading")).all()


def test_a_clock_without_a_zone_needs_the_offset(tmp_path):
    timed(tmp_path / "a.jpg", "12:00:05", offset=None)
    track = tmp_path / "walk.gpx"
    track.write_text(GPX)
    with pytest.raises(InputError, match=r"clocks have no time zone \(give --utc-offset"):
        import_photos(tmp_path)
    assert import_photos(tmp_path, track, utc_offset_s=7200).column("lat")[0] == pytest.approx(55.0005)
    images = open_images(tmp_path, track, utc_offset="+02:00", positions=True)
    assert images.poses.latlon()[0, 0] == pytest.approx(55.0005)


def test_a_table_as_track(tmp_path):
    timed(tmp_path / "a.jpg", "12:00:05")
    rows = "2024-05-01T10:00:00Z,55.0,13.0\n2024-05-01T12:00:10+02:00,55.001,13.002\n"
    (tmp_path / "walk.csv").write_text(f"time,lat,lon\n{rows}")
    assert import_photos(tmp_path).column("lat")[0] == pytest.approx(55.0005)


def test_a_table_by_name_counts_before_exif(tmp_path):
    photo(tmp_path / "a.jpg", {**LUND, 16: "M", 17: 5.0})
    photo(tmp_path / "b.jpg")
    (tmp_path / "where.csv").write_text("image,lat,lon,heading,group\nb.jpg,55.7,13.2,,x\na.jpg,,,99,\n")
    imported = import_photos(tmp_path)
    assert imported.column("lat") == pytest.approx([55.6981667, 55.7])
    assert imported.column("heading")[0] == pytest.approx(99.0)
    assert np.isnan(imported.column("heading")[1])
    assert imported.column("reference").tolist() == ["true", ""]
    assert imported.groups == ["", "x"]


def test_questions_about_tracks_are_errors(tmp_path):
    photo(tmp_path / "a.jpg")
    (tmp_path / "walk.gpx").write_text("<gpx>")
    with pytest.raises(InputError, match="not a GPX file"):
        import_photos(tmp_path)
    (tmp_path / "where.csv").write_text("image,lat,lon\nz.jpg,1,2\n")
    with pytest.raises(InputError, match=r"2 files with positions \(walk.gpx, where.csv\); choose one with --track"):
        import_photos(tmp_path)
    with pytest.raises(InputError, match="names none of the photos"):
        import_photos(tmp_path, tmp_path / "where.csv")
    (tmp_path / "naive.csv").write_text("time,lat,lon\n2024-05-01T10:00:00,1,2\n")
    with pytest.raises(InputError, match="has no time zone"):
        import_photos(tmp_path, tmp_path / "naive.csv")


def test_zone_borders_and_the_antimeridian(tmp_path):
    for name, lon, letter in (("a", 179.9999, "E"), ("b", 179.9999, "W")):
        photo(tmp_path / f"{name}.jpg", {1: "S", 2: (17.0, 0.0, 0.0), 3: letter, 4: (lon, 0.0, 0.0)})
    assert np.hypot(*np.diff(import_photos(tmp_path).images().poses.xy, axis=0)[0]) == pytest.approx(21.3, abs=0.2)


def test_real_photos(shared_data):
    imported = import_photos(shared_data / "photos_exif" / "lund")
    assert len(imported.names) == 29
    assert not np.isnan(imported.column("lat")).any()
    assert imported.images().poses.latlon()[:, 0] == pytest.approx(imported.column("lat"))
    assert np.abs(imported.images().poses.xy).max() < 500
