"""What an answer of `covis locate` costs: the first of a fresh process, and each further photo.

    python -m evidence.bench_locate MAP… --photos FOLDER

CPU seconds of the whole command, in the program and in the kernel: minimum, median and maximum of several runs, and for
further photos also the seconds on the clock with all cores at work. Beside them stands how fast one core multiplies
matrices in numpy, which bounds the speed of a network.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._common import cpu_seconds
from evidence.reporting import report

MORE = 16


class Spent(NamedTuple):
    """Seconds of a command: of processors, and on the clock."""

    cpu: float
    clock: float


def spent(arguments: list[str]) -> Spent:
    """CPU and clock seconds of a `covis` command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "covis", *arguments], check=True, capture_output=True)
    after, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock)


def median(runs: list[Spent]) -> Spent:
    """The median of CPU and of clock seconds, each by itself."""
    return Spent(*(statistics.median(column) for column in zip(*runs, strict=True)))


def gflops(side: int = 1536) -> float:
    """Billions of floating-point operations per second of one core, in a product of matrices."""
    a = np.random.default_rng(0).random((side, side), np.float32)
    return 2 * side**3 / cpu_seconds(lambda: a @ a) / 1e9


def main() -> None:
    """Locates one photo, then some more, for each map."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maps", nargs="*", type=Path)
    parser.add_argument("--photos", type=Path, help="a folder with at least 17 photos")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    if not given.maps or given.photos is None:
        print("not measured: give maps, and --photos, a folder")
        return
    from covis.core.machine import cpu_count
    from covis.maps.map import Map

    photos = sorted(map(str, given.photos.glob("*.jpg")))[: MORE + 1]
    rows = []
    for path in given.maps:
        spent(["locate", str(path), photos[0]])
        cold = [spent(["locate", str(path), photos[0]]) for _ in range(given.repeats)]
        many = [spent(["locate", str(path), *photos]) for _ in range(3)]
        opened = Map.open(path)
        first, more = median(cold), median(many)
        rows.append(
            {
                "network": opened.network.backbone, "photos": len(opened), "cold_s": first.cpu, "least_s": min(cold).cpu,
                "most_s": max(cold).cpu, "next_s": (more.cpu - first.cpu) / MORE,
                "next_clock_s": (more.clock - first.clock) / MORE,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    report("locate", rows, {"gflops_of_one_core": gflops(), "cores": cpu_count()})


if __name__ == "__main__":
    main()
