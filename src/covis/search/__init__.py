"""Nearest descriptors: exact and approximate, in memory, on disk and in an engine."""

from covis.ranking import Ranking
from covis.search.approximate import TARGET_RECALL, Approximate, Measured, build_index, open_index, tune
from covis.search.area import Area, Circle, Polygon
from covis.search.exact import rank
from covis.search.index import KINDS, Exact, Index, LocalIndex
from covis.search.rerank import Consensus

__all__ = [
    "KINDS", "TARGET_RECALL", "Approximate", "Area", "Circle", "Consensus", "Exact", "Index", "LocalIndex", "Measured", "Polygon", "Ranking",
    "build_index", "open_index", "rank", "tune",
]  # fmt: skip
