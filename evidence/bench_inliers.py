"""What shared local features add to a map's probability, on walks that it has never seen.

Maps are made of four fifths of a table's walks as `covis index` makes them, and queried with photos of the other walks:
by descriptors and agreement alone, and with inliers counted between a photo and its first five matches, as `covis index
--inliers` and `covis locate --inliers` do. The probability with inliers is learned from 400 photos of a map; for a fair
comparison, the one without them is also learned from the same 400.

    python -m evidence.bench_inliers --table photos.csv --weights backbone.safetensors sift xfeat=xfeat.onnx

Without arguments it takes the campus photos and the weights of `../shared/data`, if they are there.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evidence.own_map import SHARED, TABLES, WEIGHTS, Photos, as_map, described, finished, folds, whiten
from evidence.reporting import report

if TYPE_CHECKING:
    from covis.search.local import LocalReranker

FOLDS = 5
PRECISION = 0.9
ALONE, SAME = "none", "none, the same 400 photos"
NAMES = ("sift", f"xfeat={SHARED / 'weights' / 'local' / 'xfeat.onnx'}")


def asked(
    photos: Photos, known: NDArray[np.int64], new: NDArray[np.int64], names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Name → P, right and confident of each query photo, and CPU seconds, by a map that counts such inliers."""
    from covis.core.machine import cpu_seconds
    from covis.evaluation.whitening_fits import affordable
    from covis.maps.calibration import calibrate
    from covis.maps.locating import Judge
    from covis.maps.settings import EVIDENCE
    from covis.maps.whitening import choose_whitening, shared_dims
    from covis.poses import PLACE_M
    from covis.search import rank
    from covis.search.local import LocalReranker
    from covis.whitening import moments

    images, raw = as_map(photos.images, known), photos.raw[known]
    dim = affordable(photos.recipe.whiten, len(images))
    with moments(raw, shared_dims(dim, raw), fewer=True) as fitted:
        choice = choose_whitening(images, fitted, dim, photos.recipe.labels)
    white, questions = whiten(choice.whitening, raw), whiten(choice.whitening, photos.raw[new])
    held, truth = choice.held_out(), photos.images.poses.xy[new]
    judge = Judge(images, lambda vectors, k: rank(vectors, white, k), None, descriptors=white)
    results = {}
    for name in (ALONE, SAME, *names):
        if name in (ALONE, SAME):
            learned = held if name == ALONE else held.some(EVIDENCE.inlier_photos)
            judge = replace(judge, calibration=calibrate(images, white, held=learned), inliers=None)
        else:
            count = partial(_count, LocalReranker.parse(name), [photos.images.path(int(i)) for i in known])
            calibration = calibrate(images, white, held=held.some(EVIDENCE.inlier_photos), inliers=count)
            taken = [photos.images.path(int(i)) for i in new]
            judge = replace(judge, calibration=calibration, inliers=partial(count, taken))
        started = cpu_seconds()
        judged = judge(questions, 5)
        seconds, p = cpu_seconds() - started, judged.probability[:, 0]
        error = np.hypot(*(images.poses.xy[judged.ranking.ids[:, 0]] - truth).T)
        sure = p >= (judge.calibration.threshold(PRECISION) or 9.0)
        results[name] = {"p": p.tolist(), "right": (error <= PLACE_M).tolist(), "sure": sure.tolist(), "cpu_s": seconds}
    return results


def _count(
    local: LocalReranker, files: list[Path], asked: Sequence[Path] | NDArray[np.int64], matches: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Inliers between photos and their matches in the map; a photo is a file, or the number of one of the map's own."""
    return local.count([files[photo] if isinstance(photo, np.integer) else photo for photo in asked], files, matches)


def row(name: str, maps: list[dict[str, Any]], walk: NDArray[np.int32]) -> dict[str, Any]:
    """Shares in percent over all maps; an interval over walks."""
    from covis.evaluation.statistics import bootstrap_interval
    from covis.logistic import expected_calibration_error

    p, right, sure = (np.concatenate([made[name][key] for made in maps]) for key in ("p", "right", "sure"))
    low, high = 100 * bootstrap_interval(right[sure].astype(float), walk[sure])[0] if sure.any() else (np.nan, np.nan)
    seconds = sum(made[name]["cpu_s"] for made in maps) - sum(made[ALONE]["cpu_s"] for made in maps)
    return {
        "inliers of": name.partition("=")[0], "right": 100 * right.mean(), "ECE": 100 * expected_calibration_error(p, right),
        "answered": 100 * sure.mean(), "kept": 100 * right[sure].mean(), "low": float(low), "high": float(high),
        "Brier": float(np.mean((p - right) ** 2)), "cpu_ms_per_photo": 0.0 if name in (ALONE, SAME) else 1000 * seconds / len(p),
    }  # fmt: skip


def main() -> None:
    """Locates every photo of a table once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help="local features, as covis index --inliers has them")
    parser.add_argument("--table", type=Path, default=TABLES[1], help="photos with positions and groups")
    parser.add_argument("--weights", type=Path, default=WEIGHTS[1], help="backbone (.safetensors)")
    parser.add_argument("--keep", type=Path, help="folder that keeps descriptors and finished maps for another run")
    parser.add_argument(
        "--maps", type=int, default=FOLDS, help="how many of the maps are asked, each by a fifth of the walks"
    )
    given = parser.parse_args()
    if not given.table.is_file() or not given.weights.is_file():
        print("no photos here: give --table and --weights")
        return
    names = tuple(given.names)
    kinds = "-".join(name.partition("=")[0] for name in names)
    with tempfile.TemporaryDirectory() as folder:
        keep = given.keep or Path(folder)
        photos = described(given.table, given.weights, keep)
        parts = list(folds(photos.images, FOLDS, 0))[: given.maps]
        maps = []
        for number, (known, new) in enumerate(parts):
            make = partial(asked, photos, known, new, names)
            maps.append(finished(keep, f"inliers-{given.table.stem}-{given.weights.stem}-{kinds}-{number}", make))
            print(f"map {number + 1} of {len(parts)}", flush=True)
    walk = np.concatenate([np.asarray(photos.images.group)[new] for _, new in parts])
    rows = [row(name, maps, walk) for name in (ALONE, SAME, *names)]
    facts = {"table": given.table.stem, "photos": len(walk), "walks": len(np.unique(walk)), "backbone": photos.backbone}
    report("inliers", rows, facts | {"maps": len(maps), "precision": PRECISION})


if __name__ == "__main__":
    main()
