"""Would packing 100,000 small files pay? Reading them one by one against tar shards, with nothing of them in memory.

Files have the mean size of MSLS images. A sampler asks for images in random order: from files, or from shards by offset.
Shards in webdataset's layout are read from their beginning to their end, so that their order is fixed when they are packed.
The kernel is told to forget the content of everything first; names stay known, as covis looks at every file when a run starts.

Run: python benchmarks/bench_packing.py [FOLDER on the disk in question]
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from _common import report

FILES, BYTES, SHARD, READ, THREADS = 100_000, 35_000, 1_000, 4_000, 8


def write(root: Path) -> tuple[list[Path], list[Path]]:
    """The files in folders of 1,000, and the same content in tar shards."""
    content = np.random.default_rng(0).bytes(BYTES)
    files, shards = [], []
    for first in range(0, FILES, SHARD):
        folder = root / "files" / f"{first // SHARD:03d}"
        folder.mkdir(parents=True)
        shards.append(root / f"{first // SHARD:03d}.tar")
        with tarfile.open(shards[-1], "w") as archive:
            for k in range(first, first + SHARD):
                files.append(folder / f"{k:06d}.jpg")
                files[-1].write_bytes(content)
                entry = tarfile.TarInfo(files[-1].name)
                entry.size = BYTES
                archive.addfile(entry, io.BytesIO(content))
    return files, shards


def forget(paths: Iterable[Path]) -> None:
    """Drops the content of files from memory."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_tar(shard: Path) -> int:
    """A whole shard in its order; how many images it holds."""
    with tarfile.open(shard, "r|") as archive:
        return sum(bool(archive.extractfile(entry).read()) for entry in archive)  # type: ignore[union-attr]


def seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def main() -> None:
    root = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        files, shards = write(root)
        os.sync()
        rng = np.random.default_rng(1)
        some = [files[k] for k in rng.choice(FILES, READ, replace=False)]
        places = [(shards[k // SHARD], k % SHARD) for k in rng.choice(FILES, READ, replace=False).tolist()]
        step = 512 + -(-BYTES // 512) * 512  # header and padded content

        def at_offset(place: tuple[Path, int]) -> bytes:
            with place[0].open("rb", buffering=0) as handle:
                return os.pread(handle.fileno(), BYTES, place[1] * step + 512)

        rows = []
        for threads in (1, THREADS):
            with ThreadPoolExecutor(threads) as pool:
                ways: dict[str, Callable[[], object]] = {
                    "files, random order": lambda pool=pool: list(pool.map(Path.read_bytes, some)),
                    "tar shards by offset, random order": lambda pool=pool: list(pool.map(at_offset, places)),
                    "tar shards from beginning to end": lambda pool=pool: list(
                        pool.map(read_tar, shards[: READ // SHARD])
                    ),
                }
                for way, work in ways.items():
                    forget((*files, *shards))
                    rows.append({"read": way, "threads": threads, "ms_per_image": 1000 * seconds(work) / READ})
        looked = seconds(lambda: [path.stat() for path in files])
        report("packing", rows, {"files": FILES, "bytes": BYTES, "stat_of_all_s": looked})
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
