"""Batches of index pairs and tuples, drawn from a similarity graph: no images, and no torch until a loss is called."""

from covis.core.registry import import_modules
from covis.sampling.allpairs import AllPairs, AllPairsSampler, ListBatch
from covis.sampling.batches import BATCHES, Batch, Batches, Sampler
from covis.sampling.composition import STRATEGIES, Band, Strategy
from covis.sampling.pairs import PairBatch, Pairs, PairSampler
from covis.sampling.places import Places
from covis.sampling.tuples import TupleBatch, TupleMiner, Tuples, TupleSampler

__all__ = [
    "BATCHES",
    "STRATEGIES",
    "AllPairs",
    "AllPairsSampler",
    "Band",
    "Batch",
    "Batches",
    "ListBatch",
    "PairBatch",
    "PairSampler",
    "Pairs",
    "Places",
    "Sampler",
    "Strategy",
    "TupleBatch",
    "TupleMiner",
    "TupleSampler",
    "Tuples",
]

import_modules(__name__, __path__)
