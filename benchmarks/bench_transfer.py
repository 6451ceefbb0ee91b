"""One model for places of several kinds: clusters of MobileNetV2 fitted on the campus, whitenings fitted on more and more sets.

The model is that of `campus_mobilenetv2_depths` before whitening. Its descriptors are whitened to 1,024 numbers by the
training photos of the campus alone, or of the campus, Cambridge and the race track together (by PCA, and learned from poses:
25 m, squared), and scored on the part of each set that nothing was fitted on. `covis reproduce transfer` fits the clusters on
all three as well.

    python benchmarks/bench_transfer.py MODEL --data DATA [--stored FOLDER]

DATA holds the folders campus, cambridge and racetrack; FOLDER has descriptors as `covis embed` would give them, SET.npy of
campus, cambridge, racetrack (train, in the order of the tables) and campus_west, cambridge_val, racetrack_val.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from _common import report

from covis import datasets
from covis.datasets.surveys import JOINED, PARTS
from covis.evaluation import load_benchmark
from covis.evaluation.retrieval import evaluate_descriptors, fit_whitening
from covis.images import ImageSet
from covis.reading.table import read_table
from covis.whitening import PCA, WhiteningRule

DIM = 1024
VALS = {"campus": "campus_west", "cambridge": "cambridge_val", "racetrack": "racetrack_val"}
FITS = {
    "campus, PCA": (("campus",), PCA),
    "all three, PCA": (PARTS, PCA),
    "all three, graded labels": (PARTS, WhiteningRule(labels="graded")),
}


class Source:
    """Descriptors by photo: stored ones of whole tables, or a model's."""

    def __init__(self, model: Path | None, stored: Path | None) -> None:
        self.model, self.stored = model, stored

    def describe(self, name: str, table: Path, images: ImageSet) -> np.ndarray:
        """(N, dim) descriptors of images of a table, in their own order."""
        if self.stored is None:
            from covis.describing.describers import open_describer

            assert self.model is not None
            return open_describer(self.model).describe(images)[0]
        whole = read_table(table)
        row = {bytes(n).split(b"/")[-1]: i for i, n in enumerate(whole.names)}
        vectors = np.load(self.stored / f"{name}.npy", mmap_mode="r")
        return np.asarray(vectors[[row[bytes(n).split(b"/")[-1]] for n in images.names]])


def rows(data: Path, source: Source) -> list[dict[str, Any]]:
    """A row for each fit, with Recall@1 of each set."""
    joined = datasets.load(JOINED, data, "train").queries
    part = np.array([name.split("/")[0] for name in joined.group_names])[joined.group]
    train = {p: source.describe(p, data / p / "train.csv", joined.subset(part == p)) for p in PARTS}
    vectors = np.concatenate([train[p] for p in PARTS])
    sides = {}
    for name, benchmark in VALS.items():
        found = load_benchmark(benchmark, data / name)
        table = data / name / ("west.csv" if name == "campus" else "val.csv")
        queries = source.describe(benchmark, table, found.queries)
        sides[name] = (queries, queries if found.one_set else source.describe(benchmark, table, found.database), found)
    told = []
    for label, (parts, rule) in FITS.items():
        mine = np.isin(part, parts)
        whitening = fit_whitening(joined.subset(mine), vectors[mine], DIM, rule)
        row: dict[str, Any] = {"whitening": label}
        for name, (queries, database, benchmark) in sides.items():
            white = whitening(queries)
            evaluation = evaluate_descriptors(white, white if database is queries else whitening(database), benchmark)
            row |= {f"{name}_r{k}": evaluation.recall[k] for k in (1, 5)}
            row |= {f"{name}_ndcg": evaluation.figures["ndcg@10"]}
        told.append(row)
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--stored", type=Path)
    given = parser.parse_args()
    if given.data is None or (given.model is None and given.stored is None):
        print("not measured: give a model or --stored, and --data, the folder of campus, cambridge and racetrack")
    else:
        report("transfer", rows(given.data, Source(given.model, given.stored)))
