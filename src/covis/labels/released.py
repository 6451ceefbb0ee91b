"""The HDF5 files in which the method's authors released their labels: `<city>_gt.h5`, full and condensed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.graph import POSITIVE, SimilarityGraph
from covis.labels.saved import whole_file

_ROWS_A_BAND = 256


def write_h5(graph: SimilarityGraph, path: Path | str, *, full: bool = False) -> None:
    """`fov` (ψ, float32) and `sim` (ψ ≥ 0.5, uint8), as the method's authors released theirs.

    Queries × map; one set with itself as a condensed vector of its n(n−1)/2 pairs i < j, unless `full`.
    """
    import h5py

    condensed = bool(graph.facts.get("one_set")) and not full
    n, m = graph.shape
    shape = (n * (n - 1) // 2,) if condensed else (n, m)
    with whole_file(path) as partial, h5py.File(partial, "w") as file:
        options: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "chunks": True}
        options = options if min(shape) else {}
        fov = file.create_dataset("fov", shape, np.float32, **options)
        sim = file.create_dataset("sim", shape, np.uint8, **options)
        for key, value in graph.facts.items():
            file.attrs[key] = str(value)
        for start, band in _bands(graph):
            if condensed:
                vector = np.concatenate([row[start + k + 1 :] for k, row in enumerate(band)])
                at = slice(_condensed(start, n), _condensed(start, n) + len(vector))
                fov[at], sim[at] = vector, vector >= POSITIVE
            else:
                fov[start : start + len(band)], sim[start : start + len(band)] = band, band >= POSITIVE


def _bands(graph: SimilarityGraph) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Dense rows, a few at a time."""
    matrix = graph.to_scipy()
    for start in range(0, graph.shape[0], _ROWS_A_BAND):
        yield start, matrix[start : start + _ROWS_A_BAND].toarray()


def _condensed(i: NDArray[np.int64] | int, n: int) -> Any:
    """Where row i of the upper triangle begins in a condensed vector."""
    return i * (2 * n - i - 1) // 2


def read_h5(path: Path | str, key: str = "fov") -> SimilarityGraph:
    """`<city>_gt.h5` (queries × map) or a condensed vector (one set with itself): `fov` is graded, `sim` binary."""
    import h5py

    path = Path(path)
    try:
        with h5py.File(path) as file:
            if key not in file:
                raise InputError(f"{path} has no dataset {key!r}; it has {', '.join(file) or 'none'}")
            return _read_condensed(path, file[key], key) if file[key].ndim == 1 else _read_full(path, file[key], key)
    except OSError as error:
        raise InputError(f"{path} cannot be read as HDF5 ({error}); check the file") from None


def _read_full(path: Path, data: Any, key: str) -> SimilarityGraph:
    rows, columns, values = [], [], []
    for start in range(0, data.shape[0], _ROWS_A_BAND):
        band = _valid(path, np.asarray(data[start : start + _ROWS_A_BAND], np.float64), start)
        r, c = np.nonzero(band)
        rows.append(r + start)
        columns.append(c)
        values.append(band[r, c])
    r, c, v = (np.concatenate([np.zeros(0), *parts]) for parts in (rows, columns, values))
    facts = {"rule": "released", "measure": f"released-{key}", "one_set": False}
    return SimilarityGraph.from_edges(r, c, v, tuple(data.shape), facts)


def _read_condensed(path: Path, data: Any, key: str) -> SimilarityGraph:
    n = round((1 + np.sqrt(1 + 8 * data.shape[0])) / 2)
    if n * (n - 1) // 2 != data.shape[0]:
        raise InputError(f"{path}: {key!r} has {data.shape[0]} values, which is no number of pairs n(n−1)/2")
    vector = _valid(path, np.asarray(data[:], np.float64)[None], 0)[0]
    at = np.flatnonzero(vector)
    i = np.searchsorted(_condensed(np.arange(n), n), at, side="right") - 1
    j = at - _condensed(i, n) + i + 1
    facts = {"rule": "released", "measure": f"released-{key}", "one_set": True}
    both = np.concatenate([i, j]), np.concatenate([j, i]), np.tile(vector[at], 2)
    return SimilarityGraph.from_edges(*both, (n, n), facts)


def _valid(path: Path, band: NDArray[np.float64], start: int) -> NDArray[np.float64]:
    """ψ in [0, 1]; half-precision rounding above 1 is forgiven, anything else is not."""
    band[(band > 1) & (band < 1 + 1e-3)] = 1.0
    wrong = ~((band >= 0) & (band <= 1))
    if wrong.any():
        r, c = (int(v[0]) for v in np.nonzero(wrong))
        raise InputError(f"{path}: similarity of pair ({start + r}, {c}) is {band[r, c]}; expected 0 to 1")
    return band
