"""Nearest descriptors: exact and approximate, in memory, on disk and in an engine."""

from covis.ranking import Ranking
from covis.search.area import Area, Circle, Polygon
from covis.search.consensus import Consensus
from covis.search.exact import rank
from covis.search.index import Index, open_index
from covis.search.kinds import KINDS
from covis.search.tuning import TARGET_RECALL, Measured, build_index, tune

__all__ = [
    "KINDS", "TARGET_RECALL", "Area", "Circle", "Consensus", "Index", "Measured", "Polygon", "Ranking", "build_index",
    "open_index", "rank", "tune",
]  # fmt: skip
