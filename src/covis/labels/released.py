"""The authors' HDF5 files of labels: `fov` (graded) and `sim` (binary), one per city."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.files import writing_hdf5
from covis.core.foreign import foreign
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.labels.exchange import NUMBERS, Labels

RELEASED_SUFFIX = "_gt.h5"
_VALUES_A_BAND = 1 << 22
"""Matrix entries held at a time: 32 MB."""


_Edges = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Rows, columns and ψ."""


class _Lines(NamedTuple):
    """Which images of one side a file has: their ids, their lines, and how many lines there are."""

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    total: int


class _GroupFile(NamedTuple):
    file: Path
    queries: _Lines
    database: _Lines


def write_released(labels: Labels, path: Path | str, *, full: bool = False) -> list[Path]:
    """Labels as the method's authors released theirs; returns the files.

    Images that are numbered within a list (MSLS) keep their line, with empty rows and columns for those left out; with
    several groups `path` is a folder of `<group>_gt.h5`. Other labels are written as `write_h5` does.
    """
    path = Path(path)
    if not _numbered(labels.queries, labels.database):
        write_h5(labels.graph, path, full=full)
        return [path]
    blocks = _group_files(path, labels.queries, labels.database, making=True)
    matrix = labels.graph.to_scipy()
    for block in blocks:
        part = matrix[block.queries.ids][:, block.database.ids].tocoo()
        shape = (block.queries.total, block.database.total)
        rows, columns = block.queries.rows[part.row], block.database.rows[part.col]
        facts = {**labels.graph.facts, "one_set": False}
        write_h5(SimilarityGraph.from_edges(rows, columns, part.data, shape, facts), block.file)
    return [block.file for block in blocks]


def write_h5(graph: SimilarityGraph, path: Path | str, *, full: bool = False) -> None:
    """`fov` (ψ, float32) and `sim` (ψ ≥ 0.5, uint8), rows and columns as the graph has them.

    Queries × map; one set with itself as a condensed vector of its n(n−1)/2 pairs i < j, unless `full`.
    """
    condensed = bool(graph.facts.get("one_set")) and not full
    n, m = graph.shape
    shape = (n * (n - 1) // 2,) if condensed else (n, m)
    with writing_hdf5(path) as file:
        packed: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "chunks": True}
        options = packed if min(shape) else {}
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
    matrix, step = graph.to_scipy(), _rows_a_band(graph.shape[1])
    for start in range(0, graph.shape[0], step):
        yield start, matrix[start : start + step].toarray()


