"""Rows of descriptors that can be searched: all are compared, or a structure proposes candidates.

Distances and ties are those of exact search in both cases; what a structure (`covis.search.kinds`) can lose is a neighbour
that it never proposes, and `build_index` measures how often that happens. Rows wait outside the structure until there are
enough to train it, and are searched exactly meanwhile, so that an index works from its first descriptor on.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import Damaged, InputError
from covis.core.files import load_array
from covis.core.foreign import first_line
from covis.descriptors import DescriptorStore, Matrix, Stacked
from covis.ranking import Ranking, ordered
from covis.search.area import Area
from covis.search.exact import as_queries, distances, rank
from covis.search.kinds import EFFORTS, EXACT, KINDS

INDEX_KIND = "index"
TRAIN_FROM = 1000
"""Number of rows from which a structure is worth training."""
_TRAIN_BYTES = 256 << 20
_ADD_ROWS = 16384
_SCORE_BYTES = 64 << 20
_EXACT_SHARE = 0.03
_EXACT_ROWS = 4096
_STRUCTURE = "structure.faiss"
_SPARE = 16
"""Candidates beyond those wanted, so that ties at the border are settled by row."""
_FACTS = {"index": str, "dim": int, "rows": int, "model": (str, type(None)), "seed": int, "effort": int}


class Index:
    """Searchable descriptors by row; rows are only ever appended, and a removed one is left out of answers."""

    def __init__(self, dim: int, kind: str = EXACT, model: str | None = None, *, seed: int = 0) -> None:
        self.dim, self.kind, self.seed = dim, kind, seed
        self.model = model
        """Fingerprint of the model of all descriptors, once known."""
        self.spec = None if kind == EXACT else KINDS[kind]
        self.effort = EFFORTS[2]
        """How hard a search looks; `build_index` sets it by measurement."""
        self.vectors = Stacked((), dim)
        self.live = np.zeros(0, bool)
        self.xy = np.zeros((0, 2))
        self.structure: Any = None
        self.order = np.zeros(0, np.int64)
        """Row of each entry of the structure; rows from len(order) on are outside it."""

    def __len__(self) -> int:
        return int(self.live.sum())

    def add(self, descriptors: Matrix, xy: ArrayLike | None = None) -> None:
        """Appends descriptors; a `DescriptorStore` or an array is kept as it is, not copied. xy: (n, 2) positions."""
        if len(descriptors.shape) != 2 or descriptors.shape[1] != self.dim:
            raise InputError(
                f"the index holds descriptors of {self.dim} numbers, these have shape {tuple(descriptors.shape)}"
            )
        count = len(descriptors)
        places = np.full((count, 2), np.nan) if xy is None else np.asarray(xy, np.float64)
        if places.shape != (count, 2):
            raise InputError(f"{count} descriptors need positions of shape ({count}, 2), not {places.shape}")
        self.bind(descriptors)
        _check_vectors(descriptors)
        self.vectors = self.vectors.extended(descriptors)
        self.live = np.concatenate([self.live, np.ones(count, bool)])
        self.xy = np.concatenate([self.xy, places])
        if self.spec is not None and (self.structure is not None or len(self.live) >= TRAIN_FROM):
            self._grow()

    def remove(self, rows: ArrayLike) -> int:
        """Removes rows and returns how many were there."""
        gone = self.live & np.isin(np.arange(len(self.live)), rows)
        self.live = self.live & ~gone
        return int(gone.sum())

    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest rows of each query, by exact distance, ties by row."""
        self.bind(queries, role="queries")
        matrix = as_queries(queries, self.vectors, k)
        allowed = self.live if area is None else self.live & area.contains(self.xy)
        rows = np.flatnonzero(allowed)
        k = min(k, len(rows))
        if self.structure is None or len(rows) <= max(_EXACT_ROWS, _EXACT_SHARE * len(self.order)):
            return self._compare(matrix, k, rows)
        inside, outside = rows[rows < len(self.order)], rows[rows >= len(self.order)]
        ranking = self._rescored(matrix, self._candidates(matrix, k, inside), k)
        if len(outside):
            late = self._compare(matrix, k, outside)
            ranking = ordered(np.hstack([ranking.ids, late.ids]), np.hstack([ranking.distances, late.distances]), k)
        short = np.flatnonzero((ranking.ids < 0).any(1))
        if len(short):  # few of the visited nodes were allowed; k results exist, so find them exactly
            full = self._compare(matrix[short], k, rows)
            ranking.ids[short], ranking.distances[short] = full.ids, full.distances
        return ranking

    def bind(self, descriptors: Matrix, role: str = "these") -> None:
        """Refuses a store of another model than that of the rows."""
        if isinstance(descriptors, DescriptorStore):
            if self.model is not None and self.model != descriptors.model:
                raise InputError(
                    f"the index holds descriptors of model {self.model}, {role} are of model {descriptors.model}; use one model"
                )
            self.model = descriptors.model

    def save(self, path: Path | str, *, replace: bool = False) -> None:
        """Writes the index as an artefact, without its vectors, which `open_index` takes row for row."""
        facts = {"index": self.kind, "dim": self.dim, "rows": len(self.live), "model": self.model}
        with artifacts.create(
            path, INDEX_KIND, {**facts, "effort": self.effort, "seed": self.seed}, replace=replace
        ) as draft:
            for name, array in (("live", self.live), ("xy", self.xy), ("order", self.order)):
                np.save(draft.path / f"{name}.npy", array)
            if self.structure is not None:
                _write_structure(self.structure, draft.path / _STRUCTURE)

    def _compare(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ranking:
        """The k nearest of the rows, each of them compared."""
        allowed = None if len(rows) == len(self.vectors) else rows
        return rank(queries, self.vectors, max(k, 1), allowed=allowed).top(k)

    def _grow(self) -> None:
        """Takes all rows that are outside into the structure."""
        if self.structure is None:
            self.structure = self._trained()
        rows = np.arange(len(self.order), len(self.live))
        # A graph filled in the order of a drive loses every fifth neighbour.
        rows = np.random.default_rng((self.seed, len(rows))).permutation(rows)
        for start in range(0, len(rows), _ADD_ROWS):
            self.structure.add(self._float32(rows[start : start + _ADD_ROWS]))
        self.order = np.concatenate([self.order, rows])

    def _trained(self) -> Any:
        import faiss

        assert self.spec is not None
        structure = faiss.index_factory(self.dim, self.spec.factory)
        if not structure.is_trained:
            count, most = len(self.live), max(TRAIN_FROM, _TRAIN_BYTES // (4 * self.dim))
            sample = np.random.default_rng(self.seed).choice(count, min(count, most), replace=False)
            structure.train(self._float32(np.sort(sample)))
        return structure

    def _float32(self, rows: Ids) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.vectors[rows], np.float32)

    def _candidates(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ids:
        """(Q, C) rows that the structure proposes; −1 for none."""
        faiss: Any = importlib.import_module("faiss")  # its type stubs do not know these classes' arguments
        assert self.spec is not None
        count = min(len(rows), k * self.spec.widen + _SPARE)
        effort = math.ceil(self.effort * len(self.order) / len(rows))  # entries that are not allowed are visited too
        selected: dict[str, Any] = {}
        if len(rows) < len(self.order):
            allowed = np.zeros(len(self.live), bool)
            allowed[rows] = True
            bits = np.packbits(allowed[self.order], bitorder="little")  # faiss reads this memory during the search
            selected["sel"] = faiss.IDSelectorBitmap(len(self.order), faiss.swig_ptr(bits))
        parameters = faiss.SearchParametersHNSW(efSearch=max(effort, count), **selected)
        _, entries = self.structure.search(queries, count, params=parameters)
        return np.where(entries >= 0, self.order[entries], -1)

    def _rescored(self, queries: NDArray[np.float32], rows: Ids, k: int) -> Ranking:
        """Candidates (Q, C) by their exact distance."""
        distance = np.empty(rows.shape, np.float32)
        step = max(1, _SCORE_BYTES // max(1, rows.shape[1] * self.dim * 8))
        for start in range(0, len(queries), step):
            some = rows[start : start + step]
            vectors = self._float32(np.maximum(some, 0).ravel()).reshape(*some.shape, self.dim)
            distance[start : start + step] = distances(queries[start : start + step, None], vectors)
        return ordered(rows, distance, k)


def open_index(path: Path | str, vectors: Matrix, *, verify: bool = True) -> Index:
    """Opens a saved index over its vectors, row for row those it was saved with."""
    path = Path(path)
    manifest = artifacts.open_manifest(path, INDEX_KIND, facts=_FACTS, verify=verify)
    kind, dim, rows, remedy = manifest["index"], manifest["dim"], manifest["rows"], f"make {path} again"
    if kind not in (EXACT, *KINDS):
        raise Damaged(f"{path} is an index of the kind {kind!r}, which covis does not know; {remedy}")
    if vectors.shape != (rows, dim):
        raise InputError(
            f"{path} is an index of ({rows}, {dim}) vectors, these are {tuple(vectors.shape)}; give its store"
        )
    index = Index(dim, kind, manifest["model"], seed=manifest["seed"])
    index.effort = manifest["effort"]
    index.live = load_array(path / "live.npy", "b", (rows,), remedy=remedy)
    index.xy = load_array(path / "xy.npy", "f", (rows, 2), remedy=remedy)
    index.order = load_array(path / "order.npy", "i", (None,), remedy=remedy)
    if len(index.order) and (index.order.min() < 0 or index.order.max() >= rows):
        raise Damaged(f"{path / 'order.npy'} names rows that do not exist; {remedy}")
    if _STRUCTURE in manifest["files"]:
        index.structure = _read_structure(path / _STRUCTURE, remedy)
        if (index.structure.d, index.structure.ntotal) != (dim, len(index.order)):
            raise Damaged(f"{path / _STRUCTURE} is not of {len(index.order)} × {dim} numbers; {remedy}")
    index.bind(vectors)
    index.vectors = index.vectors.extended(vectors)
    return index


def _check_vectors(descriptors: Matrix) -> None:
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


def _read_structure(path: Path, remedy: str) -> Any:
    import faiss

    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise Damaged(f"{path} cannot be read ({first_line(error)}); {remedy}") from None


def _write_structure(structure: Any, path: Path) -> None:
    import faiss

    try:
        faiss.write_index(structure, str(path))
    except RuntimeError as error:  # faiss gives no cause
        raise OSError(None, f"the index could not be written ({first_line(error)})", str(path)) from None
