"""Decoders in processes of their own: what a hostile file does there costs one process, and the next file works."""

import io
import os
import sys

import numpy as np
import pytest
from PIL import Image

from covis.core.machine import in_processes
from covis.reading import decoding, isolation
from covis.reading.decoding import Reject, decode_bytes
from covis.reading.isolation import Ended, run_isolated

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are POSIX")


@pytest.fixture
def short(monkeypatch):
    """Limits that a test reaches soon, for new processes."""
    isolation._end_all()
    monkeypatch.setattr(isolation, "LONGEST_S", 0.2)
    monkeypatch.setattr(isolation, "MOST_BYTES", 512 << 20)
    yield
    isolation._end_all()


def content(kind, side=16, mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, (side, side), 90 if mode == "L" else (90, 90, 90)).save(buffer, kind)
    return buffer.getvalue()


def test_a_loop_within_a_library_ends(short):
    with pytest.raises(Ended):
        run_isolated(eval, "sum(iter(int, 1))")
    assert run_isolated(len, b"abc") == 3


def test_memory_is_refused(short):
    with pytest.raises(MemoryError):
        run_isolated(bytes, 1 << 30)
    assert run_isolated(len, bytes(100_000)) == 100_000


def test_a_crash_ends_one_process():
    with pytest.raises(Ended):
        run_isolated(os.abort)
    assert run_isolated(os.getpid) == run_isolated(os.getpid) != os.getpid()


def test_an_error_comes_back_and_prints_are_no_answers():
    with pytest.raises(ZeroDivisionError):
        run_isolated(divmod, 1, 0)
    assert run_isolated(os.write, 1, b"noise") == 5


def test_a_forked_worker_has_its_own():
    run_isolated(len, b"")
    assert list(in_processes(_length, [b"ab", b"abc"], 2)) == [2, 3]
    assert run_isolated(len, b"a") == 1


def _length(data):
    return run_isolated(len, data)


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "AVIF", "BMP", "PPM", "PNG", "HEIF"])
def test_formats_that_are_decoded_elsewhere(monkeypatch, kind):
    """All but JPEG, and PNG of one's own: what this process cannot decode any more still comes out right."""
    if kind not in decoding._available_formats():
        pytest.skip(f"no {kind} here")
    photo = content(kind)
    monkeypatch.setattr(decoding, "_decode_any", None)
    assert np.abs(decode_bytes(photo, stranger=kind == "PNG").pixels.astype(int) - 90).max() <= 3


def test_a_decoder_that_crashes_is_a_reason(monkeypatch):
    def crashed(*_, **__):
        raise Ended

    monkeypatch.setattr(decoding, "run_isolated", crashed)
    with pytest.raises(Reject, match="its decoder crashed"):
        decode_bytes(content("TIFF"))


def test_a_jpeg_of_many_scans_is_refused():
    """Each scan of a progressive file goes over all its pixels: 40 kB took half a minute, a photo of 30 MB would take hours."""
    buffer = io.BytesIO()
    Image.new("L", (4000, 4000)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(Reject, match="scans"):
        decode_bytes(data[:-2] + 100 * scan + b"\xff\xd9")
    assert decode_bytes(data, (32, 32)).pixels.shape == (32, 32, 3)


def test_frames_are_not_counted():
    """A GIF or TIFF may have millions of frames, each of some bytes."""
    first = content("GIF", 1, "L")
    frame = first[first.index(b",") : -1]
    assert "first-frame" in decode_bytes(first[:-1] + 50 * frame + b";").notes
