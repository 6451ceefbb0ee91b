"""What a user points at: files, folders, tables, patterns, standard input; HEIC as phones write it."""

import io

import numpy as np
import pytest
from PIL import Image

from covis.cli.locate import _check_map
from covis.core.errors import InputError
from covis.reading import decoding
from covis.reading.selection import select_photos


@pytest.fixture
def folder(tmp_path):
    for name in ("b.jpg", "a.jpg", "sub/c é.png"):
        file = tmp_path / "new" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(file)
    (tmp_path / "new" / "notes.txt").write_text("x")
    (tmp_path / "list.csv").write_text("image,lat,lon\nnew/a.jpg,55,13\n")
    return tmp_path


def names(found, folder):
    return [str(p.relative_to(folder)) for p in found]


def test_folders_tables_patterns_and_lists(folder):
    everything = ["new/a.jpg", "new/b.jpg", "new/sub/c é.png"]
    assert names(select_photos([folder / "new"]), folder) == everything
    assert names(select_photos([folder / "list.csv"]), folder) == ["new/a.jpg"]
    assert names(select_photos([f"{folder}/new/*.jpg"]), folder) == everything[:2]
    listed = io.StringIO(f"{folder}/new/b.jpg\r\n\n{folder}/new/sub\n")
    assert names(select_photos(["-"], listed), folder) == everything[1:]
    assert names(select_photos([folder / "new" / "b.jpg", folder / "new"]), folder) == [
        "new/b.jpg",
        "new/a.jpg",
        everything[2],
    ]


def test_a_table_of_photos_to_locate_needs_no_positions(folder):
    import pandas

    table = pandas.DataFrame({"image": ["new/sub/c é.png", "new/b.jpg"], "note": ["x", None]})
    table.to_csv(folder / "asked.csv", index=False)
    table.to_parquet(folder / "asked.parquet")
    for name in ("asked.csv", "asked.parquet"):
        assert names(select_photos([folder / name]), folder) == ["new/sub/c é.png", "new/b.jpg"]
    (folder / "blank.csv").write_text("image,lat\nnew/a.jpg,\n,3\n")
    with pytest.raises(InputError, match="row 3 has no image name"):
        select_photos([folder / "blank.csv"])
    (folder / "other.csv").write_text("photo,lat,lon\nnew/a.jpg,55,13\n")
    assert names(select_photos([folder / "other.csv"]), folder) == ["new/a.jpg"]


def test_what_is_not_there_is_said_with_a_hint(folder):
    with pytest.raises(InputError, match=r"aa\.jpg does not exist \(did you mean .*a\.jpg"):
        select_photos([folder / "new" / "aa.jpg"])
    with pytest.raises(InputError, match="matches no file"):
        select_photos([f"{folder}/new/*.webp"])
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match="has no photos"):
        select_photos([folder / "empty"])
    with pytest.raises(InputError, match="no photo is given"):
        select_photos(["-"], io.StringIO(""))


def test_a_swapped_map_is_recognised(folder):
    town = folder / "town.map"
    town.mkdir()
    (town / "CURRENT").write_text("{}")
    _check_map(town, [folder / "new" / "a.jpg"])
    with pytest.raises(
        InputError, match=r"town\.map is the map, and it comes first: covis locate .*town\.map .*a\.jpg"
    ):
        _check_map(folder / "new" / "a.jpg", [town])
    with pytest.raises(InputError, match=r"did you mean .*town\.map"):
        _check_map(folder / "twn.map", [folder / "new" / "a.jpg"])
    with pytest.raises(InputError, match="the first argument is a map"):
        _check_map(folder / "new" / "a.jpg", [folder / "new" / "b.jpg"])


def test_heic_is_decoded_with_its_position(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    from covis.reading.exif import read_photo

    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, 48:] = (200, 40, 40)
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: (55.0, 42.0, 16.5), 3: "E", 4: (13.0, 11.0, 27.0)}
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(tmp_path / "IMG_0001.HEIC", exif=exif.tobytes(), quality=90)
    found = decoding.decode(tmp_path / "IMG_0001.HEIC", (32, 48))
    assert found.shape == (32, 48, 3)
    assert abs(int(found[16, 40, 0]) - 200) < 25
    assert int(found[16, 8, 0]) < 25
    assert read_photo(tmp_path / "IMG_0001.HEIC").lat == pytest.approx(55.70458333)


def test_heic_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(decoding, "_available_formats", lambda: ("JPEG",))
    with pytest.raises(decoding.Reject, match=r"pip install 'covis\[heic\]'"):
        decoding._decode_content(b"\0\0\0\x18ftypheic" + bytes(64), None, "a.heic")
