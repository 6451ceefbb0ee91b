"""Batches of index pairs and tuples, drawn from a similarity graph: pure numpy, no images."""

from covis.sampling.allpairs import AllPairsSampler
from covis.sampling.mining import MinedRound, MiningPlan, TupleMiner
from covis.sampling.pairs import PairBatch, PairSampler
from covis.sampling.strategies import STRATEGIES, Band, Strategy
from covis.sampling.tuples import TupleBatch, TupleSampler

__all__ = [
    "STRATEGIES",
    "AllPairsSampler",
    "Band",
    "MinedRound",
    "MiningPlan",
    "PairBatch",
    "PairSampler",
    "Strategy",
    "TupleBatch",
    "TupleMiner",
    "TupleSampler",
]
