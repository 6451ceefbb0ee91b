"""The authors' HDF5 files of labels: `fov` (graded) and `sim` (binary), one per city."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.core.files import writing_hdf5
from covis.core.foreign import foreign
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.labels.exchange import NUMBERS, Labels

RELEASED_SUFFIX = "_gt.h5"
_VALUES_A_BAND = 1 << 22
"""Matrix entries held at a time: 32 MB."""


class _GroupFile(NamedTuple):
    """A group's file, and the ids and lines of its images on each side, with how many lines there are."""

    file: Path
    queries: tuple[Ids, Ids, int]
    database: tuple[Ids, Ids, int]


def write_released(labels: Labels, path: Path | str) -> list[Path]:
    """Labels as the method's authors released theirs; returns the files.

    Images that are numbered within a list (MSLS) keep their line, with empty rows and columns for those left out; with
    several groups `path` is a folder of `<group>_gt.h5`. Other labels are written as `write_h5` does.
    """
    path = Path(path)
    if not _numbered(labels.queries, labels.database):
        write_h5(labels.graph, path)
        return [path]
    files = _group_files(path, labels.queries, labels.database, making=True)
    matrix, facts = labels.graph.to_scipy(), {**labels.graph.facts, "one_set": False}
    for file, (ids, lines, total), (other_ids, other_lines, other_total) in files:
        part = matrix[ids][:, other_ids].tocoo()
        shape = (total, other_total)
        write_h5(SimilarityGraph.from_edges(lines[part.row], other_lines[part.col], part.data, shape, facts), file)
    return [file for file, _, _ in files]


def write_h5(graph: SimilarityGraph, path: Path | str) -> None:
    """`fov` (ψ, float32) and `sim` (ψ ≥ 0.5, uint8), rows and columns as the graph has them.

    Queries × map; one set with itself as a condensed vector of its n(n−1)/2 pairs i < j.
    """
    condensed = bool(graph.facts.get("one_set"))
    n, m = graph.shape
    shape = (n * (n - 1) // 2,) if condensed else (n, m)
    matrix, step = graph.to_scipy(), _rows_a_band(m)
    options: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "chunks": True}
    with writing_hdf5(path) as file:
        fov = file.create_dataset("fov", shape, np.float32, **(options if min(shape) else {}))
        sim = file.create_dataset("sim", shape, np.uint8, **(options if min(shape) else {}))
        for key, value in graph.facts.items():
            file.attrs[key] = str(value)
        for start in range(0, n, step):
            band, at = matrix[start : start + step].toarray(), slice(start, start + step)
            if condensed:
                band = np.concatenate([row[start + k + 1 :] for k, row in enumerate(band)])
                at = slice(_condensed(start, n), _condensed(start, n) + len(band))
            fov[at], sim[at] = band, band >= POSITIVE