def _rows_a_band(columns: int) -> int:
    return max(1, min(256, _VALUES_A_BAND // max(1, columns)))


def _condensed(i: NDArray[np.int64] | int, n: int) -> Any:
    """Where row i of the upper triangle begins in a condensed vector."""
    return i * (2 * n - i - 1) // 2


@foreign("labels")
def read_h5(
    path: Path | str, key: str = "fov", *, one_set: bool = False, shape: tuple[int, int] | None = None
) -> SimilarityGraph:
    """A matrix (queries × map) or a condensed vector (one set with itself): `fov` is graded, `sim` binary.

    A vector is always condensed; a row (1, n(n−1)/2) is taken as condensed if `one_set`. Another shape than `shape` is
    refused before anything is read.
    """
    path = Path(path)
    with _open_dataset(path, key) as data:
        condensed = data.ndim == 1 or (one_set and data.shape[0] == 1 != data.shape[1])
        actual = (_side_of(path, data),) * 2 if condensed else tuple(data.shape)
        if shape is not None and actual != shape:
            dimensions = " × ".join(map(str, actual))
            raise InputError(f"{path} is of {dimensions} images; these are {shape[0]} × {shape[1]}")
        edges = _condensed_edges(path, data) if condensed else _matrix_edges(path, data)
    facts = {"rule": "released", "measure": f"released-{key}", "one_set": condensed}
    return SimilarityGraph.from_edges(*edges, actual, facts)


@foreign("labels")
def read_released(path: Path | str, queries: ImageSet, database: ImageSet, key: str = "fov") -> SimilarityGraph:
    """The labels that the method's authors released for these images.

    `path` is a file, or for images of several cities the folder with `<city>_gt.h5` (also below `train_val`). Rows and
    columns are the lines of the dataset's lists, images that are left out (panoramas) included.
    """
    path, one_set, shape = Path(path), queries is database, (len(queries), len(database))
    facts: dict[str, Any] = {"rule": "released", "measure": f"released-{key}", "source": path.name, "one_set": one_set}
    if path.is_dir() or _numbered(queries, database):
        parts = [_read_group_file(block, key) for block in _group_files(path, queries, database)]
        rows, columns, psi = (np.concatenate(values) for values in zip(*parts, strict=True))
        graph = SimilarityGraph.from_edges(rows, columns, psi, shape)
        facts["within_group"] = True  # pairs of two cities were never compared
    else:
        graph = read_h5(path, key, one_set=one_set, shape=shape)
    facts |= {"queries": queries.fingerprint(), "database": database.fingerprint()}
    graph = replace(graph, facts=facts)
    return graph.keep(graph.rows != graph.indices) if one_set else graph


def _numbered(queries: ImageSet, database: ImageSet) -> bool:
    """Whether released labels count more lines than there are images."""
    return all(name in side.columns for side in (queries, database) for name in NUMBERS)


def _group_files(path: Path, queries: ImageSet, database: ImageSet, making: bool = False) -> list[_GroupFile]:
    """The file of each group; a path that is no folder is the file of the only one."""
    present = set(np.array(database.group_names)[np.unique(database.group)].tolist())
    groups = [queries.group_names[g] for g in np.unique(queries.group) if queries.group_names[g] in present]
    single = len(groups) == 1 and not path.is_dir()
    if len(groups) > 1 and (path.suffix if making else not path.is_dir()):
        raise InputError(
            f"{path}: these images are of {len(groups)} groups; give the folder of <group>{RELEASED_SUFFIX}"
        )
    blocks = []
    for group in groups:
        name = f"{group}{RELEASED_SUFFIX}"
        below = not making and (path / "train_val" / name).is_file()
        file = path if single else path / "train_val" / name if below else path / name
        if not making and not file.is_file():
            raise InputError(f"{file} does not exist; get the labels that the authors released, or label from poses")
        blocks.append(_GroupFile(file, _lines(queries, group), _lines(database, group)))
    return blocks


def _lines(images: ImageSet, group: str) -> _Lines:
    ids = np.flatnonzero(images.group == images.group_names.index(group))
    if not all(name in images.columns for name in NUMBERS):
        return _Lines(ids, np.arange(len(ids)), len(ids))
    rows = np.asarray(images.columns["row"][ids], np.int64)
    return _Lines(ids, rows, int(images.columns["rows"][ids].max(initial=0)))


def _read_group_file(block: _GroupFile, key: str) -> _Edges:
    """Pairs of one file as ids of its images."""
    with _open_dataset(block.file, key) as data:
        expected = (block.queries.total, block.database.total)
        if tuple(data.shape) != expected:
            dimensions = " × ".join(map(str, data.shape))
            raise InputError(
                f"{block.file} is of {dimensions} images; the lists have {expected[0]} × {expected[1]} lines, panoramas "
                "included: take labels and lists of one release"
            )
        rows, columns, psi = _matrix_edges(block.file, data)
    inside = [np.full(count, -1) for count in expected]
    for place, lines in zip(inside, (block.queries, block.database), strict=True):
        place[lines.rows] = lines.ids
    i, j = inside[0][rows], inside[1][columns]
    kept = (i >= 0) & (j >= 0)
    return i[kept], j[kept], psi[kept]


@contextlib.contextmanager
def _open_dataset(path: Path, key: str) -> Iterator[Any]:
    import h5py

    try:
        with h5py.File(path) as file:
            if key not in file:
                raise InputError(f"{path} has no dataset {key!r}; it has {', '.join(file) or 'none'}")
            if file[key].ndim not in (1, 2):
                raise InputError(f"{path}: {key!r} has {file[key].ndim} dimensions; expected a matrix or a vector")
            yield file[key]
    except OSError as error:
        raise InputError(f"{path} cannot be read as HDF5 ({error}); check the file") from None


def _matrix_edges(path: Path, data: Any) -> _Edges:
    """Rows, columns and ψ of a matrix's entries above 0, a band at a time."""
    rows, columns, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    step = _rows_a_band(data.shape[1])
    for start in range(0, data.shape[0], step):
        band = _check_range(path, np.asarray(data[start : start + step], np.float64), start)
        r, c = np.nonzero(band)
        rows.append(r + start)
        columns.append(c)
        values.append(band[r, c])
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


def _side_of(path: Path, data: Any) -> int:
    """How many images a condensed vector is of."""
    n = round((1 + np.sqrt(1 + 8 * data.size)) / 2)
    if n * (n - 1) // 2 != data.size:
        raise InputError(f"{path}: {data.name[1:]!r} has {data.size} values, which is not n(n−1)/2 for any n")
    return int(n)


def _condensed_edges(path: Path, data: Any) -> _Edges:
    """The same of a condensed vector, in both directions."""
    n = _side_of(path, data)
    places, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    for start in range(0, data.size, _VALUES_A_BAND):
        part = data[..., start : start + _VALUES_A_BAND]
        band = _check_range(path, np.asarray(part, np.float64).reshape(1, -1), start, condensed=True)[0]
        places.append(np.flatnonzero(band) + start)
        values.append(band[places[-1] - start])
    at, psi = np.concatenate(places), np.concatenate(values)
    i = np.searchsorted(_condensed(np.arange(n), n), at, side="right") - 1
    j = at - _condensed(i, n) + i + 1
    return np.concatenate([i, j]), np.concatenate([j, i]), np.tile(psi, 2)


def _check_range(path: Path, band: NDArray[np.float64], start: int, condensed: bool = False) -> NDArray[np.float64]:
    """ψ in [0, 1]; half-precision rounding above 1 is forgiven, anything else is not."""
    band[(band > 1) & (band < 1 + 1e-3)] = 1.0
    wrong = ~((band >= 0) & (band <= 1))
    if wrong.any():
        r, c = (int(v[0]) for v in np.nonzero(wrong))
        place = f"value {start + c}" if condensed else f"similarity of pair ({start + r}, {c})"
        raise InputError(f"{path}: {place} is {band[r, c]}; expected 0 to 1")
    return band
