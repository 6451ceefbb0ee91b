"""Sources of posed images, layers, clouds, videos and bags, small and whole, to be damaged."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from bad_inputs import Case, _damage, _pick
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reading"))

COUNT = 4
IDENTITY = "1 0 0 0"


def _photos(folder: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 32, 3), 40 * i + 20, np.uint8)).save(folder / name)


def _write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _colmap(folder: Path, binary: bool) -> Path:
    import struct

    _photos(folder, [f"images/{i}.png" for i in range(COUNT)])
    if not binary:
        images = "".join(f"{i + 1} {IDENTITY} {i} 0 0 1 {i}.png\n1.0 2.0 1 3.0 4.0 -1\n" for i in range(COUNT))
        texts = {
            "cameras": "1 PINHOLE 32 24 30 30 16 12\n",
            "images": images,
            "points3D": "1 0 0 1 9 9 9 0.1 1 0 2 0\n",
        }
        _write(folder, {f"sparse/0/{name}.txt": text for name, text in texts.items()})
        return folder
    pinhole = struct.pack("<QIiQQ4d", 1, 1, 1, 32, 24, 30, 30, 16, 12)
    rows = b"".join(
        struct.pack("<I7dI", i + 1, 1, 0, 0, 0, i, 0, 0, 1) + f"{i}.png\0".encode() + struct.pack("<Q2dQ", 1, 1, 2, 1)
        for i in range(COUNT)
    )
    point = struct.pack("<QQ3d3BdQII", 1, 1, 0, 0, 1, 9, 9, 9, 0.1, 1, 1, 0)
    for name, content in {"cameras": pinhole, "images": struct.pack("<Q", COUNT) + rows, "points3D": point}.items():
        (folder / "sparse/0").mkdir(parents=True, exist_ok=True)
        (folder / f"sparse/0/{name}.bin").write_bytes(content)
    return folder


def _geojson(folder: Path) -> Path:
    from covis.geojson import feature, write_features

    rows = [{"image": f"{i}.jpg", "heading": i * 30.0} for i in range(COUNT)]
    write_features(
        folder / "photos.geojson", [feature("Point", [13.1, 55.7 + 1e-4 * i], row) for i, row in enumerate(rows)]
    )
    return folder / "photos.geojson"


def _cloud(folder: Path) -> Path:
    points = np.zeros((20, 3), "<f4").tobytes()
    head = "ply\nformat binary_little_endian 1.0\nelement vertex 20\nproperty float x\nproperty float y\nproperty float z\n"
    (folder / "cloud.ply").write_bytes(f"{head}end_header\n".encode() + points)
    return folder / "cloud.ply"


def _video(folder: Path) -> Path:
    from test_video import write

    write(folder / "ride.mp4", np.linspace(0, 40, 30))
    return folder / "ride.mp4"


def _bag(folder: Path) -> Path:
    from test_bags import write_bag

    write_bag(folder / "drive.bag", "ros1", fixes=True)
    return folder / "drive.bag"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "colmap-text": lambda p: _colmap(p, False),
    "colmap-binary": lambda p: _colmap(p, True),
    "geojson": _geojson,
    "cloud": _cloud,
    "video": _video,
    "bag": _bag,
}
_BINARY = (".png", ".jpg")


def read(path: Path, work: Path) -> str:
    """What covis makes of a source."""
    from covis.labels.ply import read_ply
    from covis.reading.formats.bag import import_bag
    from covis.reading.formats.video import import_video
    from covis.reading.frames import Every
    from covis.reading.sources import open_images

    if path.suffix == ".ply":
        return str(read_ply(path).shape)
    shutil.rmtree(work, ignore_errors=True)
    if path.suffix == ".mp4":
        return str(len(import_video(path, work, Every(0.5, "s"))[0]))
    if path.suffix == ".bag":
        return str(len(import_bag(path, work)[0]))
    return str(len(open_images(path)))


def odd_number(text: str, rng: np.random.Generator) -> str:
    """One number or word of a text replaced by something that is none, or by one of another size."""
    import re

    found = list(re.finditer(r"[-\w.]+", text))
    if not found:
        return text
    at = _pick(rng, found)
    odd = _pick(rng, ["nan", "inf", "-1", "1e400", "9" * 30, "null", "[]", "{}", '""', "x", "0", "\x00", "é"])
    return text[: at.start()] + odd + text[at.end() :]


def sources(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Sources in which one file is damaged, holds an odd number, is gone, or is a pipe."""
    import os

    made = {}
    for name, make in MAKERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        made[name] = make(folder / name)
    while True:
        name = _pick(rng, list(made))
        path = made[name]
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        texts = [f for f in files if f.suffix not in _BINARY]
        file = _pick(rng, texts if rng.random() < 0.9 else files)
        whole = file.read_bytes()
        kind = _pick(rng, ["damage"] * 4 + ["odd"] * 4 + ["gone", "pipe"])

        def call(path: Path = path, file: Path = file, whole: bytes = whole, kind: str = kind) -> str:
            try:
                if kind in ("gone", "pipe"):
                    file.unlink()
                if kind == "pipe":
                    os.mkfifo(file)
                elif kind == "odd" and file.suffix in (".txt", ".json", ".csv", ".yaml"):
                    file.write_text(odd_number(whole.decode(), rng))
                elif kind != "gone":
                    file.write_bytes(_damage(whole, rng))
                return read(path, folder / "out")
            finally:
                file.unlink(missing_ok=True)
                file.write_bytes(whole)

        yield f"{name} {file.name} {kind}", call
