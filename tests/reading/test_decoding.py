"""Decoding: orientation, odd formats, and a reason for every file that cannot be used."""

import contextlib
import io
import os
import pickle
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import covis
from covis.reading.decoding import REASONS, Reject, decode, decode_bytes, decode_noted, resize, turn
from covis.reading.exif import read_photo
from covis.reading.screening import look
from layouts import builders


@pytest.fixture
def photo(tmp_path):
    return builders.image(tmp_path / "a.jpg", (120, 160), seed=3)


def reason(path):
    with pytest.raises(Reject) as caught:
        decode(path)
    assert caught.value.reason in REASONS
    assert str(path) in str(caught.value)
    return caught.value.reason


def test_pixels_equal_pillows_at_full_size(photo):
    ours, pillow = decode(photo), np.asarray(Image.open(photo).convert("RGB"))
    assert ours.dtype == np.uint8
    assert np.abs(ours.astype(int) - pillow).max() <= 2  # the two libraries round chroma differently


@pytest.mark.parametrize("size", [(60, 80), (30, 40), (31, 57), (200, 100)])
def test_resized_pixels_are_near_a_full_decode_resized(photo, size):
    ours = decode(photo, size)
    reference = resize(decode(photo), size)
    assert ours.shape == (*size, 3)
    assert np.abs(ours.astype(int) - reference).mean() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_equals_pillows_exif_transpose(orientation):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    with Image.open(buffer) as reopened:
        expected = np.asarray(ImageOps.exif_transpose(reopened))
    assert np.array_equal(turn(pixels, orientation), expected)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_orientation_is_applied_and_recorded(tmp_path, orientation, ending):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:20, :30] = 255
    image, path = Image.fromarray(pixels), tmp_path / f"a.{ending}"
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(path, exif=exif, quality=95)
    decoded = decode_noted(path)
    assert decoded.orientation == orientation
    assert np.abs(decoded.pixels.astype(int) - turn(pixels, orientation)).mean() < 4
    assert decode(path, (24, 18)).shape == (24, 18, 3)


def test_a_file_of_no_bytes(tmp_path):
    (tmp_path / "a.jpg").touch()
    assert reason(tmp_path / "a.jpg") == "empty"


def test_a_missing_file_and_a_folder(tmp_path):
    assert reason(tmp_path / "none.jpg") == "missing"
    assert reason(tmp_path) == "unreadable"


def test_text_named_jpg_and_wrong_magic(tmp_path):
    (tmp_path / "a.jpg").write_text("<html>404</html>")
    (tmp_path / "b.png").write_bytes(b"\x89PNX" + bytes(200))
    assert reason(tmp_path / "a.jpg") == "not-an-image"
    assert reason(tmp_path / "b.png") == "not-an-image"


@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file(tmp_path, ending, share):
    whole = builders.image(tmp_path / f"a.{ending}", (200, 300), seed=1).read_bytes()
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(whole[: int(len(whole) * share)])
    assert reason(cut) in ("truncated", "corrupt")


def test_only_a_header(photo, tmp_path):
    (tmp_path / "b.jpg").write_bytes(photo.read_bytes()[:3])
    assert reason(tmp_path / "b.jpg") in ("not-an-image", "truncated", "corrupt")


def test_a_png_with_an_ending_of_jpg_works(tmp_path):
    builders.image(tmp_path / "a.png", seed=2).rename(tmp_path / "a.jpg")
    assert decode(tmp_path / "a.jpg").shape == (32, 48, 3)


def test_over_fifty_megapixels_is_refused_before_decoding(tmp_path):
    huge = _png_header(10000, 5001)
    (tmp_path / "a.png").write_bytes(huge)
    assert reason(tmp_path / "a.png") == "too-large"
    bomb = _png_header(100_000, 100_000)
    (tmp_path / "b.png").write_bytes(bomb)
    assert reason(tmp_path / "b.png") == "too-large"


def test_an_overlarge_jpeg_is_refused_by_its_header(photo, tmp_path):
    data = bytearray(photo.read_bytes())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 9000, 9000)
    (tmp_path / "big.jpg").write_bytes(data)
    assert reason(tmp_path / "big.jpg") == "too-large"


def test_sixteen_bit_is_rescaled(tmp_path):
    deep = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(deep).save(tmp_path / "a.png")
    decoded = decode_noted(tmp_path / "a.png")
    assert decoded.notes == ("rescaled-16-bit",)
    assert np.array_equal(decoded.pixels[..., 0], np.rint(deep / 257.0))


