"""How long labelling will take and how much it will give, from a sample of the queries."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from covis.images import ImageSet
from covis.labels.rules import FovOverlap, Radius

_SAMPLE = 256
_BYTES_A_PAIR = 8


class Estimate(NamedTuple):
    """What to expect."""

    pairs: int
    seconds: float
    megabytes: float


def estimate(rule: FovOverlap | Radius, queries: ImageSet, database: ImageSet) -> Estimate:
    """Labels an even sample of the queries and scales up; the first call may include the compiler's time."""
    some = np.unique(np.linspace(0, len(queries) - 1, min(_SAMPLE, len(queries))).astype(np.int64))
    rule(queries.subset(some[:1]), database)  # what does not grow with the queries
    start = time.perf_counter()
    rule(queries.subset(some[:1]), database)
    fixed = time.perf_counter() - start
    start = time.perf_counter()
    graph = rule(queries.subset(some), database)
    share = len(queries) / max(1, len(some))
    pairs = round(graph.pairs * share)
    seconds = fixed + max(0.0, time.perf_counter() - start - fixed) * share
    return Estimate(pairs, seconds, pairs * _BYTES_A_PAIR / 1e6)
