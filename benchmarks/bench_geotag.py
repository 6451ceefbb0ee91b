"""How long `covis geotag` takes on a made-up library of many small photos, and how much memory, with a tiny network.

    python benchmarks/bench_geotag.py [--photos 100000] [--work FOLDER]

The network is as small as can be, so that what is measured is everything but describing photos. A library that is
already in FOLDER is used again.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from _common import report
from PIL import Image

PLACES, SHOTS = 2000, 3
WITHOUT = 0.15
TOWNS = ((48.0, 11.0), (-17.0, 179.99), (37.8, -122.4), (-33.9, 151.2))
SCAN = """
import sys
from pathlib import Path
from covis.geotagging.library import Library, scan
root, file = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
file.parent.mkdir(parents=True, exist_ok=True)
scan(Library.load(file, root), file)
"""


def pictures() -> list[bytes]:
    """A JPEG for each shot of each place."""
    made = []
    for place in range(PLACES):
        coarse = np.random.default_rng((place, 7)).integers(0, 256, (6, 6, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC), np.int16)
        for shot in range(SHOTS):
            noise = np.random.default_rng((place, shot)).integers(-12, 13, smooth.shape)
            buffer = io.BytesIO()
            Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8)).save(buffer, "JPEG")
            made.append(buffer.getvalue())
    return made


def degrees(value: float) -> tuple[float, float, float]:
    seconds = abs(value) * 3600
    return float(seconds // 3600), float(seconds % 3600 // 60), round(seconds % 60, 4)


def exif(i: int, place: int, known: bool) -> bytes:
    """A walk of a hundred photos each day, half a minute apart, by one of four cameras."""
    block = Image.Exif()
    block[0x010F], block[0x0110] = "Maker", f"Camera {i // 100 % 4}"
    taken = datetime(2004, 5, 3, 9) + timedelta(days=i // 100, seconds=30 * (i % 100))
    block.get_ifd(0x8769)[0x9003] = taken.strftime("%Y:%m:%d %H:%M:%S")
    if known:
        lat, lon = TOWNS[place % len(TOWNS)]
        street, house = divmod(place // len(TOWNS), 25)
        lat, lon = lat + street * 0.0008, (lon + house * 0.0006 + 180) % 360 - 180
        block.get_ifd(0x8825).update({1: "NS"[lat < 0], 2: degrees(lat), 3: "EW"[lon < 0], 4: degrees(lon)})
    return block.tobytes()


def library(root: Path, photos: int) -> None:
    """Writes the library: walks along the streets of four towns."""
    shots, drawn = pictures(), np.random.default_rng(0)
    for i in range(photos):
        folder = root / f"{2004 + i // 36500}" / f"{i // 100:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        place = (i // 100 * 7 % len(TOWNS) + len(TOWNS) * (i % 100 + i // 100 * 31)) % PLACES
        block = exif(i, place, drawn.random() > WITHOUT)
        jpeg = shots[SHOTS * place + int(drawn.integers(SHOTS))]
        segment = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
        (folder / f"{i:06d}.jpg").write_bytes(jpeg[:2] + segment + jpeg[2:])


def measured(step: str, command: list[str]) -> dict[str, Any]:
    """Seconds, CPU seconds and the largest memory of a command and what it starts."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    row = {"step": step, "s": time.perf_counter() - start, "cpu_s": usage.ru_utime + usage.ru_stime}
    return row | {"memory_MB": usage.ru_maxrss / 1024, "said": said.partition("\nnext")[0].strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=100_000)
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="bench-geotag-"))
    root = work / "library"
    if not root.is_dir():
        library(work / "draft", options.photos)
        (work / "draft").rename(root)
        from covis.models import ModelConfig, PlaceModel

        PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0).save(work / "model")
    memory = work / "map.library"
    covis = [sys.executable, "-m", "covis", "geotag", str(root), "--map", str(work / "map")]
    rows = [
        measured("the library is read", [sys.executable, "-c", SCAN, str(root), str(memory / "library.json")]),
        measured("first run: map and suggestions", [*covis, "--model", str(work / "model")]),
        measured("next run: nothing new", covis),
        measured("positions are written", [*covis, "--write", "xmp"]),
        measured("positions are taken back", [*covis[:-2], "--undo"]),
    ]
    for row in rows:
        row["photos_per_s"] = options.photos / row["s"]
    report("geotag", rows, {"photos": options.photos}, options.results)


if __name__ == "__main__":
    main()