@pytest.mark.parametrize(
    ("mode", "ending"), [("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"), ("LA", "png"), ("1", "png")]
)
def test_other_colour_modes_are_converted(tmp_path, mode, ending):
    grey = Image.fromarray(np.full((16, 16, 3), 200, np.uint8)).convert("L" if mode in ("LA", "1") else "RGB")
    (grey.quantize(4) if mode == "P" else grey.convert(mode)).save(tmp_path / f"a.{ending}")
    decoded = decode_noted(tmp_path / f"a.{ending}")
    assert decoded.notes == (f"converted-{mode}",)
    assert decoded.pixels.shape == (16, 16, 3)
    if mode != "1":
        assert np.abs(decoded.pixels.astype(int) - 200).max() <= 3


def test_a_grey_jpeg_becomes_three_channels(tmp_path):
    Image.fromarray(np.full((16, 16), 90, np.uint8)).save(tmp_path / "a.jpg")
    assert np.abs(decode(tmp_path / "a.jpg").astype(int) - 90).max() <= 1


def test_float_pixels_are_refused(tmp_path):
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(tmp_path / "a.tif")
    assert reason(tmp_path / "a.tif") == "float-pixels"


def test_the_first_frame_of_an_animation(tmp_path):
    frames = [Image.fromarray(np.full((8, 8, 3), v, np.uint8)) for v in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    decoded = decode_noted(tmp_path / "a.gif")
    assert "first-frame" in decoded.notes
    assert decoded.pixels.max() < 50


def test_corrupt_exif_costs_nothing_but_a_note(photo, tmp_path):
    data = photo.read_bytes()
    block = b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(range(40))
    (tmp_path / "b.jpg").write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + data[2:])
    decoded = decode_noted(tmp_path / "b.jpg")
    assert decoded.notes == ("corrupt-exif",)
    assert np.array_equal(decoded.pixels, decode(photo))


def test_odd_names_work(tmp_path):
    plain = builders.image(tmp_path / "a.jpg").read_bytes()
    for name in (b"caf\xe9 @1@2@ .jpg", b"x" * 200 + b".jpg", "Ørsted–ψ.jpg".encode()):
        path = tmp_path / os.fsdecode(name)
        path.write_bytes(plain)
        assert decode(path).shape == (32, 48, 3)


def test_bytes_of_an_upload(photo):
    assert np.array_equal(decode_bytes(photo.read_bytes()).pixels, decode(photo))
    with pytest.raises(Reject, match="upload: empty"):
        decode_bytes(b"", name="upload")


def test_a_reject_survives_a_process_border():
    again = pickle.loads(pickle.dumps(Reject("corrupt", "a.jpg", "why")))
    assert (again.reason, again.path, again.detail) == ("corrupt", "a.jpg", "why")


def test_random_bytes_never_raise_anything_else(tmp_path):
    rng = np.random.default_rng(0)
    whole = builders.image(tmp_path / "a.jpg", (64, 64), seed=1).read_bytes()
    for trial in range(200):
        data = bytearray(whole)
        for at in rng.integers(2, len(data), 1 + trial % 8):
            data[at] = rng.integers(256)
        with contextlib.suppress(Reject):
            assert decode_bytes(bytes(data)).pixels.ndim == 3


def _png_header(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


ENDLESS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\n{} loop\n%%EOF\n"


def test_a_program_in_place_of_a_picture_is_refused_without_running_it(tmp_path, monkeypatch):
    """EPS is PostScript: Pillow would give it to Ghostscript, whatever the file is called."""
    ran = []
    monkeypatch.setattr(subprocess, "check_call", lambda *a, **k: ran.append(a))
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: ran.append(a))
    path = tmp_path / "holiday.jpg"
    path.write_bytes(ENDLESS)
    assert reason(path) == "not-an-image"
    with pytest.raises(Reject, match="not-an-image"):
        read_photo(path)
    assert look(path).reason == "not-an-image"
    assert not ran


def test_pillow_opens_files_through_one_door_only():
    source = Path(covis.__file__).parent
    opening = [p.relative_to(source).as_posix() for p in source.rglob("*.py") if "Image.open(" in p.read_text()]
    assert opening == ["reading/decoding.py"]
