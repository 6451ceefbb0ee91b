"""What noisy compasses cost: best matches of campus photos by how far apart they stand and how far they are turned.

Photos that look most alike and stand within 10 m of each other show the same thing, so their headings should agree; the
amount by which they differ is the compasses' noise, which bounds what a rule that demands 40° can reach.

    python -m evidence.bench_compass MODEL --data CAMPUS
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import datasets
from covis.describing.describers import open_describer
from covis.search import rank
from evidence.reporting import report

NEAR_M = 10.0
RULES = ((25.0, 40.0), (25.0, 60.0), (25.0, 90.0), (25.0, 180.0))
PARTS = 5


def best_matches(
    model: Path, data: Path, split: str
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Each photo's best match in other walks: descriptor distance, metres, degrees."""
    images = datasets.load("campus", data, split).queries
    vectors, lost = open_describer(model).describe(images)
    images = images.subset(~lost)
    ranking = rank(vectors, vectors, 1, images.group, images.group, "other")
    match = ranking.ids[:, 0]
    metres = np.linalg.norm(images.poses.xy - images.poses.xy[match], axis=1)
    turned = np.abs((images.poses.heading - images.poses.heading[match] + 180) % 360 - 180)
    return ranking.distances[:, 0], metres, turned


def rows(model: Path, data: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for split in ("train", "west"):
        distance, metres, turned = best_matches(model, data, split)
        for radius, angle in RULES:
            right = (metres <= radius) & (turned <= angle)
            entries.append(
                {"photos": split, "what": f"within {radius:.0f} m and {angle:.0f}°", "share": 100 * right.mean()}
            )
        near = metres <= NEAR_M
        order = np.argsort(distance[near])
        surest = turned[near][order[: len(order) // PARTS]]
        what = f"surest fifth within {NEAR_M:.0f} m, turned"
        entries.append({"photos": split, "what": f"{what}, median °", "share": float(np.median(surest))})
        entries.append({"photos": split, "what": f"{what} by more than 40°", "share": 100 * (surest > 40).mean()})
    return entries


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    if given.model is None or given.data is None:
        print("not measured: give a model and --data, the campus photographs")
    else:
        report("compass", rows(given.model, given.data))
