"""Surface labels: all pairs of 1,000 images × 100,000 points, against numpy boolean masks.

Run: python benchmarks/bench_surface.py [--quick]. CPU seconds of one thread each, in one run, from poses and points to
the IoU of every pair. The peer projects with matrix products and counts shared points by `count_nonzero(a & b)`, the
fastest of the plain ways in numpy.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
import time
from pathlib import Path

import numpy as np
from _common import cpu_seconds, report
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "labels"))

from rooms import cameras, room, seen

from covis.images import ImageSet
from covis.labels import SurfaceOverlap
from covis.labels.clouds import PointCloud

QUICK = "--quick" in sys.argv
IMAGES, POINTS = (200, 20_000) if QUICK else (1_000, 100_000)


def masks_iou(images: ImageSet, xyz: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU of every pair i < j from boolean masks."""
    masks = seen(images, xyz)
    count = masks.sum(axis=1)
    iou = np.zeros((len(images), len(images)))
    for i in range(len(images)):
        for j in range(i + 1, len(images)):
            common = np.count_nonzero(masks[i] & masks[j])
            iou[i, j] = common / max(1, count[i] + count[j] - common)
    return iou


def main() -> None:
    xyz, images = room(POINTS), cameras(IMAGES)
    cloud = PointCloud(xyz)
    start = time.process_time()
    expected = masks_iou(images, xyz)
    peer = time.process_time() - start
    rule = SurfaceOverlap(cloud)
    graph = rule(images, images)
    ours = cpu_seconds(lambda: rule(images, images), 7)
    row = {
        "what": f"{IMAGES} images × {POINTS} points",
        "ours_s": ours,
        "pairs": graph.pairs,
        "wanted": "≥ 40×",
        "numpy_s": peer,
        "ratio": peer / ours,
        "largest_difference": float(np.abs(np.triu(graph.to_scipy().toarray(), 1) - expected).max()),
    }
    report("surface", [row], {"quick": QUICK})


if __name__ == "__main__":
    main()
