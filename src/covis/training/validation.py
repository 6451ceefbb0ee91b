"""Validation: recall of a model on a benchmark while it trains."""

from __future__ import annotations

from covis.describing.features import Features
from covis.evaluation import Benchmark, recall_at_k
from covis.evaluation.retrieval import rank_descriptors
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.training.descriptors import describe_all
from covis.training.ranks import Ranks


class Validator:
    """Scores a model on a benchmark; ranks share the images, and every rank knows the result."""

    def __init__(self, benchmark: Benchmark, source: Features, ranks: Ranks) -> None:
        self.benchmark, self.source, self.ranks = benchmark, source, ranks

    @staticmethod
    def sets(benchmark: Benchmark) -> tuple[ImageSet, ...]:
        """The image sets whose features are needed."""
        return (benchmark.queries,) if benchmark.one_set else (benchmark.queries, benchmark.database)

    def recall(self, model: PlaceModel) -> dict[str, float]:
        """Recall@k in percent, keyed by k."""
        b = self.benchmark
        sets = self.sets(b)
        vectors = [describe_all(model, self.source, which, len(s), self.ranks) for which, s in enumerate(sets)]
        ids, _ = b.settle(rank_descriptors(vectors[0], vectors[-1], b))
        return {str(k): float(v) for k, v in recall_at_k(ids, b.positives, b.ks).items()}
