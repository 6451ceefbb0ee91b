"""Positions in files: only the position changes, at any moment of a kill every file is whole, and all of it comes back."""

import io
import multiprocessing
import os
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from libraries import CAMERA, START, exif, picture, save
from PIL import Image

from covis.core.errors import InputError
from covis.geotagging.exif import _exif_segment, with_position
from covis.geotagging.library import Library, distance_m, scan
from covis.geotagging.sidecars import merged, read_position
from covis.geotagging.suggestions import Suggestion
from covis.geotagging.tiff import directory
from covis.geotagging.writing import JOURNAL, Journal, known_guesses, write_positions
from covis.maps.answers import Answer, Place, Position
from covis.reading.exif import photo_of, read_photo
from stepped import die_before

HERE = (-33.456789, 151.654321)

SIDECAR = """<?xpacket begin='\ufeff' id='W5M0MpCehiHzreSzNTczkc9d'?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <!-- a comment that stays -->
  <rdf:Description rdf:about="uuid:7" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:exif="http://ns.adobe.com/exif/1.0/"
    xmlns:darktable="http://darktable.sf.net/" xmp:Rating="4" exif:GPSVersionID="2.2.0.0" darktable:history_end="2">
   <dc:subject xmlns:dc="http://purl.org/dc/elements/1.1/"><rdf:Bag><rdf:li>Ümläut &amp; co</rdf:li></rdf:Bag></dc:subject>
   <exif:GPSMapDatum>WGS-84</exif:GPSMapDatum>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end='w'?>"""


def answer(path="a.jpg", place=HERE, probability=0.93):
    return Answer(Path(path), (), Position(Place(0, 0, None, *place), 20.0, 0.9, 2), probability, True)


def suggestions(root):
    library = Library(root, [])
    scan(library, root.parent / "library.json")
    photos = known_guesses(library.photos, root)
    return [Suggestion(photo, answer(photo.file), "time") for photo in photos if photo.wanted]


@pytest.fixture
def root(tmp_path):
    """Photos with a maker's note, a thumbnail, comments; and formats that have no room for EXIF here."""
    lib = tmp_path / "lib"
    save(lib / "plain.jpg", picture(1))
    save(lib / "camera.jpg", picture(2), exif(START, CAMERA))
    with (lib / "camera.jpg").open("r+b") as handle:  # a thumbnail behind it, as cameras write it
        content = with_thumbnail(handle.read())
        handle.seek(0)
        handle.write(content)
    save(lib / "page.png", picture(3), exif(START, CAMERA))
    (lib / "page.png.xmp").write_text(SIDECAR, encoding="utf-8")
    for i, file in enumerate(sorted(lib.iterdir())):
        os.utime(file, ns=(10**18 + i, 10**18 + 7 * i))
    return lib


def with_thumbnail(jpeg):
    """The EXIF block's second directory, with a small JPEG, as cameras have it."""
    small = io.BytesIO()
    picture(2).resize((16, 16)).save(small, "JPEG")
    start, stop = _exif_segment(jpeg)
    block = bytearray(jpeg[start + 10 : stop])
    order = "<" if block[:2] == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", block, 4)
    count = len(directory(bytes(block), first, order).entries)
    block += b"\0" * (len(block) % 2)
    struct.pack_into(f"{order}I", block, first + 2 + 12 * count, len(block))
    at = len(block) + 2 + 24 + 4
    block += (
        struct.pack(f"{order}HHHIIHHIII", 2, 0x0201, 4, 1, at, 0x0202, 4, 1, len(small.getvalue()), 0)
        + small.getvalue()
    )
    segment = b"Exif\0\0" + bytes(block)
    return jpeg[:start] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[stop:]


def state(root):
    return {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in sorted(root.iterdir()) if f.name != JOURNAL}


