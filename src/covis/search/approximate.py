"""Approximate indexes: a structure proposes candidates, their exact distances decide.

Distances and ties are therefore those of exact search; what can be lost is a neighbour that was never proposed, and
`build_index` measures how often that happens. Rows wait outside the structure until there are enough to train it, and
are searched exactly meanwhile, so that an index works from its first descriptor on.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import Damaged, InputError
from covis.core.files import checked, load_array
from covis.core.foreign import first_line
from covis.descriptors import Matrix
from covis.ranking import Ranking, ordered
from covis.search.exact import distances, rank
from covis.search.index import INDEX_KIND, Exact, LocalIndex
from covis.search.kinds import EFFORTS, KINDS

TRAIN_FROM = 1000
"""Number of rows from which a structure is worth training."""
_TRAIN_BYTES = 256 << 20
_ADD_ROWS = 16384
_SCORE_BYTES = 64 << 20
_EXACT_SHARE = 0.03
_EXACT_ROWS = 4096
STRUCTURE = "structure.faiss"
_SPARE = 16
"""Candidates beyond those wanted, so that ties at the border are settled by id."""


class Approximate(LocalIndex):
    """One of `KINDS`, over vectors that may stay on disk."""

    def __init__(self, dim: int, kind: str, model: str | None = None, *, seed: int = 0) -> None:
        super().__init__(dim, model)
        self.kind = kind
        self.spec = KINDS[kind]
        self.effort = EFFORTS[2]
        """How hard a search looks; `build_index` sets it by measurement."""
        self.seed = seed
        self.structure: Any = None
        self.order = np.zeros(0, np.int64)
        """Row of each entry of the structure; rows from len(order) on are outside it."""

    def _write(self, draft: artifacts.Draft) -> None:
        draft.facts |= {"effort": self.effort, "seed": self.seed}
        np.save(draft.path / "order.npy", self.order)
        if self.structure is not None:
            _write_structure(self.structure, draft.path / STRUCTURE)

    @classmethod
    def read(cls, path: Path, manifest: dict[str, Any]) -> Approximate:
        """The kind and its structure from the folder of a saved index; ids and vectors are loaded later."""
        remedy = f"make {path} again"
        checked(path / artifacts.MANIFEST, manifest, {"seed": int, "effort": int}, remedy)
        if manifest["index"] not in KINDS:
            raise Damaged(f"{path} is an index of the kind {manifest['index']!r}, which covis does not know; {remedy}")
        index = cls(manifest["dim"], manifest["index"], manifest["model"], seed=manifest["seed"])
        index.effort = manifest["effort"]
        index.order = load_array(path / "order.npy", "i", (None,), remedy=remedy)
        if len(index.order) and (index.order.min() < 0 or index.order.max() >= manifest["rows"]):
            raise Damaged(f"{path / 'order.npy'} names rows that do not exist; {remedy}")
        if STRUCTURE in manifest["files"]:
            index.structure = _read_structure(path / STRUCTURE, remedy)
            if (index.structure.d, index.structure.ntotal) != (index.dim, len(index.order)):
                raise Damaged(f"{path / STRUCTURE} is not of {len(index.order)} × {index.dim} numbers; {remedy}")
        return index

    def _appended(self, count: int) -> None:
        if self.structure is None and len(self.row_ids) < TRAIN_FROM:
            return
        if self.structure is None:
            self.structure = self._trained()
        rows = np.arange(len(self.order), len(self.row_ids))
        # A graph filled in the order of a drive loses every fifth neighbour.
        rows = np.random.default_rng((self.seed, len(rows))).permutation(rows)
        for start in range(0, len(rows), _ADD_ROWS):
            self.structure.add(self._float32(rows[start : start + _ADD_ROWS]))
        self.order = np.concatenate([self.order, rows])

    def _trained(self) -> Any:
        import faiss

        count = len(self.row_ids)
        structure = faiss.index_factory(self.dim, self.spec.factory)
        if not structure.is_trained:
            most = max(TRAIN_FROM, _TRAIN_BYTES // (4 * self.dim))
            sample = np.random.default_rng(self.seed).choice(count, min(count, most), replace=False)
            structure.train(self._float32(np.sort(sample)))
        return structure

    def _float32(self, rows: Ids) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.vectors[rows], np.float32)

    def _search(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ranking:
        if len(rows) <= max(_EXACT_ROWS, _EXACT_SHARE * len(self.order)) or self.structure is None:
            return rank(queries, self.vectors, max(k, 1), allowed=rows, ids=self.row_ids).top(k)
        inside, outside = rows[rows < len(self.order)], rows[rows >= len(self.order)]
        ranking = self._rescored(queries, self._candidates(queries, k, inside), k)
        if len(outside):
            late = rank(queries, self.vectors, k, allowed=outside, ids=self.row_ids)
            ranking = ordered(np.hstack([ranking.ids, late.ids]), np.hstack([ranking.distances, late.distances]), k)
        short = np.flatnonzero((ranking.ids < 0).any(1))
        if len(short):  # few of the visited nodes were allowed; k results exist, so find them exactly
            full = rank(queries[short], self.vectors, k, allowed=rows, ids=self.row_ids)
            ranking.ids[short], ranking.distances[short] = full.ids[:, :k], full.distances[:, :k]
        return ranking

    def _candidates(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ids:
        """(Q, C) rows that the structure proposes; −1 for none."""
        faiss: Any = importlib.import_module("faiss")  # its type stubs do not know these classes' arguments
        count = min(len(rows), k * self.spec.widen + _SPARE)
        effort = math.ceil(self.effort * len(self.order) / len(rows))  # entries that are not allowed are visited too
        selected: dict[str, Any] = {}
        if len(rows) < len(self.order):
            allowed = np.zeros(len(self.row_ids), bool)
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
        return ordered(np.where(rows >= 0, self.row_ids[np.maximum(rows, 0)], -1), distance, k)


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


_FACTS = {"index": str, "dim": int, "rows": int, "model": (str, type(None))}


def open_index(path: Path | str, vectors: Matrix, *, verify: bool = True) -> LocalIndex:
    """Opens a saved index over its vectors, row for row those it was saved with."""
    path = Path(path)
    manifest = artifacts.open_manifest(path, INDEX_KIND, facts=_FACTS, verify=verify)
    dim, rows = manifest["dim"], manifest["rows"]
    exact = manifest["index"] == Exact.kind
    index: LocalIndex = Exact(dim, manifest["model"]) if exact else Approximate.read(path, manifest)
    remedy = f"make {path} again"
    index.row_ids = load_array(path / "ids.npy", "i", (rows,), remedy=remedy)
    index.live = load_array(path / "live.npy", "b", (rows,), remedy=remedy)
    index.xy = load_array(path / "xy.npy", "f", (rows, 2), remedy=remedy)
    if vectors.shape != (rows, dim):
        raise InputError(
            f"{path} is an index of ({rows}, {dim}) vectors, these are {tuple(vectors.shape)}; give its store"
        )
    index._bind(vectors)
    index.vectors = index.vectors.extended(vectors)
    return index
