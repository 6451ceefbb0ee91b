"""The interface of every index, the kinds of index and their costs, the exact one, and local indexes on disk."""

from __future__ import annotations

import importlib
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import InputError, unknown_name
from covis.descriptors import DescriptorStore, Matrix, Stacked
from covis.ranking import Ranking
from covis.search.area import Area
from covis.search.exact import as_queries, rank

LINKS = 32
"""Neighbours that a node of a graph keeps on its upper levels; twice as many at the bottom."""
ROW_BYTES = 8 + 8 + 16 + 1
"""What an index stores for each row beside its code: id, place in the structure, position, whether it is live."""
EXACT_UP_TO = 20_000
"""Up to this many descriptors `auto` takes exact search: it answers in a few milliseconds and loses nothing."""


@dataclass(frozen=True)
class Kind:
    """A way to find most of the nearest quickly; its candidates are scored again by their exact distance."""

    name: str
    says: str
    factory: Callable[[int, int], str]
    """(descriptors, dim) → faiss' name of the structure."""
    code_bytes: Callable[[int], float]
    """dim → bytes per descriptor inside the structure."""
    fixed_bytes: Callable[[int, int], float]
    """(descriptors, dim) → bytes that are shared by all: cluster centres, rotations, codebooks."""
    graph: bool
    """Whether it links neighbours: then descriptors must be added in random order, never in that of a drive."""
    rotated: bool
    """Whether descriptors are rotated at random first, so that no dimension counts more than another."""
    widen: int
    """Candidates to score again for each result wanted."""
    deepen: int
    """Additional candidates per step of effort: rough codes order them wrongly, which more clusters cannot fix."""
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
    centres = clusters(count)
    return f"IVF{centres}" if centres <= _FLAT_CLUSTERS else f"IVF{centres}_HNSW{LINKS}"