def test_a_position_changes_nothing_else_in_a_jpeg(root):
    before = (root / "camera.jpg").read_bytes()
    after = with_position(before, answer())
    photo = photo_of(after)
    assert distance_m((photo.lat, photo.lon), HERE) < 0.01
    assert "covis" in photo.method
    old, new = (Image.open(io.BytesIO(part)).getexif() for part in (before, after))
    assert old.get_ifd(0x8769) == new.get_ifd(0x8769)  # with the maker's note
    assert {t: v for t, v in old.items() if t != 0x8825} == {t: v for t, v in new.items() if t != 0x8825}
    assert old.get_ifd(1) == new.get_ifd(1)  # the thumbnail's place
    start, stop = _exif_segment(before)
    assert after[: start + 2] == before[: start + 2]
    assert after[start + 4 : start + 14] == before[start + 4 : start + 14]
    assert after[start + 18 : stop] == before[start + 18 : stop]  # all but the length and the first directory's offset
    assert after.endswith(before[stop:])
    assert with_position(after, answer()) == after


@pytest.mark.parametrize("name", ["plain.jpg", "camera.jpg"])
def test_exif_is_read_by_piexif(root, name):
    piexif = pytest.importorskip("piexif")
    gps = piexif.load(with_position((root / name).read_bytes(), answer()))["GPS"]
    degrees = [sum(n / over / 60**i for i, (n, over) in enumerate(gps[tag])) for tag in (2, 4)]
    assert (degrees, gps[1], gps[3]) == (pytest.approx(np.abs(HERE), abs=1e-7), b"S", b"E")
    assert gps[31][0] / gps[31][1] == 20.0


def test_what_an_earlier_fix_said_of_itself_does_not_stay(root):
    piexif = pytest.importorskip("piexif")
    earlier = Image.Exif()
    earlier[0x8825] = {1: "N", 2: (1.0, 2.0, 3.0), 6: 37.0, 11: 10.0, 17: 5.0, 31: 3.0}
    save(root / "fixed.jpg", picture(1), earlier)
    unsure = replace(answer(), position=Position(Place(0, 0, None, *HERE), None, 0.9, 1))
    gps = piexif.load(with_position((root / "fixed.jpg").read_bytes(), unsure))["GPS"]
    assert gps[6] == (37, 1)  # the height was not asked for
    assert not {11, 17, 31} & set(gps)


def test_exiftool_sees_only_the_position(root, tmp_path):
    if shutil.which("exiftool") is None:
        pytest.skip("needs exiftool (libimage-exiftool-perl)")

    def tags(file):
        told = subprocess.run(
            ["exiftool", "-a", "-G1", "-s", "-ee", "-validate", str(file)], capture_output=True, text=True, check=True
        )
        hidden = ("[System]", "[GPS]", "[Composite]", "[ExifTool]")
        lines = [line for line in told.stdout.splitlines() if not line.startswith(hidden)]
        return [line for line in lines if "ThumbnailOffset" not in line]

    (tmp_path / "after.jpg").write_bytes(with_position((root / "camera.jpg").read_bytes(), answer()))
    assert tags(tmp_path / "after.jpg") == tags(root / "camera.jpg")


def test_positions_go_into_jpegs_and_beside_all_else_and_undo_takes_them_back(root):
    before = state(root)
    written = write_positions(suggestions(root), "exif", root)
    assert sorted(written.files) == ["camera.jpg", "page.png.xmp", "plain.jpg"]
    after = state(root)
    assert {name: mtime for name, (_, mtime) in after.items()} == {name: mtime for name, (_, mtime) in before.items()}
    assert after["page.png"] == before["page.png"]
    for file in (root / "camera.jpg", root / "plain.jpg"):
        photo = read_photo(file)
        assert distance_m((photo.lat, photo.lon), HERE) < 0.01
    assert suggestions(root) == []
    assert sorted(Journal(root).undo().files) == sorted(written.files)
    assert state(root) == before
    assert not (root / JOURNAL).exists()
    assert Journal(root).undo().files == []


