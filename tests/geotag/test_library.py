"""A library is read once and kept up to date; what it says of its photos is what cameras wrote."""

import os
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from libraries import CAMERA, PHONE, START, exif, picture, save
from PIL import Image

from covis.core.errors import InputError
from covis.geotagging import library as module
from covis.geotagging.library import Library, LibraryPhoto, bursts, scan
from covis.geotagging.raw import picture_of, read_raw
from covis.geotagging.xmp import METHOD
from covis.reading.decoding import Reject

HERE = (48.1, 11.2)


@pytest.fixture
def root(tmp_path):
    save(tmp_path / "lib/a.jpg", picture(1), exif(START, PHONE, HERE, "+02:00"))
    save(tmp_path / "lib/b.png", picture(2), exif(START, CAMERA))
    save(tmp_path / "lib/c.tif", picture(3))
    (tmp_path / "lib/broken.jpg").write_bytes(b"no photo")
    return tmp_path / "lib"


def scanned(root, file=None):
    file = file or root.parent / "library.json"
    library = Library.load(file, root)
    scan(library, file)
    return {photo.name: photo for photo in library.photos}


def test_a_scan_tells_place_clock_camera_and_what_cannot_be_used(root):
    photos = scanned(root)
    a, b = photos["a.jpg"], photos["b.png"]
    assert a.place == pytest.approx(HERE, abs=1e-6)
    assert (a.camera, b.camera) == ("Maker Phone", "Other Camera")
    local = START.replace(tzinfo=UTC).timestamp()
    assert (a.local_s, a.utc_s, b.local_s, b.utc_s) == (local, local - 7200, local, None)
    assert a.day == "2024-05-03"
    assert a.known
    assert not a.wanted
    assert b.wanted
    assert photos["c.tif"].wanted
    assert photos["broken.jpg"].problem == "not-an-image"
    assert not photos["broken.jpg"].wanted


def test_only_new_and_changed_files_are_read_again_and_moved_ones_keep_their_content(root, monkeypatch):
    before = scanned(root)
    (root / "a.jpg").rename(root / "moved.jpg")
    (root / "c.tif").unlink()
    save(root / "b.png", picture(9), exif(START, CAMERA))
    read = []
    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    real = module._read
    monkeypatch.setattr(module, "_read", lambda root, name, *rest: read.append(name) or real(root, name, *rest))
    after = scanned(root)
    assert sorted(read) == ["b.png", "moved.jpg"]
    assert sorted(after) == ["b.png", "broken.jpg", "moved.jpg"]
    assert after["moved.jpg"].key == before["a.jpg"].key
    assert after["b.png"].key != before["b.png"].key
    read.clear()
    assert scanned(root) == after
    assert read == []


def test_a_sidecar_gives_the_position_and_a_guess_of_ours_is_marked(root):
    facts = {"GPSLatitude": "48,30.0N", "GPSLongitude": "11,15,30.0W"}
    for name, method in (("b.png.xmp", ""), ("c.xmp", METHOD)):
        tags = "".join(f'exif:{k}="{v}" ' for k, v in (facts | {"GPSProcessingMethod": method}).items())
        (root / name).write_text(
            '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
            f'<rdf:Description xmlns:exif="http://ns.adobe.com/exif/1.0/" {tags}/></rdf:RDF></x:xmpmeta>'
        )
    photos = scanned(root)
    assert photos["b.png"].place == pytest.approx((48.5, -(11 + 15.5 / 60)))
    assert photos["b.png"].known
    assert photos["c.tif"].own
    assert not photos["c.tif"].known
    assert not photos["c.tif"].wanted


def test_the_list_of_another_library_is_refused(root, tmp_path):
    scanned(root)
    shutil.copytree(root, tmp_path / "other")
    with pytest.raises(InputError, match="belongs to the library"):
        Library.load(tmp_path / "library.json", tmp_path / "other")


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match="has no photos"):
        scan(Library(tmp_path, []), tmp_path / "library.json")


