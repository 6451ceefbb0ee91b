"""What a map promises against what happens, on walks that it has never seen.

A table of photos is cut by its groups (walks): maps are made of four fifths of them as `covis index` makes them, each
with its own whitening and calibration, and queried with photos of the other walks. Every photo is a query once, in
small tables twice. Each promise is compared with the outcome: P by its expected calibration error, the radius by the
share of true positions inside it, confident answers by their precision (with a 95 % interval over walks), and the fused
position by its error beside that of the best match.

    python -m evidence.bench_calibration --table photos.csv --weights backbone.safetensors --keep FOLDER

Without arguments it takes the campus photos and the weights of `../shared/data`, if they are there.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evidence.own_map import TABLES, WEIGHTS, Photos, as_map, described, finished, folds, whiten
from evidence.reporting import report

if TYPE_CHECKING:
    from covis.ranking import Ranking

RATES = (0.5, 0.8, 0.9)
PRECISIONS = (0.99, 0.95, 0.9, 0.8)
FOLDS = 5
ENOUGH = 2500
"""Number of queries from which on figures are steady."""


def asked(
    photos: Photos, known: NDArray[np.int64], new: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float, float | None]:
    """(Q, 13) of the query photos: walk, P, right, error of the best match and of the fused position, radii, sure.

    Also the share of right answers that the map expects of itself, and the precision that it promises.
    """
    from covis.evaluation.whitening_fits import affordable
    from covis.maps.calibration import calibrate
    from covis.maps.locating import Judge
    from covis.maps.whitening import choose_whitening, shared_dims
    from covis.poses import PLACE_M
    from covis.search import rank
    from covis.whitening import moments

    images, raw = as_map(photos.images, known), photos.raw[known]
    dim = affordable(photos.recipe.whiten, len(images))
    with moments(raw, shared_dims(dim, raw), fewer=True) as fitted:
        choice = choose_whitening(images, fitted, dim, photos.recipe.labels)
    white = whiten(choice.whitening, raw)
    calibration = calibrate(images, white, held=choice.held_out())
    judge = Judge(images, partial(_search, rank, white), calibration, descriptors=white)
    judged = judge(whiten(choice.whitening, photos.raw[new]), 5)
    truth, p = photos.images.poses.xy[new], judged.probability[:, 0]
    best = np.hypot(*(images.poses.xy[judged.ranking.ids[:, 0]] - truth).T)
    fused = np.hypot(*(judged.fused.xy - truth).T)
    radii = [calibration.radius_m(p, rate) for rate in RATES]
    promised = calibration.promised()
    sure = [p >= (calibration.threshold(q) or 9.0) for q in (*PRECISIONS, promised or 0.999)]
    walk = np.asarray(photos.images.group)[new]
    table = np.column_stack([walk, p, best <= PLACE_M, best, fused, *radii, *sure])
    return table, calibration.summary()["right"], promised


def _search(
    rank: Callable[[NDArray[np.float32], NDArray[np.float32], int], Ranking],
    white: NDArray[np.float32],
    vectors: NDArray[np.float32],
    k: int,
) -> Ranking:
    return rank(vectors, white, k)


def one_map(table: Path, weights: Path, keep: Path, *, seed: int, part: int) -> dict[str, Any]:
    """The outcome of one map, as JSON."""
    photos = loaded(table, weights, keep)
    answers, itself, promised = asked(photos, *list(folds(photos.images, FOLDS, seed))[part])
    counts = {"photos": len(photos.images), "walks": len(photos.images.group_names), "backbone": photos.backbone}
    return {"answers": answers.tolist(), "self": itself, "promised": promised, **counts}


loaded = cache(described)


def row(table: Path, weights: Path, keep: Path, repeats: int | None) -> dict[str, Any]:
    """Shares in percent, lengths in metres."""
    from covis.evaluation.statistics import bootstrap_interval
    from covis.logistic import expected_calibration_error

    maps: list[dict[str, Any]] = []
    while len(maps) < (FOLDS * repeats if repeats else FOLDS) or (
        repeats is None and len(maps) < FOLDS * np.ceil(ENOUGH / maps[0]["photos"])
    ):
        seed, part = divmod(len(maps), FOLDS)
        make = partial(one_map, table, weights, keep, seed=seed, part=part)
        maps.append(finished(keep, f"calibration-{table.stem}-{weights.stem}-{seed}-{part}", make))
    answers = np.concatenate([np.array(made["answers"]) for made in maps])
    walk, p, right, best, fused = answers[:, :5].T
    summary = {"right": 100 * right.mean(), "self": 100 * np.mean([made["self"] for made in maps]),
               "calibration_error": 100 * expected_calibration_error(p, right)}  # fmt: skip
    for i, rate in enumerate(RATES):
        radius = answers[:, 5 + i]
        summary |= {f"within_{rate:.0%}": 100 * np.mean(fused <= radius), f"radius_{rate:.0%}_m": np.median(radius)}
    for i, name in enumerate([*(f"{precision:.0%}" for precision in PRECISIONS), "auto"]):
        sure = answers[:, 5 + len(RATES) + i] > 0
        low, high = 100 * bootstrap_interval(right[sure], walk[sure])[0] if sure.any() else (np.nan, np.nan)
        summary |= {f"confident_{name}": 100 * sure.mean(),
                    f"precision_{name}": 100 * right[sure].mean() if sure.any() else np.nan,
                    f"precision_{name}_low": low, f"precision_{name}_high": high}  # fmt: skip
    for label, error in (("best", best), ("fused", fused)):
        summary |= {f"{label}_m": np.median(error), f"{label}_where_right_m": error[right > 0].mean()}
    figures = {key.replace("%", ""): None if np.isnan(value) else float(value) for key, value in summary.items()}
    counts = {"photos": maps[0]["photos"], "walks": maps[0]["walks"], "maps": len(maps)}
    promises = {"promised": [made["promised"] for made in maps]}
    return {"table": table.stem, "backbone": maps[0]["backbone"], **counts, **figures, **promises}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, nargs="*", default=TABLES, help="photos with positions and groups")
    parser.add_argument("--weights", type=Path, nargs="*", default=WEIGHTS, help="backbones (.safetensors)")
    parser.add_argument("--keep", type=Path, help="folder that keeps descriptors and finished tables for another run")
    parser.add_argument("--repeats", type=int, help=f"of the folds (default: until {ENOUGH:,} photos were asked)")
    given = parser.parse_args()
    if not all(path.is_file() for path in (*given.table, *given.weights)):
        print("no photos here: give --table and --weights")
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for weights in given.weights:
            for table in given.table:
                rows.append(row(table, weights, given.keep or Path(folder), given.repeats))
                print(rows[-1], flush=True)
    report("calibration", rows)


if __name__ == "__main__":
    main()
