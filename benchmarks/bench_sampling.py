"""500 000 graded pairs: our sampler against scanning the dense label row of each query, one thread each.

The peer draws the kind of each pair, scans the query's row of a dense matrix for candidates and takes one, like
training code that keeps labels as matrices. Its row is in memory here; reading it from disk would only add to its time.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from _common import cpu_seconds, report
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses
from covis.sampling import AllPairs, AllPairsSampler, Pairs, PairSampler, Tuples, TupleSampler

PAIRS, REACH_M = 500_000, 100.0
QUERIES = 50_000
MAPS = {20_000: 2_500.0, 50_000: 4_000.0}
"""Map images → extent of the city in metres: about 60 overlapping images per query."""
SCANNED_ROWS, SCANNED_PAIRS = 2_000, 20_000
"""The peer is measured on this many queries and pairs and scaled up: every pair costs it the same."""


def photos(n: int, extent_m: float, rng: np.random.Generator) -> ImageSet:
    """Photos strewn over a city."""
    poses = Poses(rng.uniform(0, extent_m, (n, 2)), rng.uniform(0, 360, n))
    return ImageSet.of(".", [str(k) for k in range(n)], poses)


def label(queries: ImageSet, database: ImageSet) -> SimilarityGraph:
    """ψ that falls with distance and angle; what it is made of does not matter to a sampler."""
    trees = [cKDTree(s.poses.xy) for s in (queries, database)]
    near = trees[0].sparse_distance_matrix(trees[1], REACH_M, output_type="coo_matrix")
    turn = np.abs((queries.poses.heading[near.row] - database.poses.heading[near.col] + 180) % 360 - 180)
    psi = np.clip(1.2 - near.data / REACH_M, 0, 1) * np.clip(1.2 - turn / 90, 0, 1)
    return SimilarityGraph.from_edges(near.row, near.col, psi, near.shape)


def scan_rows(dense: NDArray[np.float32], pairs: int, seed: int) -> int:
    """The peer: strategy A by scanning rows; returns how many queries it lost because they had no candidate."""
    rng, lost = np.random.RandomState(seed), 0
    for query in rng.randint(len(dense), size=pairs):
        row = dense[query]
        kind = rng.choice(3, p=[0.5, 0.25, 0.25])
        if kind == 0:
            candidates = np.where(row >= 0.5)[0]
        elif kind == 1:
            candidates = np.where(np.logical_and(row < 0.5, row > 0))[0]
        else:
            candidates = np.where(row == 0)[0]
        if len(candidates):
            row[rng.choice(candidates)]
        else:
            lost += 1
    return lost


def draw(sampler: PairSampler, pairs: int) -> None:
    """Ours, as many epochs as that many pairs need, each drawn at once."""
    batches = -(-pairs // sampler.batches.size)
    for epoch in range(-(-batches // len(sampler))):
        sampler.draw(epoch, 0, min(len(sampler), batches - epoch * len(sampler)))


def step_by_step(sampler: PairSampler, pairs: int) -> None:
    """Ours, batch by batch, as a training loop asks for them."""
    for number in range(-(-pairs // sampler.batches.size)):
        sampler.batch(*divmod(number, len(sampler)))


def measure(images: int, extent_m: float) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    queries, database = photos(QUERIES, extent_m, rng), photos(images, extent_m, rng)
    graph = label(queries, database)
    dense = graph.to_scipy()[:SCANNED_ROWS].toarray()
    scanned = cpu_seconds(lambda: scan_rows(dense, SCANNED_PAIRS, 1), 2) * PAIRS / SCANNED_PAIRS
    rows: list[dict[str, Any]] = []

    def add(name: str, seconds: float) -> None:
        rows.append({"map": images, "sampler": name, "seconds": seconds, "faster": scanned / seconds})

    add("scan of dense rows", scanned)
    for name in ("A", "B", "C", "D"):
        each = PairSampler(Pairs(name), graph)
        add(f"PairSampler {name}", cpu_seconds(lambda s=each: draw(s, PAIRS), 15))  # short, so it is easily disturbed
    sampler = PairSampler(Pairs(), graph)
    epochs = PAIRS // (32 * len(sampler)) + 1
    whole = cpu_seconds(lambda: [sampler.draw(e, 0, len(sampler)).redrawn for e in range(epochs)], 2)
    add("PairSampler A, as batches of an epoch", whole * PAIRS / (epochs * 32 * len(sampler)))
    add("PairSampler A, setting up", cpu_seconds(lambda: PairSampler(Pairs(), graph), 3))
    add("PairSampler A, batch by batch", cpu_seconds(lambda: step_by_step(sampler, PAIRS), 2))
    for other in (AllPairsSampler(AllPairs(size=64), graph), TupleSampler(Tuples(), graph)):
        one = cpu_seconds(lambda s=other: [s.batch(0, k) for k in range(200)], 3) / 200
        pairs = len(other.batch(0, 0)) * (11 if isinstance(other, TupleSampler) else 1)
        add(f"{type(other).__name__}, batch by batch", one * PAIRS / pairs)
    print(f"{QUERIES} queries × {images} map images, {graph.pairs / QUERIES:.0f} overlapping a query")
    return rows


def main() -> None:
    rows = [row for images, extent_m in MAPS.items() for row in measure(images, extent_m)]
    headline = {
        str(r["map"]): {k: r[k] for k in ("seconds", "faster")} for r in rows if r["sampler"] == "PairSampler A"
    }
    report("sampling", rows, {"pairs": PAIRS, "queries": QUERIES, "headline": headline})


if __name__ == "__main__":
    main()