def photo(name, seconds, lat=48.0, camera="one", **more):
    return LibraryPhoto(name, more.pop("key", name), (), lat, 11.0, False, camera, float(seconds), **more)


def test_duplicates_and_bursts_count_once():
    chosen = bursts([
        photo("1", 0), photo("2", 1), photo("3", 2.5), photo("copy of 1", 0, key="1"), photo("4", 100), photo("5", 101, 48.1),
        photo("6", 1, camera="two"), photo("7", 300, problem="corrupt"), photo("8", 500),
    ])  # fmt: skip
    assert sorted(p.name for p in chosen) == ["1", "4", "5", "6", "8"]


def test_a_raw_photo_has_its_exif_and_its_largest_preview(tmp_path):
    small, large = (
        save(tmp_path / f"{n}.jpg", Image.fromarray(np.full((n, n, 3), 90, np.uint8))).read_bytes() for n in (16, 64)
    )
    block = exif(START, CAMERA, HERE).tobytes().removeprefix(b"Exif\0\0")
    order = "<" if block[:2] == b"II" else ">"
    at = len(block) + len(block) % 2
    pictures = block.ljust(at, b"\0") + small + large
    chain = b"".join(_directory(order, at + (len(small) if part is large else 0), len(part)) for part in (small, large))
    # The last directory of the chain says where the next one is.
    import struct

    first = struct.unpack_from(f"{order}I", block, 4)[0]
    count = struct.unpack_from(f"{order}H", block, first)[0]
    raw = bytearray(pictures + b"\0" * (len(pictures) % 2))
    start, size = len(raw), len(chain) // 2
    struct.pack_into(f"{order}I", raw, first + 2 + 12 * count, start)
    raw += chain
    struct.pack_into(f"{order}I", raw, start + size - 4, start + size)
    (tmp_path / "photo.NEF").write_bytes(raw)
    assert picture_of(tmp_path / "photo.NEF").image == large
    read = read_raw(tmp_path / "photo.NEF")
    assert (read.lat, read.lon) == pytest.approx(HERE, abs=1e-6)
    assert read.camera == "Other Camera"
    (tmp_path / "bare.dng").write_bytes(block)
    with pytest.raises(Reject, match="no JPEG preview"):
        read_raw(tmp_path / "bare.dng")


def _directory(order, offset, length):
    import struct

    entries = struct.pack(f"{order}HHII", 0x0201, 4, 1, offset) + struct.pack(f"{order}HHII", 0x0202, 4, 1, length)
    return struct.pack(f"{order}H", 2) + entries + struct.pack(f"{order}I", 0)


def test_an_interrupted_scan_goes_on(root, monkeypatch):
    for i in range(5):
        save(root / f"more{i}.jpg", picture(20 + i), exif(START + timedelta(minutes=i)))
    monkeypatch.setattr(module, "_PIECE", 1)
    monkeypatch.setattr(module, "_SAVED_EVERY", 2)
    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    real, read = module._read, []

    def dies(folder, name, *rest):
        if len(read) == 5:
            raise KeyboardInterrupt
        read.append(name)
        return real(folder, name, *rest)

    monkeypatch.setattr(module, "_read", dies)
    with pytest.raises(KeyboardInterrupt):
        scanned(root)
    again = []
    monkeypatch.setattr(module, "_read", lambda folder, name, *rest: again.append(name) or real(folder, name, *rest))
    assert len(scanned(root)) == 9
    assert len(again) == 9 - 4


def test_the_clock_of_a_file_does_not_matter(root):
    before = scanned(root)
    moment = datetime(2001, 1, 1).timestamp()
    os.utime(root / "a.jpg", (moment, moment))
    after = scanned(root)
    assert after["a.jpg"].key == before["a.jpg"].key
    assert after["a.jpg"].utc_s == before["a.jpg"].utc_s
