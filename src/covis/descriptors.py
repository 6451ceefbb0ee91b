"""Descriptors on disk: a matrix in shards, memory-mapped, with the name of every row and the model that made it.

A store is an artefact directory: `shard-00000.npy` (rows, dim) and `names-00000.npy` for each shard, and a manifest.
A shard appears whole or not at all, and only the manifest makes it part of the store, so that readers never see half
an append and an interrupted run keeps every finished shard. Until there is a manifest, `part-00000.json` holds the
checksums of a shard, so that a damaged one is made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core import artifacts
from covis.core.arrays import Descriptors
from covis.core.errors import Damaged, InputError
from covis.core.files import load_array, read_record, replacing
from covis.images import ImageSet, encode_names

STORE_KIND = "descriptors"
Precision = Literal["float32", "float16"]
PRECISIONS = ("float32", "float16")
_FACTS = {"model": str, "rows": int, "dim": int, "dtype": str, "facts": dict}
NORM_TOLERANCE = 5e-3
"""How far a stored descriptor's norm may be from 1; float16 alone moves it by up to 5e-4."""


_SMALL_ROWS = 4096


class Matrix(Protocol):
    """Rows of descriptors: an array, or a `DescriptorStore`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Stacked:
    """Several matrices, stacked vertically without copying them."""

    parts: tuple[Matrix, ...]
    dim: int
    dtype: Any = np.float32
    """Type of an empty result; other results keep the type of their part."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, dim)."""
        return int(self._starts[-1]), self.dim

    def __len__(self) -> int:
        return int(self._starts[-1])

    def extended(self, part: Matrix) -> Stacked:
        """The same with one more part below; a small array is joined to a small one, so that parts stay few."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, np.ndarray) and isinstance(part, np.ndarray) and len(last) + len(part) <= _SMALL_ROWS:
            return Stacked((*self.parts[:-1], np.concatenate([last, part])), self.dim, self.dtype)
        return Stacked((*self.parts, part), self.dim, self.dtype)

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        """Rows by slice (a view where one part holds them) or by an array of row numbers."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._between(start, max(start, stop))
            rows = np.arange(start, stop, step)
        return self._picked(np.asarray(rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._between(0, len(self)), dtype)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum([len(p) for p in self.parts])]).astype(np.int64)

    @cached_property
    def borders(self) -> NDArray[np.int64]:
        """Rows where parts begin, and the end: a slice between two consecutive ones is a view."""
        inner = [
            getattr(p, "borders", np.array([0, len(p)])) + low for p, low in zip(self.parts, self._starts, strict=False)
        ]
        return np.unique(np.concatenate([[0], *inner])).astype(np.int64)

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        shards = []
        for part, low in zip(self.parts[first:], self._starts[first:-1].tolist(), strict=True):
            if low >= stop:
                break
            shards.append(np.asarray(part[max(start - low, 0) : stop - low]))
        if not shards:
            return np.zeros((0, self.dim), self.dtype)
        return shards[0] if len(shards) == 1 else np.concatenate(shards)

    def _picked(self, rows: NDArray[Any]) -> NDArray[Any]:
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        present = np.unique(which).tolist()
        if len(present) == 1:
            return np.asarray(self.parts[present[0]][rows - self._starts[present[0]]])
        picked = np.empty((len(rows), self.dim), self.dtype)
        for i in present:
            inside = which == i
            picked[inside] = self.parts[i][rows[inside] - self._starts[i]]
        return picked


