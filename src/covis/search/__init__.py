"""Nearest descriptors: exact and approximate, in memory, on disk and in an engine."""

from covis.search.exact import rank
from covis.search.ranking import Ranking

__all__ = ["Ranking", "rank"]
