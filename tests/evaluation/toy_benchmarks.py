"""Small benchmarks and descriptors that several tests share."""

import numpy as np

from covis.evaluation.benchmark import Benchmark
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses


def street(n, spacing_m=10.0, group="", prefix="m", shift_m=0.0, columns=None):
    """Images along a street that runs east, looking north."""
    xy = np.column_stack([np.arange(n) * spacing_m + shift_m, np.zeros(n)])
    names = [f"{prefix}{i}.jpg" for i in range(n)]
    return ImageSet.of("/nowhere", names, Poses(xy, np.zeros(n)), group, columns=columns)


def graph(shape, pairs, psi=None):
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    return SimilarityGraph.from_edges(rows, columns, np.ones(len(rows)) if psi is None else psi, shape)


def drive(queries=30, images=60, seed=0, **options):
    """Queries 1 m beside every second map image; relevant within 12 m, graded by distance."""
    database = street(images)
    mine = street(queries, 20.0, prefix="q", shift_m=1.0)
    gap = np.abs(mine.poses.xy[:, None, 0] - database.poses.xy[None, :, 0])
    rows, columns = np.nonzero(gap < 25)
    near = gap[rows, columns] <= 12
    relevance = graph(gap.shape, list(zip(rows[near], columns[near], strict=True)))
    similarity = graph(gap.shape, list(zip(rows, columns, strict=True)), 1 - gap[rows, columns] / 25)
    return Benchmark("drive", mine, database, relevance, "within 12 m", similarity, **options)


def descriptors(benchmark, noise, seed=0, dim=16):
    """Unit descriptors that follow the position, more or less."""
    rng = np.random.default_rng(seed)
    angles = rng.normal(size=(dim // 2,)) / 30

    def side(images):
        turn = images.poses.xy[:, :1] * angles
        z = np.concatenate([np.cos(turn), np.sin(turn)], axis=1) + noise * rng.normal(size=(len(images), dim))
        return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)

    queries = side(benchmark.queries)
    return queries, queries if benchmark.one_set else side(benchmark.database)
