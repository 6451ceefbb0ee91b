"""The approximate kinds: what each builds, what it costs in memory, and how hard it can be made to look."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from covis.errors import InputError, unknown_name

LINKS = 32
"""Neighbours that a node of a graph keeps on its upper levels; twice as many at the bottom."""
ROW_BYTES = 8 + 8 + 16 + 1
"""What an index notes of each row beside its code: id, place in the structure, position, whether it lives."""
EXACT_UP_TO = 20_000
"""Descriptors up to which `auto` takes exact search: it answers in a few milliseconds and loses nothing."""


@dataclass(frozen=True)
class Kind:
    """One way to find most of the nearest quickly. Candidates it proposes are scored again by their exact distance."""

    name: str
    says: str
    factory: Callable[[int, int], str]
    """(descriptors, dim) → faiss' name of the structure."""
    code_bytes: Callable[[int], float]
    """dim → bytes per descriptor inside the structure."""
    fixed_bytes: Callable[[int, int], float]
    """(descriptors, dim) → bytes whatever their number: cluster centres, rotations, codebooks."""
    graph: bool
    """Whether it links neighbours: then descriptors must enter in random order, never in that of a drive."""
    rotated: bool
    """Whether descriptors are turned at random first, so that no number of theirs counts more than another."""
    widen: int
    """Candidates to score again for each result wanted."""
    deepen: int
    """Candidates more for each step of effort: rough codes miss by their order, which no further cluster repairs."""
    efforts: tuple[int, ...]
    """Settings from quick to thorough: how many nodes or clusters a query visits."""

    def ram(self, count: int, dim: int) -> int:
        """Bytes that `count` descriptors need in memory; the descriptors themselves stay on disk."""
        return math.ceil(count * (self.code_bytes(dim) + ROW_BYTES) + self.fixed_bytes(count, dim))

    def parameters(self, effort: int, selector: Any) -> Any:
        """faiss' settings of one search."""
        faiss: Any = importlib.import_module("faiss")  # its type stubs do not know these classes' arguments
        chosen = {} if selector is None else {"sel": selector}
        if self.graph:
            return faiss.SearchParametersHNSW(efSearch=effort, **chosen)
        if self.name == "binary":
            inner = faiss.IVFRaBitQSearchParameters(nprobe=effort, qb=8, **chosen)
        else:
            inner = faiss.SearchParametersIVF(nprobe=effort, **chosen)
        return faiss.SearchParametersPreTransform(index_params=inner) if self.rotated else inner


def clusters(count: int) -> int:
    """How many clusters `count` descriptors are sorted into."""
    return max(1, min(int(2 * math.sqrt(count)), count // 40))


def _sorted_into(count: int) -> str:
    """faiss' name of the clusters; where they are many, a graph finds the nearest of them."""
    found = clusters(count)
    return f"IVF{found}" if found <= _FLAT_CLUSTERS else f"IVF{found}_HNSW{LINKS}"


def subvectors(dim: int) -> int:
    """Pieces that product quantising cuts a descriptor into, four bits each: about one for every four numbers."""
    return max(m for m in range(1, max(1, dim // 4) + 1) if dim % m == 0)


def _centres(count: int, dim: int) -> float:
    found = clusters(count)
    return found * (dim * 4.0 + (_LINK_BYTES if found > _FLAT_CLUSTERS else 0.0))


_LINK_BYTES = 4 * (2 * LINKS) + 4 * LINKS / (LINKS - 1) + 16
_FLAT_CLUSTERS = 4096
_VISITS = (16, 32, 64, 128, 256, 512, 1024)
_PROBES = (4, 8, 16, 32, 64, 128, 256, 512)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("hnsw", "a graph over the whole descriptors: quickest, most memory",
             lambda n, d: f"HNSW{LINKS}", lambda d: 4 * d + _LINK_BYTES, lambda n, d: 0.0, True, False, 1, 0, _VISITS),
        Kind("hnsw-sq8", "a graph over bytes: nearly as quick, a third of the memory",
             lambda n, d: f"HNSW{LINKS}_SQ8", lambda d: d + _LINK_BYTES, lambda n, d: 8.0 * d, True, False, 2, 0, _VISITS),
        Kind("scalar", "clusters of bytes: a quarter of the descriptors",
             lambda n, d: f"{_sorted_into(n)},SQ8", lambda d: d + 8, _centres, False, False, 2, 0, _PROBES),
        Kind("ivfpq", "clusters of product-quantised codes: a thirtieth",
             lambda n, d: f"RR{d},{_sorted_into(n)},PQ{subvectors(d)}x4fs", lambda d: subvectors(d) / 2 + 8,
             lambda n, d: _centres(n, d) + 8.0 * clusters(n) * subvectors(d) + 4.0 * d * d, False, True, 10, 2, _PROBES),
        Kind("binary", "clusters of one bit a number: a thirtieth, quick to build",
             lambda n, d: f"RR{d},{_sorted_into(n)},RaBitQ", lambda d: d / 8 + 8 + 8,
             lambda n, d: _centres(n, d) + 4.0 * d * d, False, True, 10, 2, _PROBES),
    )
}  # fmt: skip
"""By name, from the quickest to the smallest."""


def choose(name: str, count: int, dim: int, max_ram: int | None) -> str:
    """The kind to build: `name` if it fits into `max_ram` bytes, or with `auto` the quickest that does."""
    if name not in ("auto", "exact", *KINDS):
        raise unknown_name("kind of index", name, ("auto", "exact", *KINDS))
    needs = {kind.name: kind.ram(count, dim) for kind in KINDS.values()} | {"exact": count * ROW_BYTES}
    fit = [k for k in KINDS if max_ram is None or needs[k] <= max_ram]
    if name == "auto":
        name = "exact" if count <= EXACT_UP_TO or not fit else fit[0]
    if max_ram is not None and needs[name] > max_ram:
        smaller = ", ".join(f"{k} ({size(needs[k])})" for k in [*fit, "exact"] if needs[k] <= max_ram)
        raise InputError(
            f"{name} over {count} × {dim} needs {size(needs[name])}, --max-ram allows {size(max_ram)}; "
            + (f"these fit: {smaller}" if smaller else "use more memory or an engine")
        )
    return name


def parse_size(text: str) -> int:
    """`2G`, `500 MB` or `1048576` → bytes (in steps of 1024)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if not match:
        raise InputError(f"{text!r} is no amount of memory; write it like 500M or 2G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def size(count: float) -> str:
    """Bytes for people: 1536 → `1.5 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TB"
