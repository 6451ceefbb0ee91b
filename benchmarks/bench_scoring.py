"""Scoring a Pittsburgh-250k-sized ranking (8,280 queries × 83,952 map images): ours against loops over queries.

The peers are restated in this file: the method's own evaluator, which looks up every query's row in a dense truth
matrix, once for each k, from HDF5 (as the original does) and from memory; and the community's evaluators, which test
every row of the ranking for membership in the query's list of positives. Loops cost the same for each query, so they
are measured on some queries and scaled up. Ours is measured whole, its memory in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np
from _common import cpu_seconds, peak_mb, report
from numpy.typing import NDArray

from covis.evaluation import Benchmark, evaluate, recall_at_k
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels import Radius
from covis.poses import Poses
from covis.ranking import Ranking

QUERIES, PANORAMAS, CUTOUTS, DEPTH = 8_280, 3_498, 24, 100
EXTENT_M = 2_000.0
KS = (1, 2, 3, 4, 5, 10, 15, 20, 25)
LOOPED = 400
"""Queries that the loops are measured on."""


def city() -> tuple[ImageSet, ImageSet]:
    """Panoramas strewn over a city, 24 cut-outs each, and queries near them."""
    rng = np.random.default_rng(0)
    places = rng.uniform(0, EXTENT_M, (PANORAMAS, 2))
    database = np.repeat(places, CUTOUTS, axis=0)
    queries = places[rng.integers(PANORAMAS, size=QUERIES)] + rng.normal(0, 8, (QUERIES, 2))
    return tuple(
        ImageSet.of(".", [f"{side}{i}.jpg" for i in range(len(xy))], Poses(xy, np.full(len(xy), np.nan)))
        for side, xy in (("q", queries), ("m", database))
    )


def ranked(relevant: SimilarityGraph) -> Ranking:
    """Rankings of a middling model: a positive at some rank for most queries, anything else elsewhere."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, relevant.shape[1], (QUERIES, DEPTH))
    for query in range(QUERIES):
        near, _ = relevant.row(query)
        if len(near) and rng.random() < 0.9:
            ids[query, int(rng.exponential(6)) % DEPTH] = rng.choice(near)
    return Ranking(ids, np.sort(rng.random(ids.shape).astype(np.float32), axis=1))


def dense_loop(truth: NDArray[np.bool_] | h5py.Dataset, ids: NDArray[np.int64]) -> dict[int, float]:
    """The method's evaluator: for each k and query, is there any positive, and is one among the first k."""
    recalls = {}
    for k in KS:
        hits = total = 0
        for query, row in enumerate(ids):
            if np.any(truth[query, :]):
                total += 1
                hits += np.any(truth[query, np.unique(row[:k])])
        recalls[k] = 100.0 * hits / total
    return recalls


def list_loop(positives: list[NDArray[np.int32]], ids: NDArray[np.int64]) -> dict[int, float]:
    """The community's evaluators: membership of the first k in the query's list, one query after another."""
    hits = np.zeros(len(KS))
    counted = 0
    for row, near in zip(ids, positives, strict=True):
        counted += len(near) > 0
        for at, k in enumerate(KS):
            if np.any(np.isin(row[:k], near)):
                hits[at:] += 1
                break
    return {k: 100.0 * value / counted for k, value in zip(KS, hits, strict=True)}


def loops(relevant: SimilarityGraph, ids: NDArray[np.int64]) -> dict[str, float]:
    """CPU seconds of each peer for all queries, after checking that it agrees with ours."""
    part = SimilarityGraph.from_edges(
        *_edges(relevant, LOOPED), np.ones(int(relevant.indptr[LOOPED])), (LOOPED, relevant.shape[1])
    )
    ours = recall_at_k(ids[:LOOPED], part, KS)
    dense = part.to_scipy().toarray() > 0
    lists = [part.row(query)[0] for query in range(LOOPED)]
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(Path(folder) / "truth.h5", "w") as handle:
            handle["sim"] = dense
        with h5py.File(Path(folder) / "truth.h5") as handle:
            for name, work in (
                ("method's loop, HDF5 truth", lambda: dense_loop(handle["sim"], ids[:LOOPED])),
                ("method's loop, truth in memory", lambda: dense_loop(dense, ids[:LOOPED])),
                ("list membership loop", lambda: list_loop(lists, ids[:LOOPED])),
            ):
                assert all(np.isclose(work()[k], ours[k]) for k in KS), name
                seconds[name] = cpu_seconds(work, repeats=1) * QUERIES / LOOPED
    return seconds


def _edges(relevant: SimilarityGraph, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    end = int(relevant.indptr[rows])
    return np.repeat(np.arange(rows), np.diff(relevant.indptr[: rows + 1])), relevant.indices[:end]


def whole() -> dict[str, float]:
    """Ours: CPU seconds of each step, and the peak memory of this process."""
    queries, database = city()
    relevant = Radius(25.0)(queries, database)
    ranking = ranked(relevant)
    benchmark = Benchmark("pitts250k_size", queries, database, relevant, "within 25 m", denominator="all")
    times = {
        "recall": cpu_seconds(lambda: recall_at_k(ranking, relevant, KS)),
        "evaluate": cpu_seconds(lambda: evaluate(ranking, benchmark), repeats=2),
        "label": cpu_seconds(lambda: Radius(25.0)(queries, database), repeats=2),
    }
    peak = peak_mb()
    return {**times, "peak_MB": peak, "pairs": relevant.pairs}


def main() -> None:
    if "--whole" in sys.argv:
        print(json.dumps(whole()))
        return
    child = subprocess.run([sys.executable, __file__, "--whole"], check=True, capture_output=True, text=True)
    ours = json.loads(child.stdout)
    queries, database = city()
    relevant = Radius(25.0)(queries, database)
    peers = loops(relevant, ranked(relevant).ids)
    rows = [{"way": "covis recall_at_k, 9 values of k", "cpu_s": ours["recall"], "times_ours": 1.0}]
    rows += [{"way": name, "cpu_s": s, "times_ours": s / ours["recall"]} for name, s in peers.items()]
    rows.append({"way": "covis evaluate (all figures, intervals)", "cpu_s": ours["evaluate"]})
    rows.append({"way": "covis relevance within 25 m", "cpu_s": ours["label"]})
    facts = {"queries": QUERIES, "database": len(database), "depth": DEPTH, "relevant_pairs": ours["pairs"]}
    report("scoring", rows, {**facts, "peak_MB": ours["peak_MB"], "looped_queries": LOOPED})
    print(f"peak memory of ours, labelling and scoring: {ours['peak_MB']:.0f} MB")


if __name__ == "__main__":
    main()
