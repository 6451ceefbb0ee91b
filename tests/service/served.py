"""A small town on Earth as a map of real files, and servers over it on loopback."""

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from covis.images import ImageSet
from covis.maps.map import Map
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses

LAT, LON = 55.7047, 13.1910


def tiny():
    return PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0)


def picture(seed, size=48):
    """Pixels of a place: smooth colours that only its seed decides."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def jpeg(seed, size=48, exif=None):
    buffer = io.BytesIO()
    picture(seed, size).save(buffer, "JPEG", quality=90, **({} if exif is None else {"exif": exif}))
    return buffer.getvalue()


def gps(lat, lon):
    """An EXIF block with a position."""

    def parts(value):
        minutes = (value % 1) * 60
        return (float(int(value)), float(int(minutes)), round((minutes % 1) * 60, 4))

    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: parts(lat), 3: "E", 4: parts(lon)}
    return exif


def build(folder: Path, photos=60, earth=True) -> Map:
    """Walks of 20 photos along streets 30 m apart, 6 m from photo to photo."""
    files = folder / "photos"
    files.mkdir(parents=True)
    along, street = np.arange(photos) % 20, np.arange(photos) // 20
    for i in range(photos):
        (files / f"{i:03d}.jpg").write_bytes(jpeg(i))
    lat, lon = LAT + street * 30 / 111_000, LON + along * 6 / 62_800
    poses = (
        Poses.from_latlon(lat, lon, np.full(photos, 90.0))
        if earth
        else Poses(np.column_stack([along * 6.0, street * 30.0]), np.full(photos, 90.0))
    )
    images = ImageSet.of(files, [f"{i:03d}.jpg" for i in range(photos)], poses, [f"walk {s}" for s in street])
    return Map.create(folder / "town.map", images, tiny())


@contextlib.contextmanager
def running(app):
    """The application on a free port of loopback, in a thread; gives its address."""
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http="h11",
        log_level="error",
        access_log=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 240
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextlib.contextmanager
def process(*arguments):
    """`covis serve` in a process of its own; gives it and its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "covis", "serve", *map(str, arguments), "--port", "0", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        url, deadline = "", time.monotonic() + 900  # a busy machine takes minutes to import torch
        while '"url"' not in url and child.poll() is None and time.monotonic() < deadline:
            url = child.stdout.readline()
        if '"url"' not in url:
            child.kill()
            raise AssertionError(child.stderr.read())
        address = url.split('"')[3]
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{address}/healthz", timeout=5)
                break
            time.sleep(0.05)
        yield child, address
    finally:
        child.kill()
        child.wait(10)
