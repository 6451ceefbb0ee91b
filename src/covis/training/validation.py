"""Recall on a named protocol while training, with the frozen part computed once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from covis.arrays import Ids
from covis.describing.features import Features
from covis.evaluation import Benchmark, recall_at_k
from covis.evaluation.retrieval import rank_descriptors
from covis.images import ImageSet
from covis.models import PlaceModel

CHUNK = 128


class Validator:
    """Scores a model on a benchmark; every rank computes the same."""

    def __init__(self, benchmark: Benchmark, source: Features) -> None:
        self.benchmark, self.source = benchmark, source

    @staticmethod
    def sets(benchmark: Benchmark) -> tuple[ImageSet, ...]:
        """The image sets whose features are needed."""
        return (benchmark.queries,) if benchmark.one_set else (benchmark.queries, benchmark.database)

    def recall(self, model: PlaceModel) -> dict[str, float]:
        """Recall@k in percent, keyed by k."""
        b = self.benchmark
        vectors = [describe_all(model, self.source, which, len(s)) for which, s in enumerate(self.sets(b))]
        ids, _ = b.settle(rank_descriptors(vectors[0], vectors[-1], b))
        return {str(k): float(v) for k, v in recall_at_k(ids, b.positives, b.ks).items()}


def describe_all(model: PlaceModel, source: Features, which: int, count: int) -> NDArray[np.float32]:
    """(count, dim) descriptors of every image of the source's set number `which`."""
    return describe_images(model, source, which, np.arange(count))


@torch.no_grad()
def describe_images(model: PlaceModel, source: Features, which: int, ids: Ids) -> NDArray[np.float32]:
    """(len(ids), dim) descriptors of images of the source's set number `which`."""
    training = model.training
    model.eval()
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    nothing = np.zeros(0, np.int64)
    requests = [(chunk,) if which == 0 else (nothing, chunk) for chunk in chunks]
    parts = [model.suffix(fetched.features).float().cpu().numpy() for fetched in source.fetch(requests)]
    model.train(training)
    return np.concatenate(parts)