def _rows_a_band(columns: int) -> int:
    return max(1, min(256, _VALUES_A_BAND // max(1, columns)))


def _condensed(i: Ids | int, n: int) -> Any:
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
        at, psi = _entries(path, data, 0 if condensed else data.shape[1])
    facts = {"rule": "released", "measure": f"released-{key}", "one_set": condensed}
    if not condensed:
        return SimilarityGraph.from_edges(*np.divmod(at, actual[1]), psi, actual, facts)
    i = np.searchsorted(_condensed(np.arange(actual[0]), actual[0]), at, side="right") - 1
    j = at - _condensed(i, actual[0]) + i + 1
    rows, columns = np.concatenate([i, j]), np.concatenate([j, i])
    return SimilarityGraph.from_edges(rows, columns, np.tile(psi, 2), actual, facts)


@foreign("labels")
def read_released(path: Path | str, queries: ImageSet, database: ImageSet, key: str = "fov") -> SimilarityGraph:
    """The labels that the method's authors released for these images.

    `path` is a file, or for images of several cities the folder with `<city>_gt.h5` (also below `train_val`). Rows and
    columns are the lines of the dataset's lists, images that are left out (panoramas) included.
    """
    path, one_set, shape = Path(path), queries is database, (len(queries), len(database))
    facts: dict[str, Any] = {"rule": "released", "measure": f"released-{key}", "source": path.name, "one_set": one_set}
    if path.is_dir() or _numbered(queries, database):
        parts = [_group_edges(file, key) for file in _group_files(path, queries, database)]
        rows, columns, psi = (np.concatenate(values) for values in zip(*parts, strict=True))
        graph = SimilarityGraph.from_edges(rows, columns, psi, shape)
        facts["within_group"] = True  # pairs of two cities were never compared
    else:
        graph = read_h5(path, key, one_set=one_set, shape=shape)
    facts |= {"queries": queries.fingerprint(), "database": database.fingerprint()}
    graph = replace(graph, facts=facts)
    return graph.keep(graph.rows != graph.indices) if one_set else graph


def _numbered(*sides: ImageSet) -> bool:
    """Whether released labels count more lines than there are images."""
    return all(name in side.columns for side in sides for name in NUMBERS)


def _group_files(path: Path, queries: ImageSet, database: ImageSet, making: bool = False) -> list[_GroupFile]:
    """The file of each group; a path that is no folder is the file of the only one."""
    present = set(np.array(database.group_names)[np.unique(database.group)].tolist())
    groups = [queries.group_names[g] for g in np.unique(queries.group) if queries.group_names[g] in present]
    if len(groups) > 1 and (path.suffix if making else not path.is_dir()):
        raise InputError(
            f"{path}: these images are of {len(groups)} groups; give the folder of <group>{RELEASED_SUFFIX}"
        )
    files = []
    for group in groups:
        file = path / f"{group}{RELEASED_SUFFIX}" if path.is_dir() or len(groups) > 1 else path
        below = path / "train_val" / file.name
        file = below if below.is_file() and not making else file
        if not making and not file.is_file():
            raise InputError(f"{file} does not exist; get the labels that the authors released, or label from poses")
        files.append(_GroupFile(file, _lines(queries, group), _lines(database, group)))
    return files


def _lines(images: ImageSet, group: str) -> tuple[Ids, Ids, int]:
    ids = np.flatnonzero(images.group == images.group_names.index(group))
    if not _numbered(images):
        return ids, np.arange(len(ids)), len(ids)
    return ids, np.asarray(images.columns["row"][ids], np.int64), int(images.columns["rows"][ids].max(initial=0))


def _group_edges(block: _GroupFile, key: str) -> tuple[Ids, Ids, Floats]:
    """Pairs of one file as ids of its images, and ψ."""
    totals = [total for _, _, total in block[1:]]
    with _open_dataset(block.file, key) as data:
        if list(data.shape) != totals:
            dimensions = " × ".join(map(str, data.shape))
            raise InputError(
                f"{block.file} is of {dimensions} images; the lists have {totals[0]} × {totals[1]} lines, panoramas "
                "included: take labels and lists of one release"
            )
        at, psi = _entries(block.file, data, totals[1])
    found = []
    for line, (ids, lines, total) in zip(np.divmod(at, totals[1]), block[1:], strict=True):
        place = np.full(total, -1)
        place[lines] = ids
        found.append(place[line])
    kept = (found[0] >= 0) & (found[1] >= 0)
    return found[0][kept], found[1][kept], psi[kept]


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


def _side_of(path: Path, data: Any) -> int:
    """How many images a condensed vector is of."""
    n = round((1 + np.sqrt(1 + 8 * data.size)) / 2)
    if n * (n - 1) // 2 != data.size:
        raise InputError(f"{path}: {data.name[1:]!r} has {data.size} values, which is not n(n−1)/2 for any n")
    return int(n)


def _entries(path: Path, data: Any, columns: int) -> tuple[Ids, Floats]:
    """Where entries above 0 stand, counted row by row, and ψ; a band at a time. columns: 0 for a condensed vector."""
    places: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    values: list[NDArray[np.float64]] = [np.zeros(0)]
    step = _rows_a_band(columns) if columns else _VALUES_A_BAND
    for start in range(0, data.shape[0] if columns else data.size, step):
        part = data[start : start + step] if columns else data[..., start : start + step]
        band, first = np.asarray(part, np.float64).ravel(), start * max(columns, 1)
        band[(band > 1) & (band < 1 + 1e-3)] = 1.0  # half precision, rounded
        wrong = np.flatnonzero(~((band >= 0) & (band <= 1)))
        if len(wrong):
            k = first + int(wrong[0])
            place = f"similarity of pair {divmod(k, columns)}" if columns else f"value {k}"
            raise InputError(f"{path}: {place} is {band[wrong[0]]}; expected 0 to 1")
        places.append(np.flatnonzero(band) + first)
        values.append(band[places[-1] - first])
    return np.concatenate(places), np.concatenate(values)