def subvectors(dim: int) -> int:
    """Pieces that product quantising cuts a descriptor into, four bits each: about one for every four numbers."""
    return max(m for m in range(1, max(1, dim // 4) + 1) if dim % m == 0)


def _centres(count: int, dim: int) -> float:
    centres = clusters(count)
    return centres * (dim * 4.0 + (_LINK_BYTES if centres > _FLAT_CLUSTERS else 0.0))


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
        Kind("binary", "clusters of one bit per number: a thirtieth, quick to build",
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
        raise InputError(f"{text!r} is not an amount of memory; write it like 500M or 2G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def size(count: float) -> str:
    """Bytes for people: 1536 → `1.5 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TB"


# Indexes


class Index(ABC):
    """Searchable descriptors under ids of the caller's choice. Ids are not negative; adding one again replaces it."""

    kind: str
    dim: int

    @abstractmethod
    def add(self, ids: ArrayLike, descriptors: Matrix, xy: ArrayLike | None = None) -> None:
        """Adds descriptors (n, dim) under ids (n,), or replaces them; xy (n, 2) are their positions in metres."""

    @abstractmethod
    def remove(self, ids: ArrayLike) -> int:
        """Removes ids and returns how many existed."""

    @abstractmethod
    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest of each of `queries` (Q, dim), only inside `area` if given; fewer where there are not k."""

    @abstractmethod
    def __len__(self) -> int:
        """How many descriptors can be found."""

    @property
    @abstractmethod
    def ids(self) -> Ids:
        """Ids that can be found, ascending."""


class LocalIndex(Index):
    """An index of this process: rows are only ever appended, and a removed or replaced row is left out of answers."""

    def __init__(self, dim: int, model: str | None = None) -> None:
        self.dim = dim
        self.model = model
        """Fingerprint of the model of all descriptors, once known."""
        self.vectors = Stacked((), dim)
        self.row_ids = np.zeros(0, np.int64)
        self.live = np.zeros(0, bool)
        self.xy = np.zeros((0, 2))

    def add(self, ids: ArrayLike, descriptors: Matrix, xy: ArrayLike | None = None) -> None:
        """Adds or replaces descriptors; a `DescriptorStore` or an array is kept as it is, not copied."""
        new = check_ids(ids, descriptors, self.dim)
        places = check_places(xy, len(new))
        self._bind(descriptors)
        check_vectors(descriptors)
        self.live[np.isin(self.row_ids, new)] = False
        self.vectors = self.vectors.extended(descriptors)
        self.row_ids = np.concatenate([self.row_ids, new])
        self.live = np.concatenate([self.live, np.ones(len(new), bool)])
        self.xy = np.concatenate([self.xy, places])
        self._appended(len(new))

    def remove(self, ids: ArrayLike) -> int:
        """Removes ids and returns how many existed."""
        gone = self.live & np.isin(self.row_ids, np.asarray(ids, np.int64))
        self.live = self.live & ~gone
        return int(gone.sum())

    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest of each query, by exact distance, ties by id."""
        self._bind(queries, says="queries")
        matrix = as_queries(queries, self.vectors, k)
        rows = np.flatnonzero(self._allowed(area))
        return self._search(matrix, min(k, len(rows)), rows)

    def __len__(self) -> int:
        return int(self.live.sum())

    @property
    def ids(self) -> Ids:
        """Ids that can be found, ascending."""
        return np.sort(self.row_ids[self.live])

    def save(
        self,
        path: Path | str,
        *,
        with_vectors: bool = True,
        store: DescriptorStore | None = None,
        replace: bool = False,
    ) -> None:
        """Writes the index as an artefact.

        It holds its vectors, or names the `store` that does, row for row; with neither, `open_index` needs them.
        """
        save_index(self, Path(path), with_vectors and store is None, store, replace)

    def _write(self, draft: artifacts.Draft) -> None:
        """Writes what a kind keeps beside ids, positions and vectors."""

    def _allowed(self, area: Area | None) -> NDArray[np.bool_]:
        return self.live if area is None else self.live & area.contains(self.xy)

    def _bind(self, descriptors: Matrix, says: str = "these") -> None:
        if isinstance(descriptors, DescriptorStore):
            if self.model is not None and self.model != descriptors.model:
                raise InputError(
                    f"the index holds descriptors of model {self.model}, {says} are of model {descriptors.model}; use one model"
                )
            self.model = descriptors.model

    def _appended(self, count: int) -> None:
        """Called when `count` rows were appended."""

    @abstractmethod
    def _search(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ranking:
        """The k nearest among the rows; k is at most their number."""


class Exact(LocalIndex):
    """Compares every descriptor: no loss, nothing to build, no memory but the vectors themselves (may be mapped)."""

    kind = "exact"

    def _search(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ranking:
        allowed = None if len(rows) == len(self.vectors) else rows
        return rank(queries, self.vectors, max(k, 1), allowed=allowed, ids=self.row_ids).top(k)


def check_ids(ids: ArrayLike, descriptors: Any, dim: int) -> Ids:
    """Ids as int64, after checking that there is one for each descriptor and none twice."""
    new = np.asarray(ids, np.int64)
    if len(descriptors.shape) != 2 or descriptors.shape[1] != dim:
        raise InputError(f"the index holds descriptors of {dim} numbers, these have shape {tuple(descriptors.shape)}")
    if new.shape != (len(descriptors),):
        raise InputError(f"{len(descriptors)} descriptors need as many ids, not an array of shape {new.shape}")
    if len(new) and (new.min() < 0 or not np.diff(np.sort(new)).all()):
        raise InputError("ids must not be negative, and each given once")
    return new


def check_places(xy: ArrayLike | None, count: int) -> NDArray[np.float64]:
    """Positions as (count, 2); NaN where nothing is known."""
    places = np.full((count, 2), np.nan) if xy is None else np.asarray(xy, np.float64)
    if places.shape != (count, 2):
        raise InputError(f"{count} descriptors need positions of shape ({count}, 2), not {places.shape}")
    return places


def check_vectors(descriptors: Matrix) -> None:
    """Refuses descriptors that are not finite or have no direction; a store was checked when it was written."""
    if isinstance(descriptors, DescriptorStore):
        return
    for start in range(0, len(descriptors), 1 << 14):
        part = np.asarray(descriptors[start : start + (1 << 14)])
        norm = np.einsum("nd,nd->n", part, part, dtype=np.float64)
        bad = ~(np.isfinite(norm) & (norm > 0))
        if bad.any():
            raise InputError(
                f"descriptor {start + int(bad.argmax())} has norm {norm[bad][0] ** 0.5}; it cannot be indexed"
            )


INDEX_KIND = "index"
_ROWS = 16384


def save_index(index: LocalIndex, path: Path, with_vectors: bool, store: DescriptorStore | None, replace: bool) -> None:
    """Writes an index as an artefact at `path`."""
    if store is not None and store.shape != index.vectors.shape:
        raise InputError(
            f"{store.path} holds {store.shape} descriptors, the index {index.vectors.shape}; save the vectors"
        )
    facts: dict[str, Any] = {
        "index": index.kind, "dim": index.dim, "rows": len(index.row_ids), "model": index.model,
        "vectors": "inside" if with_vectors else "outside",
    }  # fmt: skip
    if store is not None:
        place = os.path.relpath(store.path.resolve(), path.resolve())
        whole = str(store.path.resolve())
        facts["store"] = {"path": place, "absolute": whole, "fingerprint": store.fingerprint()}
    with artifacts.create(path, INDEX_KIND, facts, replace=replace) as draft:
        np.save(draft.path / "ids.npy", index.row_ids)
        np.save(draft.path / "live.npy", index.live)
        np.save(draft.path / "xy.npy", index.xy)
        if with_vectors:
            _write_vectors(index, draft.path / "vectors.npy")
        index._write(draft)


def _write_vectors(index: LocalIndex, path: Path) -> None:
    """All rows as one .npy, a bounded number at a time."""
    rows = len(index.row_ids)
    dtype = np.asarray(index.vectors[:1]).dtype
    target = np.lib.format.open_memmap(path, "w+", dtype, (rows, index.dim)) if rows else None
    if target is None:
        np.save(path, np.zeros((0, index.dim), np.float32))
        return
    for start in range(0, rows, _ROWS):
        target[start : start + _ROWS] = index.vectors[start : start + _ROWS]
    target.flush()
