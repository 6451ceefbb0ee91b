"""Images per CPU second from JPEG files to batches, beside a plain Pillow + torch Dataset; memory of a worker.

Both give uint8 batches (B, 3, H, W) of the same size. One thread each. Photographs are simulated (noise that falls off
with frequency, little colour), so that their files are as large as real ones: about 200 kB for 1024×768 at quality 90.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import report
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from covis.describing.loading import image_batches
from covis.images import ImageSet
from covis.poses import Poses

FILES, BATCH = 96, 32
CASES = (((768, 1024), (224, 224)), ((768, 1024), (480, 640)), ((480, 640), (224, 224)), ((480, 640), (480, 640)))
"""(height, width) of the files and of the batches."""


def photographs(folder: Path, size: tuple[int, int]) -> ImageSet:
    """JPEG files of quality 90."""
    rng = np.random.default_rng(0)
    decay = np.hypot(np.fft.fftfreq(size[0])[:, None], np.fft.rfftfreq(size[1]))
    decay[0, 0] = 1
    decay **= 1.5
    colour = np.array([[1, 1, 1], [0.2, 0, -0.2], [0.1, -0.2, 0.1]])
    names = []
    for i in range(FILES):
        waves = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(3, *size))) / decay, s=size)
        waves = np.einsum("chw,cd->dhw", waves / waves.std() * 50, colour) + 120
        names.append(f"{size[1]}_{i}.jpg")
        Image.fromarray(waves.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)).save(folder / names[-1], quality=90)
    return ImageSet.of(folder, names, Poses(np.zeros((FILES, 2)), np.zeros(FILES)))


class Plain(Dataset[torch.Tensor]):
    """What one writes first: a list of paths, Pillow, one tensor at a time."""

    def __init__(self, paths: list[str], size: tuple[int, int]) -> None:
        self.paths, self.size = paths, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        image = Image.open(self.paths[i]).convert("RGB").resize(self.size[::-1], Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def ours(images: ImageSet, size: tuple[int, int], workers: int) -> Iterator[Any]:
    """covis' batches."""
    return image_batches(images, None, size, BATCH, workers)


def plain(images: ImageSet, size: tuple[int, int], workers: int) -> Iterator[Any]:
    """The plain loop's batches."""
    paths = [str(images.path(i)) for i in range(len(images))]
    return iter(DataLoader(Plain(paths, size), BATCH, num_workers=workers))


def rate(way: Any, images: ImageSet, size: tuple[int, int], workers: int) -> float:
    """Images per second of CPU time, children included; the best of three."""
    best = 0.0
    for _ in range(3):
        start = _cpu()
        for _batch in way(images, size, workers):
            pass
        best = max(best, len(images) / (_cpu() - start))
    return best


def _cpu() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def worker_growth_mb(way: Any, images: ImageSet) -> float:
    """How much private memory a worker gains over an epoch of a million names, from an early batch to a late one."""
    stream = way(images, (8, 8), 1)
    early = late = 0.0
    for k, _batch in enumerate(stream):
        if k == 20:
            early = _private_mb()
        if k == 1500:
            late = _private_mb()
            break
    del stream
    time.sleep(0.5)
    return late - early


def _private_mb() -> float:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = [line for pid in children for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


def main() -> None:
    """Speed in each case, then memory."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="covis-loading-") as folder:
        for files, size in CASES:
            images = photographs(Path(folder), files)
            for workers in (0, 1):
                mine, theirs = (rate(way, images, size, workers) for way in (ours, plain))
                rows.append(
                    {
                        "files": f"{files[1]}×{files[0]}",
                        "batches": f"{size[1]}×{size[0]}",
                        "workers": workers,
                        "covis_per_s": mine,
                        "plain_per_s": theirs,
                        "ratio": mine / theirs,
                    }
                )
        tiny = Path(folder) / "tiny.jpg"
        Image.new("RGB", (8, 8)).save(tiny)
        names = np.full(1_000_000, b"tiny.jpg", "S40")
        million = ImageSet.of(folder, names, Poses(np.zeros((len(names), 2)), np.zeros(len(names))))
        growth = {"covis_MB": worker_growth_mb(ours, million), "plain_MB": worker_growth_mb(plain, million)}
    report("loading", rows, {"worker_growth_of_48000_images_among_a_million": growth})
    print(
        f"\na worker's private memory grows by {growth['covis_MB']:.1f} MB (covis), {growth['plain_MB']:.1f} MB (plain)"
    )


if __name__ == "__main__":
    main()
