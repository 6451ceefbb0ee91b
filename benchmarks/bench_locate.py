"""What an answer of `covis locate` costs: the first of a fresh process, and each further photo.

    python benchmarks/bench_locate.py MAP… --photos FOLDER

CPU seconds, program and kernel, of the whole command; the least, the median and the most of several. Beside it the products of
matrices that one core does per second, by numpy: what a network needs at least.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from _common import cpu_seconds, report

MORE = 16


def spent(arguments: list[str]) -> float:
    """CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "covis", *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def gflops(side: int = 1536) -> float:
    """Billions of floating-point operations per second of one core, in a product of matrices."""
    a = np.random.default_rng(0).random((side, side), np.float32)
    return 2 * side**3 / cpu_seconds(lambda: a @ a) / 1e9


def main() -> None:
    """Locates one photo, then some more, for each map."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maps", nargs="+", type=Path)
    parser.add_argument("--photos", type=Path, required=True, help="a folder with at least 17 photos")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    from covis.maps.map import Map

    photos = sorted(map(str, given.photos.glob("*.jpg")))[: MORE + 1]
    rows = []
    for path in given.maps:
        spent(["locate", str(path), photos[0]])
        cold = [spent(["locate", str(path), photos[0]]) for _ in range(given.repeats)]
        many = [spent(["locate", str(path), *photos]) for _ in range(3)]
        opened = Map.open(path)
        rows.append({"network": opened.backbone, "photos": len(opened), "cold_s": statistics.median(cold), "least_s": min(cold),
                     "most_s": max(cold), "next_s": (statistics.median(many) - statistics.median(cold)) / MORE})  # fmt: skip
        print(rows[-1], flush=True)
    report("locate", rows, {"gflops_of_one_core": gflops()})


if __name__ == "__main__":
    main()
