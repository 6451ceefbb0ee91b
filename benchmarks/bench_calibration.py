"""What a map promises against what happens, on walks that it has never seen.

A table of photos is cut by its groups (walks): maps are made of four fifths of them, each with its own calibration, and
the photos of the other walks are asked. Every photo is asked once in each repeat. Beside each promise stands what came
true: P by its expected calibration error, the radius by the share of true positions inside it, confident answers by
their precision, and the fused position by its error beside that of the best match.

    python benchmarks/bench_calibration.py --table photos.csv --model MODEL

Without arguments it takes the campus photos and DINOv2 weights of `../shared/data`, if they are there, and the recipe
that is recommended for own photos, fitted without labels to the first table.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _common import report

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WEIGHTS = SHARED / "weights" / "dinov2_vits14_reg_fp16.safetensors"
RATES = (0.5, 0.8, 0.9)
PRECISIONS = (0.99, 0.9, 0.8)
FOLDS = 5


def recommended(images, folder: Path):
    """The recommended recipe, its clusters and whitening fitted to `images`."""
    from covis import experiments
    from covis.experiments.photos import RECOMMENDED
    from covis.maps.fitting import fit_model
    from covis.models import PlaceModel
    from covis.training.recipe import configure

    recipe = configure(experiments.get(RECOMMENDED), [f"model.weights={WEIGHTS}"])
    return PlaceModel.load(fit_model(images, recipe, folder, enough=len(images) + 1).model)


def asked(images, store, model, seed: int) -> Iterator[np.ndarray]:
    """For each fifth of the walks a table (Q, 11): walk, P, right, error of the best and of the fused position, radii, sure."""
    from covis.maps.fusion import PLACE_RADIUS_M
    from covis.maps.map import Map

    walk = np.asarray(images.group)
    fold = np.random.default_rng(seed).permutation(walk.max() + 1)[walk] % FOLDS
    for part in range(FOLDS):
        with tempfile.TemporaryDirectory() as folder:
            town = Map.create(Path(folder) / "map", images.subset(fold != part), model, descriptors=store)
            queries = np.flatnonzero(fold == part)
            judged = town.judge()(np.asarray(store[store.rows(images.names[queries])], np.float32), 5)
        truth, p = images.poses.xy[queries], judged.probability[:, 0]
        best = np.hypot(*(town.images.poses.xy[judged.ranking.ids[:, 0]] - truth).T)
        fused = np.hypot(*(judged.fused.xy - truth).T)
        radii = [town.calibration.radius_m(p, rate) for rate in RATES]
        bars = [town.calibration.threshold(precision) for precision in PRECISIONS]
        sure = [np.zeros(len(p)) if bar is None else p >= bar for bar in bars]
        yield np.column_stack([walk[queries], p, best <= PLACE_RADIUS_M, best, fused, *radii, *sure])


def row(name: str, images, store, model, repeats: int) -> dict:
    """Shares in percent, lengths in metres."""
    from covis.maps.probability import expected_calibration_error

    found = np.concatenate([table for seed in range(repeats) for table in asked(images, store, model, seed)])
    _, p, right, best, fused = found[:, :5].T
    told = {"right": 100 * right.mean(), "calibration_error": 100 * expected_calibration_error(p, right)}
    for i, rate in enumerate(RATES):
        radius = found[:, 5 + i]
        told |= {f"within_{rate:.0%}": 100 * np.mean(fused <= radius), f"radius_{rate:.0%}_m": np.median(radius)}
    for i, precision in enumerate(PRECISIONS):
        sure = found[:, 5 + len(RATES) + i] > 0
        told |= {f"confident_{precision:.0%}": 100 * sure.mean(),
                 f"precision_{precision:.0%}": 100 * right[sure].mean() if sure.any() else np.nan}  # fmt: skip
    for label, error in (("best", best), ("fused", fused)):
        told |= {f"{label}_m": np.median(error), f"{label}_where_right_m": error[right > 0].mean()}
    figures = {key.replace("%", ""): None if np.isnan(value) else float(value) for key, value in told.items()}
    return {"what": name, "photos": len(images), "walks": len(images.group_names), "maps": repeats * FOLDS, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, nargs="*", help="photos with positions and groups")
    parser.add_argument("--model", type=Path, help="a model directory")
    parser.add_argument("--store", type=Path, help="folder that keeps the descriptors for another run")
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    tables = given.table or [SHARED / "campus" / "train.csv", SHARED / "campus" / "west.csv"]
    if not all(table.is_file() for table in tables) or not (given.model or WEIGHTS.is_file()):
        print("no photos here: give --table and --model")
        return

    from covis.describing.embedding import embed
    from covis.models import PlaceModel
    from covis.reading.table import read_table

    with tempfile.TemporaryDirectory() as folder:
        kept, rows = given.store or Path(folder), []
        model = PlaceModel.load(given.model) if given.model else recommended(read_table(tables[0]), kept / "fitted")
        for table in tables:
            images = read_table(table)
            store = embed(model, images, kept / f"{table.stem}.store")
            images = images.subset(store.rows(images.names) >= 0)
            rows.append(row(table.stem, images, store, model, given.repeats))
    report("calibration", rows, {"model": given.model.name if given.model else "own_photos, fitted to the first table"})


if __name__ == "__main__":
    main()
