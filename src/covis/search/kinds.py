"""The kinds of approximate index, their memory, and which one to build."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

from covis.core.errors import unknown_name

LINKS = 32
"""Neighbours that a node of a graph keeps on its upper levels; twice as many at the bottom."""
EFFORTS = (16, 32, 64, 128, 256, 512, 1024)
"""Nodes that a query visits, from quick to thorough."""
ROW_BYTES = 8 + 16 + 1
"""What an index stores for each row beside its code: place in the structure, position, whether it is live."""
EXACT = "exact"
"""The kind that compares every descriptor: no loss, nothing to build, no memory but the descriptors (may be mapped)."""
EXACT_UP_TO = 20_000
"""Up to this many descriptors `auto` takes exact search: it answers in a few milliseconds and loses nothing."""
_LINK_BYTES = 4 * (2 * LINKS) + 4 * LINKS / (LINKS - 1) + 16


@dataclass(frozen=True)
class Kind:
    """A graph (HNSW) that finds most of the nearest quickly; its candidates are scored again by their exact distance."""

    name: str
    description: str
    factory: str
    """faiss' name of the structure."""
    number_bytes: int
    """Bytes per number of a descriptor inside the structure."""
    widen: int
    """Candidates to score again for each result."""
    range_bytes: int = 0
    """Bytes per dimension that all descriptors share: the range of each number."""

    def ram(self, count: int, dim: int) -> int:
        """Bytes that `count` descriptors need in memory; the descriptors themselves stay on disk."""
        return math.ceil(count * (self.number_bytes * dim + _LINK_BYTES + ROW_BYTES) + self.range_bytes * dim)


_HNSW = Kind(
    name="hnsw",
    description="a graph over the whole descriptors: quickest, most memory",
    factory=f"HNSW{LINKS}",
    number_bytes=4,
    widen=1,
)
_HNSW_SQ8 = Kind(
    name="hnsw-sq8",
    description="a graph over bytes: nearly as quick, a third of the memory",
    factory=f"HNSW{LINKS}_SQ8",
    number_bytes=1,
    widen=2,
    range_bytes=8,
)
KINDS = {kind.name: kind for kind in (_HNSW, _HNSW_SQ8)}
"""By name, from the quickest to the smallest."""


def choose(name: str, count: int) -> str:
    """The kind to build over `count` descriptors: `name`, or with `auto` exact search or, with faiss, the quickest graph."""
    if name not in ("auto", EXACT, *KINDS):
        raise unknown_name("kind of index", name, ("auto", EXACT, *KINDS))
    if name == "auto":
        small = count <= EXACT_UP_TO or importlib.util.find_spec("faiss") is None
        return EXACT if small else next(iter(KINDS))
    return name
