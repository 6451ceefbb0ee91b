"""The service against the bare network: photos per second under load, time of an answer, share of the network's speed.

Both run the same ONNX or torch model of a map made here of random photos (480 × 640, MobileNetV2 without trained
weights: speed does not depend on them). CPU seconds are the server process's own, so that other work on the machine
does not count; the ratio is network CPU per photo ÷ server CPU per photo.

    python benchmarks/bench_service.py [--photos 160] [--clients 16]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import report

SIZE = (480, 640)


def photo(seed: int) -> bytes:
    """A JPEG of smooth colours, about as large as a phone's small one."""
    from PIL import Image

    coarse = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_map(folder: Path, count: int) -> Path:
    from covis.images import ImageSet
    from covis.maps.map import Map
    from covis.models import ModelConfig, PlaceModel
    from covis.poses import Poses

    (folder / "photos").mkdir()
    names = [f"{i:03d}.jpg" for i in range(count)]
    for i, name in enumerate(names):
        (folder / "photos" / name).write_bytes(photo(i))
    poses = Poses(np.column_stack([np.arange(count) * 5.0, np.zeros(count)]), np.zeros(count))
    model = PlaceModel.build(ModelConfig("mobilenetv2_100", image_size=SIZE), seed=0)
    made = Map.create(folder / "town.map", ImageSet.of(folder / "photos", names, poses), model, calibrate=False)
    made.network.carry_runtime()
    return made.path


def bare(path: Path, count: int) -> dict[str, float]:
    """The network alone, in batches of eight, on pixels that are decoded already."""
    from covis.maps.map import Map
    from covis.reading.decoding import decode_bytes

    network = Map.open(path).runtime
    pixels = np.stack([decode_bytes(photo(i), network.image_size).pixels for i in range(8)]).transpose(0, 3, 1, 2)
    network.describe(pixels)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count // 8):
        network.describe(pixels)
    return {"photos": count, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(address: str, count: int, clients: int) -> list[float]:
    """Seconds of each request of `clients` at once, each of which waits for an answer before its next request."""
    import httpx

    photos, seconds, left = [photo(1000 + i) for i in range(16)], [], iter(range(count))

    async def client(line: httpx.AsyncClient) -> None:
        for i in left:
            start = time.perf_counter()
            answer = await line.post(f"{address}/v1/locate", files={"photo": ("a.jpg", photos[i % 16])})
            answer.raise_for_status()
            seconds.append(time.perf_counter() - start)

    async with httpx.AsyncClient(timeout=120) as line:
        await asyncio.gather(*(client(line) for _ in range(clients)))
    return seconds


def served(path: Path, count: int, clients: int) -> dict[str, float]:
    command = [sys.executable, "-m", "covis", "serve", str(path), "--port", "0", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = ""
        while '"url"' not in line:
            line = child.stdout.readline()  # type: ignore[union-attr]
            if not line:
                raise RuntimeError("the server did not start")
        address = line.split('"')[3]
        asyncio.run(load(address, 8, clients))
        cpu, wall = cpu_of(child.pid), time.perf_counter()
        seconds = asyncio.run(load(address, count, clients))
        row = {"photos": count, "wall_s": time.perf_counter() - wall, "cpu_s": cpu_of(child.pid) - cpu}
    finally:
        child.kill()
        child.wait()
    return {**row, "p50_s": float(np.percentile(seconds, 50)), "p95_s": float(np.percentile(seconds, 95))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=160)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make_map(Path(folder), 24)
        before = bare(path, given.photos)
        one = served(path, max(8, given.photos // 4), 1)
        many = served(path, given.photos, given.clients)
        after = bare(path, given.photos)
    alone = min(before, after, key=lambda row: row["cpu_s"])
    rows = []
    for name, row in (
        ("network alone", alone),
        ("service, 1 client", one),
        (f"service, {given.clients} clients", many),
    ):
        per = row["cpu_s"] / row["photos"]
        share = (alone["cpu_s"] / alone["photos"]) / per
        rows.append({"what": name, "photos_per_s": row["photos"] / row["wall_s"], "cpu_ms_per_photo": 1000 * per,
                     "share_of_network": share, **{k: row[k] for k in ("p50_s", "p95_s") if k in row}})  # fmt: skip
    report("service", rows, {"photos": given.photos, "clients": given.clients, "size": SIZE})


if __name__ == "__main__":
    main()