@dataclass(frozen=True, eq=False)
class DescriptorStore:
    """A matrix (N, dim) of unit descriptors on disk, as it was when it was opened.

    >>> import covis
    >>> queries, photos = covis.datasets.load("town", None, "val")
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> store = covis.embed(model, photos, "val.store", workers=0)
    >>> covis.DescriptorStore.open("val.store").shape == (len(photos), 256)
    True
    """

    path: Path
    model: str
    """Fingerprint of the model that made every row."""
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    shards: tuple[NDArray[Any], ...]
    """Memory-mapped parts (rows, dim), in order."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        path: Path | str,
        model: str,
        dim: int,
        dtype: Precision = "float32",
        facts: Mapping[str, Any] | None = None,
    ) -> DescriptorStore:
        """An empty store at `path` for descriptors of one model."""
        head = _head(model, dim, dtype, facts or {})
        with artifacts.create(path, STORE_KIND, {**head, "rows": 0}):
            pass
        return cls.open(path, written=True)

    @classmethod
    def open(
        cls, path: Path | str, *, verify: bool = True, links: bool = True, written: bool = False
    ) -> DescriptorStore:
        """Opens a store, memory-mapped; `verify`, `links` and `written` as in `artifacts.open_manifest`."""
        path = Path(path)
        if (path / "embedding.json").is_file() and not (path / artifacts.MANIFEST).is_file():
            raise InputError(f"{path} is unfinished; run the same covis embed command again to finish it")
        manifest = artifacts.open_manifest(path, STORE_KIND, facts=_FACTS, verify=verify, links=links, written=written)
        shape = (manifest["rows"], manifest["dim"])
        if manifest["dtype"] not in PRECISIONS or min(shape) < 0:
            raise Damaged(f"{path} claims to hold {shape} descriptors of {manifest['dtype']!r}; make it again")
        shards = tuple(_shard(path / name, shape[1], manifest["dtype"]) for name in _shard_names(manifest["files"]))
        if sum(map(len, shards)) != shape[0]:
            raise Damaged(f"{path} holds other rows than its manifest says; make it again")
        facts = MappingProxyType(manifest["facts"])
        return cls(path, manifest["model"], shape, np.dtype(manifest["dtype"]), shards, facts, manifest["files"])

    @classmethod
    def in_memory(
        cls, names: Iterable[str | bytes], descriptors: ArrayLike, model: str, label: str = "(in memory)"
    ) -> DescriptorStore:
        """Descriptors (n, dim) that are not on disk, to be read like those of a store."""
        matrix, encoded = np.asarray(descriptors, np.float32), encode_names(names)
        _check(matrix, encoded, matrix.shape[-1])
        store = cls(Path(label), model, (len(matrix), matrix.shape[1]), matrix.dtype, (matrix,))
        store.__dict__["names"] = encoded
        return store

    def append(self, names: Iterable[str | bytes], descriptors: ArrayLike, *, model: str) -> DescriptorStore:
        """The store with one more shard; this one stays as it was, and the change is all or nothing.

        names (n,), descriptors (n, dim) of unit norm, made by the model with fingerprint `model`.
        """
        self.require(model)
        with artifacts.lock(self.path):
            now = DescriptorStore.open(self.path, written=True)
            added = write_shard(self.path, len(now.shards), names, descriptors, now.shape[1], now.dtype)
            files = {**now.files, **{file.name: artifacts.file_entry(file) for file in added}}
            rows = now.shape[0] + len(load_array(added[-1], mapped=True))
            head = _head(now.model, now.shape[1], now.dtype.name, now.facts)
            artifacts.write_manifest(self.path, STORE_KIND, {**head, "rows": rows}, files)
        return DescriptorStore.open(self.path, written=True)

    def require(self, model: str) -> None:
        """Refuses descriptors of another model."""
        if model != self.model:
            raise InputError(
                f"{self.path} holds descriptors of model {self.model}, these are of model {model}; embed them with one model"
            )

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    @property
    def dim(self) -> int:
        """Numbers per descriptor."""
        return self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def names(self) -> NDArray[np.bytes_]:
        """(N,) the name of each row, as file-system bytes."""
        parts = [
            load_array(self.path / f"names-{i:05d}.npy", "S", (len(shard),), remedy=f"make {self.path} again")
            for i, shard in enumerate(self.shards)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, "S1")

    def rows(self, names: Iterable[str | bytes]) -> NDArray[np.int64]:
        """The row of each name; −1 where it is not in the store, the last one where a name is there twice."""
        wanted = encode_names(names)
        order = np.argsort(self.names, kind="stable")
        at = np.searchsorted(self.names, wanted, side="right", sorter=order) - 1
        rows = np.where(at >= 0, order[np.maximum(at, 0)] if len(order) else -1, -1)
        return np.where((rows >= 0) & (self.names[rows] == wanted), rows, -1) if len(order) else rows

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        """Rows by slice (a view where one shard holds them) or by an array of ids, in the stored precision."""
        return self._stacked[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._stacked, dtype)

    @property
    def borders(self) -> NDArray[np.int64]:
        """Rows where shards begin, and the end."""
        return self._stacked.borders

    @cached_property
    def _stacked(self) -> Stacked:
        return Stacked(self.shards, self.dim, self.dtype)

    def fingerprint(self) -> str:
        """Changes with any row, name or model."""
        return artifacts.fingerprint(self.model, {name: entry["sha256"] for name, entry in self.files.items()})


def write_shard(
    path: Path, number: int, names: Iterable[str | bytes], descriptors: ArrayLike, dim: int, dtype: Any
) -> list[Path]:
    """Writes one shard's files, each whole or not at all: names and descriptors."""
    matrix, encoded = np.asarray(descriptors), encode_names(names)
    _check(matrix, encoded, dim)
    files = [path / f"names-{number:05d}.npy", path / shard_name(number)]
    for file, array in zip(files, (encoded, matrix.astype(dtype, copy=False)), strict=True):
        with replacing(file) as partial, partial.open("wb") as handle:
            np.save(handle, array)
    return files


