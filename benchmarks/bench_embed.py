"""Embedding against the bare network, in CPU time, and its memory from ten thousand images to a million.

`covis.describing.embedding.embed` takes JPEG files on disk into a store; beside it runs the same model's forward pass
over images that are already in memory.

One thread each for the network and for decoding, CPU time, so that a busy machine does not matter. Both sides normalise the same uint8 batches of the same size. Starting (a worker, the model's fingerprint) costs
embedding about 0.15 s, which is why several batches of photos are measured. Both sides run in turn; shares are medians
over the turns.

Memory is what all processes hold together beyond the files' page cache (the sum of their proportional shares), at its
peak and before embedding begins, when the list of images is already in memory.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import report

SIZES = {"resnet18": (480, 640), "mobilenetv2_100": (224, 224)}
PHOTOS = {"resnet18": 64, "mobilenetv2_100": 192}
_DIFFERENT = 32
_CHILD = """
import os, sys, threading, time
import numpy as np, torch
from covis.core.machine import prepare_process; prepare_process()
from covis.describing.embedding import embed
from covis.images import ImageSet
from covis.models import Preprocessing
from covis.poses import Poses

class Mean(torch.nn.Module):
    dim = 512
    preprocessing = Preprocessing((16, 16))
    def fingerprint(self): return "mean"
    def normalise(self, x): return x.float()
    def forward(self, x): return torch.nn.functional.normalize(x.flatten(1)[:, :512] + 1)

def held_mb():
    processes = os.getpid(), *open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
    lines = [l for p in processes for l in open(f"/proc/{p}/smaps_rollup")]
    return sum(int(l.split()[1]) for l in lines if l.startswith(("Pss_Anon", "Pss_Shmem"))) / 1024

count, folder, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
names = np.array([f"{i:03d}.jpg".encode() for i in range(1000)])[np.arange(count) % 1000]
images = ImageSet.of(folder, names, Poses(np.full((count, 2), np.nan), np.full(count, np.nan)))
before, most, done = held_mb(), 0.0, threading.Event()
def watch():
    global most
    while not done.wait(0.25):
        try:
            most = max(most, held_mb())
        except OSError:  # a worker has just ended
            pass
watcher = threading.Thread(target=watch); watcher.start()
embed(Mean(), images, out, batch_size=256, workers=1)
done.set(); watcher.join()
print(before, most)
"""


def photo(seed: int, size: tuple[int, int]) -> bytes:
    """A JPEG with structure at several scales, about as heavy to decode as a street photo."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    layers = [Image.fromarray(rng.integers(0, 256, (8 * 2**i, 8 * 2**i, 3), np.uint8)) for i in range(5)]
    mixed = sum(
        np.asarray(layer.resize(size[::-1], Image.Resampling.BICUBIC), np.float32) / 2**i
        for i, layer in enumerate(layers)
    )
    data = io.BytesIO()
    Image.fromarray(np.clip(mixed / 2, 0, 255).astype(np.uint8)).save(data, "JPEG", quality=90)
    return data.getvalue()


def speed_row(backbone: str, repeats: int) -> dict[str, Any]:
    import torch

    from covis.describing.embedding import BATCH_SIZE, embed
    from covis.describing.loading import image_batches
    from covis.models import ModelConfig, PlaceModel
    from covis.reading.sources import list_images

    torch.set_num_threads(1)
    model = PlaceModel.build(ModelConfig(backbone=backbone, image_size=SIZES[backbone]))
    count, forward, whole = PHOTOS[backbone], [], []
    photos = [photo(i, (480, 640)) for i in range(_DIFFERENT)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos"
        root.mkdir()
        for i in range(count):
            (root / f"{i:04d}.jpg").write_bytes(photos[i % _DIFFERENT])
        images = list_images(root)
        held = [loaded.images for loaded in image_batches(images, None, SIZES[backbone], BATCH_SIZE)]
        embed(model, images.subset(np.arange(BATCH_SIZE)))
        for turn in range(repeats):
            start = time.process_time()
            with torch.inference_mode():
                for batch in held:
                    model(model.normalise(batch))
            forward.append(time.process_time() - start)
            start = time.process_time()
            embed(model, images, Path(folder) / f"store{turn}", workers=1)
            whole.append(time.process_time() - start)
    alone, spent = np.array(forward), np.array(whole)
    return {
        "what": f"{backbone} at {SIZES[backbone][0]}×{SIZES[backbone][1]}, {count} photos of 480×640",
        "forward_per_s": count / np.median(alone), "forward_share": np.median(alone / spent),
    }  # fmt: skip


def memory_row(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos"
        root.mkdir()
        for i in range(1000):
            (root / f"{i:03d}.jpg").write_bytes(photo(i, (16, 16)))
        line = [sys.executable, "-c", _CHILD, str(count), root, Path(folder) / "store"]
        out = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
    before, most = map(float, out.split())
    return {
        "what": "memory", "images": count, "before_MB": before, "peak_MB": most, "embedding_MB": most - before
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="image counts")
    given = parser.parse_args()
    rows = [speed_row(name, given.repeats) for name in SIZES]
    report("embed", [*rows, *(memory_row(count) for count in given.memory)], {"threads": 1})


if __name__ == "__main__":
    from covis.core.machine import prepare_process

    prepare_process()
    main()
