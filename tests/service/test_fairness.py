"""Memory and turns: what one client sends neither fills the memory nor holds up the others."""

import asyncio
import io
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from covis.reading.decoding import decode_bytes
from covis.service import batching
from covis.service.batching import Batcher
from covis.service.limits import PixelBudget

PEAK = """
import io, resource, sys
from PIL import Image
from covis.reading.decoding import decode_bytes
photo = sys.stdin.buffer.read()
decode_bytes(photo[:0] or {small!r}, (32, 32))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode_bytes(photo, (32, 32))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def png(mode, side):
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(("mode", "most_mb"), [("I;16", 250), ("RGBA", 450)])
def test_a_small_file_of_49_megapixels_takes_bounded_memory(mode, most_mb):
    done = subprocess.run(
        [sys.executable, "-c", PEAK.format(small=png(mode, 8))],
        input=png(mode, 7000),
        capture_output=True,
        env=os.environ,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most_mb


def test_sixteen_bits_are_scaled_as_division_rounds():
    deep = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    buffer = io.BytesIO()
    Image.fromarray(deep).save(buffer, "PNG")
    assert np.array_equal(decode_bytes(buffer.getvalue()).pixels[..., 0], np.rint(deep / 257).astype(np.uint8))


class Network:
    image_size = (8, 8)

    def describe(self, pixels):
        return np.tile(np.eye(1, 4, dtype=np.float32), (len(pixels), 1))


def test_a_client_with_many_photos_does_not_hold_up_another(monkeypatch):
    decode, order, asked = batching._decode, [], threading.Event()

    def waits(photo, size):
        order.append(Image.open(io.BytesIO(photo)).width)
        assert asked.wait(60)
        return decode(photo, size)

    monkeypatch.setattr(batching, "_decode", waits)
    monkeypatch.setattr(batching, "cpu_count", lambda: 1)
    batcher = Batcher(256, 60.0)

    async def ask():
        many = asyncio.create_task(batcher.describe(Network(), [png("RGB", 9)] * 12, "many"))
        while not order:
            await asyncio.sleep(0)
        one = asyncio.create_task(batcher.describe(Network(), [png("RGB", 10)], "one"))
        await asyncio.sleep(0)  # begins the task
        await asyncio.sleep(0)  # and those of its photos
        asked.set()
        await one
        await many

    asyncio.run(ask())
    batcher.close()
    assert order.index(10) <= 3


def test_pixels_wait_for_their_turn():
    budget, inside = PixelBudget(100), []

    def work():
        with budget.taken(60):
            inside.append(budget.used)
            time.sleep(0.02)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == [60] * 4
    assert budget.used == 0
    with budget.taken(1000):  # alone, a photo larger than the budget passes
        assert budget.used == 1000
