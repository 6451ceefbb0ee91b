"""The base of every index, and the exact one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.descriptors import DescriptorStore, Matrix, Stacked
from covis.ranking import Ranking
from covis.search.area import Area
from covis.search.exact import as_queries, rank

INDEX_KIND = "index"


class LocalIndex:
    """Searchable descriptors under ids of the caller's choice, which are not negative; adding one again replaces it.

    Rows are only ever appended, and a removed or replaced row is left out of answers.
    """

    kind: str

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
        self._bind(queries, role="queries")
        matrix = as_queries(queries, self.vectors, k)
        rows = np.flatnonzero(self._allowed(area))
        return self._search(matrix, min(k, len(rows)), rows)

    def __len__(self) -> int:
        return int(self.live.sum())

    @property
    def ids(self) -> Ids:
        """Ids that can be found, ascending."""
        return np.sort(self.row_ids[self.live])

    def save(self, path: Path | str, *, replace: bool = False) -> None:
        """Writes the index as an artefact, without its vectors, which `open_index` takes row for row."""
        facts = {"index": self.kind, "dim": self.dim, "rows": len(self.row_ids), "model": self.model}
        with artifacts.create(Path(path), INDEX_KIND, facts, replace=replace) as draft:
            np.save(draft.path / "ids.npy", self.row_ids)
            np.save(draft.path / "live.npy", self.live)
            np.save(draft.path / "xy.npy", self.xy)
            self._write(draft)

    def _write(self, draft: artifacts.Draft) -> None:
        """Writes what a kind keeps beside ids and positions."""

    def _allowed(self, area: Area | None) -> NDArray[np.bool_]:
        return self.live if area is None else self.live & area.contains(self.xy)

    def _bind(self, descriptors: Matrix, role: str = "these") -> None:
        if isinstance(descriptors, DescriptorStore):
            if self.model is not None and self.model != descriptors.model:
                raise InputError(
                    f"the index holds descriptors of model {self.model}, {role} are of model {descriptors.model}; use one model"
                )
            self.model = descriptors.model

    def _appended(self, count: int) -> None:
        """Called when `count` rows were appended."""

    def _search(self, queries: NDArray[np.float32], k: int, rows: Ids) -> Ranking:
        """The k nearest among the rows; k is at most their number."""
        raise NotImplementedError


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
