"""Graded similarity of query–map pairs: sparse, memory-mapped, and never without the measure that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core import artifacts
from covis.core.errors import Damaged, InputError
from covis.core.files import load_array

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_KIND = "similarity-graph"
_FACTS = {"shape": list, "pairs": int, "facts": dict}
POSITIVE = 0.5
"""ψ in [POSITIVE, 1] is a positive pair: the one definition of it."""
BAND_EDGES = (POSITIVE, 0.75)
"""Thresholds that quantising must not move a pair across."""


@dataclass(frozen=True, eq=False)
class SimilarityGraph:
    """ψ of every query (row) with every map image (column); absent means 0.

    >>> graph = SimilarityGraph.from_edges(rows=[0, 0, 1], columns=[2, 0, 1], psi=[0.25, 0.75, 0.5], shape=(2, 3))
    >>> graph.pairs, graph.lookup(0, 2).item(), graph.lookup(1, 0).item()
    (3, 0.25, 0.0)
    >>> graph.band(POSITIVE, 1).pairs
    2
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    """Column of each stored pair, ascending within a row."""
    values: NDArray[np.float32] | NDArray[np.uint8]
    """ψ of each stored pair: float32, or uint8 in steps of 1/255."""
    shape: tuple[int, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The measure, its parameters and both sides' fingerprints."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", (int(self.shape[0]), int(self.shape[1])))
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))
        if len(self.indptr) != self.shape[0] + 1 or self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise InputError(
                f"a graph of {self.shape[0]} rows needs {self.shape[0] + 1} row limits from 0 to {len(self.indices)}"
            )
        if len(self.indices) != len(self.values):
            raise InputError(f"{len(self.indices)} columns but {len(self.values)} similarities")
        if self.values.dtype not in (np.float32, np.uint8):
            raise InputError(f"similarities are {self.values.dtype}; expected float32 or uint8")
        if len(self.values):
            self._validate()

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping cannot be pickled, so it could not be sent to worker processes.
        return type(self), (self.indptr, self.indices, self.values, self.shape, dict(self.facts))

    def _validate(self) -> None:
        if self.indices.min() < 0 or self.indices.max() >= self.shape[1]:
            raise InputError(f"a pair names map image {int(self.indices.max())}, but the map has {self.shape[1]}")
        wrong = ~(self.values > 0) | ~(self.values <= (1 if self.values.dtype == np.float32 else 255))
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            row = int(np.searchsorted(self.indptr, at, side="right") - 1)
            raise InputError(
                f"similarity of pair ({row}, {int(self.indices[at])}) is {self.values[at]}; stored ones must be in (0, 1] "
                f"({int(wrong.sum())} such pairs)"
            )

    @property
    def has_grades(self) -> bool:
        """Whether ψ takes more than one value."""
        return self.pairs > 0 and float(self.psi.min()) < float(self.psi.max())

    @property
    def pairs(self) -> int:
        """How many pairs are stored."""
        return len(self.indices)

    @property
    def psi(self) -> NDArray[np.float32]:
        """(pairs,) similarities as float32."""
        return _decode(self.values)

    def psi_at(self, at: Any) -> NDArray[np.float32]:
        """ψ of the stored pairs at these places."""
        return _decode(self.values[at])

    @property
    def rows(self) -> NDArray[np.int64]:
        """(pairs,) the row of each stored pair."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    def row(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Map ids and ψ of query i."""
        part = slice(int(self.indptr[i]), int(self.indptr[i + 1]))
        return self.indices[part], self.psi_at(part)

    def band(self, low: float, high: float) -> SimilarityGraph:
        """The stored pairs with low ≤ ψ < high; a high of 1 includes 1."""
        psi = self.psi
        keep = (psi >= low) & ((psi < high) if high < 1 else (psi <= 1))
        return self.keep(keep, band=[low, high])

    def keep(self, mask: NDArray[np.bool_], **facts: Any) -> SimilarityGraph:
        """The stored pairs where `mask` (pairs,) holds."""
        kept = np.concatenate([[0], np.cumsum(mask)])[self.indptr].astype(np.int64)
        return replace(
            self, indptr=kept, indices=self.indices[mask], values=self.values[mask], facts={**self.facts, **facts}
        )

    def lookup(self, i: ArrayLike, j: ArrayLike) -> NDArray[np.float32]:
        """ψ of aligned pairs (i, j), 0 where absent."""
        i, j = np.broadcast_arrays(np.asarray(i, np.int64), np.asarray(j, np.int64))
        if not self.pairs:
            return np.zeros(i.shape, np.float32)
        lo, hi = self.indptr[i], self.indptr[i + 1]
        for _ in range(max(1, int(np.diff(self.indptr).max())).bit_length()):
            middle = (lo + hi) // 2
            right = (lo < hi) & (self.indices[np.minimum(middle, self.pairs - 1)] < j)
            lo, hi = np.where(right, middle + 1, lo), np.where(right | (lo >= hi), hi, middle)
        at = np.minimum(lo, self.pairs - 1)
        stored = (lo < self.indptr[i + 1]) & (self.indices[at] == j)
        return np.where(stored, self.psi_at(at), np.float32(0))

    def to_scipy(self) -> csr_matrix:
        """The same as a scipy matrix of float32."""
        from scipy.sparse import csr_matrix

        return csr_matrix((self.psi, self.indices, self.indptr), shape=self.shape)

    def quantised(self) -> SimilarityGraph:
        """The same with ψ in uint8; no pair crosses a band edge, none becomes 0."""
        return replace(self, values=_encode(self.psi), facts={**self.facts, "dtype": "uint8"})

    def fingerprint(self) -> str:
        """Changes with any pair or fact."""
        return artifacts.fingerprint(self.indptr, self.indices, self.values, dict(self.facts))

    def save(
        self, path: Path | str, *, replace: bool = False, beside: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Writes the graph as an artefact directory; arrays `beside` it (such as names) are kept as <key>.npy."""
        facts = {"shape": list(self.shape), "pairs": self.pairs, "facts": dict(self.facts)}
        with artifacts.create(path, _KIND, facts, replace=replace) as draft:
            for name, array in (("indptr", self.indptr), ("indices", self.indices), ("values", self.values)):
                np.save(draft.path / f"{name}.npy", array)
            for name, array in (beside or {}).items():
                np.save(draft.path / f"{name}.npy", array)

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> SimilarityGraph:
        """Opens a saved graph, memory-mapped."""
        path = Path(path)
        manifest = artifacts.open_manifest(path, _KIND, facts=_FACTS, verify=verify)
        shape = manifest["shape"]
        if len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
            raise Damaged(f"{path} claims the shape {shape}; make it again")
        remedy, pairs = f"make {path} again", manifest["pairs"]
        indptr = load_array(path / "indptr.npy", "i", (shape[0] + 1,), mapped=True, remedy=remedy)
        indices = load_array(path / "indices.npy", "i", (pairs,), mapped=True, remedy=remedy)
        values = load_array(path / "values.npy", "fu", (pairs,), mapped=True, remedy=remedy)
        return cls(indptr, indices, values, tuple(shape), manifest["facts"])

    @classmethod
    def from_edges(
        cls,
        rows: ArrayLike,
        columns: ArrayLike,
        psi: ArrayLike,
        shape: tuple[int, int],
        facts: Mapping[str, Any] | None = None,
    ) -> SimilarityGraph:
        """A graph from aligned edge lists in any order; zeros are left out, duplicates and wrong ψ refused."""
        r, c = _indices(rows), _indices(columns)
        p = np.asarray(psi, np.float64)
        if not (r.shape == c.shape == p.shape):
            raise InputError(f"edge lists differ in length: {r.shape}, {c.shape}, {p.shape}")
        outside = (r < 0) | (r >= shape[0]) | (c < 0) | (c >= shape[1]) | ~((p >= 0) & (p <= 1))
        if outside.any():
            k = int(np.flatnonzero(outside)[0])
            raise InputError(
                f"edge {k} ({r[k]}, {c[k]}, ψ = {p[k]}) is outside a {shape[0]}×{shape[1]} graph with ψ in [0, 1]"
            )
        keep = p > 0
        order = np.lexsort((c[keep], r[keep]))
        r, c, p = r[keep][order], c[keep][order], p[keep][order]
        twice = (np.diff(r) == 0) & (np.diff(c) == 0)
        if twice.any():
            k = int(np.flatnonzero(twice)[0])
            raise InputError(f"pair ({r[k]}, {c[k]}) is listed twice")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(r, minlength=shape[0]))]).astype(np.int64)
        values = np.maximum(p.astype(np.float32), np.finfo(np.float32).tiny)
        return cls(indptr, c.astype(np.int32), values, shape, facts or {})


def _indices(values: ArrayLike) -> NDArray[np.int64]:
    """Row or column numbers of edges, whole and finite."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" and array.size:
        raise InputError(f"an index of an edge is {array.flat[0]!r}; expected whole numbers")
    if array.dtype.kind == "f":
        wrong = ~(np.isfinite(array) & (np.mod(array, 1) == 0))
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            raise InputError(f"edge {k} has the index {array[k]}; expected a whole number")
    return array.astype(np.int64)


def _decode(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.uint8:
        return values.astype(np.float32) / np.float32(255)
    return np.asarray(values)


def _encode(psi: NDArray[np.float32]) -> NDArray[np.uint8]:
    codes = np.maximum(1, np.rint(psi.astype(np.float64) * 255)).astype(np.int64)
    for edge in BAND_EDGES:
        first = int(np.ceil(edge * 255))
        codes = np.where(psi >= edge, np.maximum(codes, first), np.minimum(codes, first - 1))
    return codes.astype(np.uint8)
