"""Batches of index pairs and tuples, drawn from a similarity graph: pure numpy, no images."""

from covis.sampling.pairs import PairBatch, PairSampler
from covis.sampling.strategies import STRATEGIES, Band, Strategy

__all__ = ["STRATEGIES", "Band", "PairBatch", "PairSampler", "Strategy"]
