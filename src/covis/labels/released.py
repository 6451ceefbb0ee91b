"""The HDF5 files in which the method's authors released their labels: `<city>_gt.h5`, full and condensed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.labels.saved import whole_file

_ROWS_A_BAND = 256
_VALUES_A_BAND = 1 << 24


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


def read_h5(path: Path | str, key: str = "fov", *, one_set: bool = False) -> SimilarityGraph:
    """`<city>_gt.h5` (queries × map) or a condensed vector (one set with itself): `fov` is graded, `sim` binary.

    A vector is always condensed; one that was stored as a row (1, n(n−1)/2) is, if `one_set` says so.
    """
    import h5py

    path = Path(path)
    try:
        with h5py.File(path) as file:
            if key not in file:
                raise InputError(f"{path} has no dataset {key!r}; it has {', '.join(file) or 'none'}")
            data = file[key]
            condensed = data.ndim == 1 or (one_set and data.ndim == 2 and data.shape[0] == 1 and data.shape[1] != 1)
            return _read_condensed(path, data, key) if condensed else _read_full(path, data, key)
    except OSError as error:
        raise InputError(f"{path} cannot be read as HDF5 ({error}); check the file") from None


def read_released(path: Path | str, queries: ImageSet, database: ImageSet, key: str = "fov") -> SimilarityGraph:
    """`read_h5` of labels of these images, in their order; the graph then carries their fingerprints."""
    one_set = queries is database
    graph = read_h5(path, key, one_set=one_set)
    if graph.shape != (len(queries), len(database)):
        told = f"{graph.shape[0]} × {graph.shape[1]}"
        raise InputError(f"{path} is of {told} images; these are {len(queries)} × {len(database)}")
    sides = {"queries": queries.fingerprint(), "database": database.fingerprint()}
    graph = replace(graph, facts={**graph.facts, "source": Path(path).name, "one_set": one_set, **sides})
    return graph.keep(graph.rows != graph.indices) if one_set else graph


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
    n = round((1 + np.sqrt(1 + 8 * data.size)) / 2)
    if n * (n - 1) // 2 != data.size:
        raise InputError(f"{path}: {key!r} has {data.size} values, which is no number of pairs n(n−1)/2")
    places, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    for start in range(0, data.size, _VALUES_A_BAND):
        part = data[..., start : start + _VALUES_A_BAND]
        band = _valid(path, np.asarray(part, np.float64).reshape(1, -1), start, condensed=True)[0]
        places.append(np.flatnonzero(band) + start)
        values.append(band[places[-1] - start])
    at, psi = np.concatenate(places), np.concatenate(values)
    i = np.searchsorted(_condensed(np.arange(n), n), at, side="right") - 1
    j = at - _condensed(i, n) + i + 1
    facts = {"rule": "released", "measure": f"released-{key}", "one_set": True}
    both = np.concatenate([i, j]), np.concatenate([j, i]), np.tile(psi, 2)
    return SimilarityGraph.from_edges(*both, (n, n), facts)


def _valid(path: Path, band: NDArray[np.float64], start: int, condensed: bool = False) -> NDArray[np.float64]:
    """ψ in [0, 1]; half-precision rounding above 1 is forgiven, anything else is not."""
    band[(band > 1) & (band < 1 + 1e-3)] = 1.0
    wrong = ~((band >= 0) & (band <= 1))
    if wrong.any():
        r, c = (int(v[0]) for v in np.nonzero(wrong))
        place = f"value {start + c}" if condensed else f"similarity of pair ({start + r}, {c})"
        raise InputError(f"{path}: {place} is {band[r, c]}; expected 0 to 1")
    return band