def write_part(
    path: Path, number: int, names: Iterable[str | bytes], descriptors: ArrayLike, dim: int, dtype: Any, *, facts: Any
) -> None:
    """Writes a shard of an unfinished store, and last its record: checksums of its files, and `facts` (JSON)."""
    written = write_shard(path, number, names, descriptors, dim, dtype)
    entries = {file.name: artifacts.file_entry(file) for file in written}
    artifacts.write_json(path / part_name(number), {"files": entries, "facts": facts})


def read_part(path: Path, number: int) -> dict[str, Any] | None:
    """The record of a shard of an unfinished store, after checking its files; None where there is no whole shard."""
    try:
        record = read_record(path / part_name(number), {"files": dict, "facts": (dict, list)})
        sound = all(artifacts.file_entry(path / name) == entry for name, entry in record["files"].items())
    except (InputError, OSError):
        return None
    return record if sound else None


def seal(
    path: Path,
    parts: Iterable[Mapping[str, Any]],
    model: str,
    dim: int,
    dtype: str,
    *,
    facts: Mapping[str, Any],
    others: Iterable[Path] = (),
) -> DescriptorStore:
    """Makes a store of the shards with these records that lie in `path`; `others` are files that belong to it too.

    Its manifest takes the checksums that were noted when the shards were written, so that later damage shows.
    """
    entries = {name: entry for part in parts for name, entry in part["files"].items()}
    rows = sum(len(load_array(path / name, mapped=True)) for name in _shard_names(entries))
    head = {**_head(model, dim, dtype, facts), "rows": rows}
    artifacts.write_manifest(path, STORE_KIND, head, entries | {f.name: artifacts.file_entry(f) for f in others})
    clear_parts(path)
    return DescriptorStore.open(path, written=True)


def clear_parts(path: Path) -> None:
    """Removes the records of shards once the store is finished."""
    for file in path.glob(part_name("*")):
        file.unlink(missing_ok=True)


def norms(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """(N,) the norm of each row, without a copy of the matrix."""
    squared: NDArray[np.float64] = np.einsum("nd,nd->n", matrix, matrix, dtype=np.float64)
    return np.sqrt(squared)


def shard_name(number: int) -> str:
    """The file of a shard's descriptors."""
    return f"shard-{number:05d}.npy"


def part_name(number: int | Literal["*"]) -> str:
    """The record of a shard of an unfinished store: if the record is whole, so is the shard."""
    return f"part-{number if number == '*' else f'{number:05d}'}.json"


def _shard(path: Path, dim: int, dtype: str) -> NDArray[Any]:
    shard = load_array(path, "f", (None, dim), mapped=True, remedy=f"make {path.parent} again")
    if shard.dtype.name != dtype:
        raise Damaged(f"{path} holds {shard.dtype}, its manifest says {dtype}; make {path.parent} again")
    return shard


def _shard_names(files: Mapping[str, Any]) -> list[str]:
    return [shard_name(i) for i in range(sum(name.startswith("shard-") for name in files))]


def _head(model: str, dim: int, dtype: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    if dtype not in PRECISIONS:
        raise InputError(f"descriptors are stored as float32 or float16, not {dtype}")
    return {"model": model, "dim": int(dim), "dtype": dtype, "facts": dict(facts)}


def _check(matrix: NDArray[Any], names: NDArray[np.bytes_], dim: int) -> None:
    if matrix.ndim != 2 or matrix.shape != (len(names), dim):
        raise InputError(f"expected {len(names)} descriptors of {dim} numbers, got an array of shape {matrix.shape}")
    norm = norms(matrix)
    wrong = ~(np.abs(norm - 1) <= NORM_TOLERANCE)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"descriptor of {os.fsdecode(names[row])} has norm {norm[row]:.4g}, not 1 ({int(wrong.sum())} such); "
            "check the image and the model"
        )


class Describer(Protocol):
    """Anything that describes images."""

    @property
    def facts(self) -> dict[str, Any]:
        """Its description for the evaluation's record; `label` names it, `fingerprint` distinguishes it from others."""
        ...

    def describe(self, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
        """Unit descriptors of the images that have one, and (N,) which have none."""
        ...