def test_sidecars_are_made_and_merged_without_losing_a_field(root):
    before = state(root)
    written = write_positions(suggestions(root), "xmp", root)
    assert sorted(written.files) == ["camera.jpg.xmp", "page.png.xmp", "plain.jpg.xmp"]
    for name in written.files:
        lat, lon, method = read_position(root / name)
        assert distance_m((lat, lon), HERE) < 0.01
        assert "covis" in method
    text = (root / "page.png.xmp").read_text(encoding="utf-8")
    for kept in (
        "a comment that stays",
        'xmp:Rating="4"',
        "Ümläut &amp; co",
        'darktable:history_end="2"',
        "xpacket end",
    ):
        assert kept in text
    parsed = ElementTree.fromstring(text.encode())
    abouts = {
        e.get("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}about")
        for e in parsed.iter()
        if e.tag.endswith("Description")
    }
    assert abouts == {"uuid:7"}
    assert text.count("GPSVersionID") == 2  # both ends of one element: what was there is replaced
    assert merged(text.encode(), answer(), "again").count(b"GPSLatitude") == 2  # both ends of one element
    Journal(root).undo()
    assert state(root) == before


@pytest.mark.parametrize(
    "content",
    [b"<x>", b"<a/>", b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', SIDECAR.encode("utf-16")],
)
def test_a_sidecar_that_cannot_be_merged_is_left_alone(root, content):
    (root / "page.png.xmp").write_bytes(content)
    done = write_positions(suggestions(root), "xmp", root)
    assert list(done.left) == ["page.png"]
    assert (root / "page.png.xmp").read_bytes() == content
    assert len(done.files) == 2


def test_what_was_changed_meanwhile_is_left_alone(root):
    chosen = suggestions(root)
    save(root / "plain.jpg", picture(5))
    done = write_positions(chosen, "exif", root)
    assert list(done.left) == ["plain.jpg"]
    (root / "camera.jpg").write_bytes(with_position((root / "camera.jpg").read_bytes(), answer(place=(1.0, 2.0))))
    edited = (root / "camera.jpg").read_bytes()
    undone = Journal(root).undo()
    assert list(undone.left) == ["camera.jpg"]
    assert (root / "camera.jpg").read_bytes() == edited
    assert [line["file"] for line in Journal(root).lines()] == ["camera.jpg"]


def test_a_guess_whose_mark_was_removed_is_known_by_the_journal(root):
    write_positions(suggestions(root), "exif", root)
    content = (root / "plain.jpg").read_bytes().replace(b"covis visual", b"other visual")
    (root / "plain.jpg").write_bytes(content)
    library = Library(root, [])
    scan(library, root.parent / "library.json")
    own = {photo.name: photo.own for photo in known_guesses(library.photos, root)}
    assert own["plain.jpg"]


def test_a_damaged_exif_block_is_left_alone(root):
    jpeg = (root / "camera.jpg").read_bytes()
    with pytest.raises(InputError, match="EXIF block is damaged"):
        with_position(jpeg.replace(b"II*\0", b"XX*\0").replace(b"MM\0*", b"XX\0*"), answer())


def _dies(root, undo, step):
    chosen = [] if undo else suggestions(root)
    die_before(step)
    if undo:
        Journal(root).undo()
    else:
        write_positions(chosen, "exif", root)


@pytest.mark.parametrize("undo", [False, True])
def test_a_kill_at_any_step_loses_nothing(root, tmp_path, undo):
    """Killed before its first step on disk, its second, and so on: every file is old or new, and undo restores it."""
    before = state(root)
    write_positions(suggestions(root), "exif", root)
    after = state(root)
    Journal(root).undo()
    context = multiprocessing.get_context("fork")
    for step in range(1, 100):
        shutil.rmtree(root)
        root.mkdir()
        for name, (content, mtime) in before.items():
            (root / name).write_bytes(content)
            os.utime(root / name, ns=(mtime, mtime))
        if undo:
            write_positions(suggestions(root), "exif", root)
        worker = context.Process(target=_dies, args=(root, undo, step))
        worker.start()
        worker.join(120)
        assert worker.exitcode in (0, -9)
        now = {
            name: part for name, part in state(root).items() if not name.endswith(".partial") and ".partial" not in name
        }
        assert set(now) == set(before)
        assert all(now[name] in (before[name], after[name]) for name in now)
        write_positions(suggestions(root), "exif", root)  # goes on
        if not undo:
            assert {n: p for n, p in state(root).items() if ".partial" not in n} == after
        Journal(root).undo()
        assert {n: p for n, p in state(root).items() if ".partial" not in n} == before
        if worker.exitcode == 0:
            break
    assert 5 < step < 99
