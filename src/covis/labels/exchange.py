"""Labels in and out: a graph's folder with its images, edge lists (CSV, Parquet, hloc) and the authors' HDF5 files."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import InputError
from covis.core.files import check_regular, foreign, load_array, read_foreign, replacing, writing_hdf5
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses

_ARRAYS = ("names", "xy", "heading")
NUMBERS = ("row", "rows")
"""Columns for released labels, which also count left-out images: an image's line, and the lines of its list."""


class Labels(NamedTuple):
    """A graph and what its rows and columns are."""

    graph: SimilarityGraph
    queries: ImageSet
    database: ImageSet


def save_labels(labels: Labels, path: Path | str) -> None:
    """Writes the graph and, beside it, its images' names, positions, headings, groups and line numbers."""
    sides = {"queries": labels.queries}
    if labels.database is not labels.queries:
        sides["database"] = labels.database
    beside = {f"{side}_{name}": array for side, images in sides.items() for name, array in _arrays(images).items()}
    labels.graph.save(path, beside=beside)


def _arrays(images: ImageSet) -> dict[str, NDArray[Any]]:
    """What is kept of one side."""
    kept = dict(zip(_ARRAYS, (images.names, images.poses.xy, images.poses.heading), strict=True))
    if images.group_names != ("",):
        kept["group"] = np.array(images.group_names)[images.group]
    return {**kept, **{name: images.columns[name] for name in NUMBERS if name in images.columns}}


def open_labels(path: Path | str) -> Labels:
    """Opens what `save_labels` wrote; the same object twice where a set was matched with itself."""
    path = Path(path)
    graph = SimilarityGraph.open(path)
    queries = _side(path, "queries", graph.shape[0])
    one_set = not (path / "database_names.npy").exists()
    return Labels(graph, queries, queries if one_set else _side(path, "database", graph.shape[1]))


def _side(path: Path, side: str, n: int) -> ImageSet:
    remedy = f"make {path} again with `covis label`"
    if not all((path / f"{side}_{name}.npy").is_file() for name in _ARRAYS):
        raise InputError(f"{path} does not name its images; make it again with `covis label`")
    names = load_array(path / f"{side}_names.npy", "S", (n,), remedy=remedy)
    xy = load_array(path / f"{side}_xy.npy", "f", (n, 2), remedy=remedy)
    heading = load_array(path / f"{side}_heading.npy", "f", (n,), remedy=remedy)
    more = {
        name: load_array(path / f"{side}_{name}.npy", "fiuUSb", remedy=remedy)
        for name in ("group", *NUMBERS)
        if (path / f"{side}_{name}.npy").is_file()
    }
    return ImageSet.of(path, names, Poses(xy, heading), more.pop("group", ""), columns=more)


_COLUMNS = ("query", "database", "similarity")
_EDGES_A_BAND = 1 << 20
Names = tuple[Sequence[bytes], Sequence[bytes]]
ExactPairs = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]


def write_edges(labels: Labels, path: Path | str, kind: str | None = None, *, least: float = 0.0) -> int:
    """`query, database, similarity` of every stored pair with ψ ≥ `least`; returns how many.

    `kind` is csv or parquet; without it the file's ending decides.
    """
    path = Path(path)
    graph = labels.graph if least <= 0 else labels.graph.band(least, 1.0)
    if (kind or path.suffix.lower()) in ("parquet", ".parquet", ".pq"):
        _write_parquet(graph, labels, path)
    else:
        with (
            replacing(path) as partial,
            partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            texts = [[os.fsdecode(n) for n in images.names.tolist()] for images in (labels.queries, labels.database)]
            for rows, columns, psi in _edges(graph):
                pairs = zip(rows.tolist(), columns.tolist(), psi.tolist(), strict=True)
                writer.writerows((texts[0][i], texts[1][j], f"{v:.9g}") for i, j, v in pairs)
    return graph.pairs


def _write_parquet(graph: SimilarityGraph, labels: Labels, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sides = labels.queries.names, labels.database.names
    kind = pa.string() if all(_is_text(names) for names in sides) else pa.binary()
    schema = pa.schema([("query", kind), ("database", kind), ("similarity", pa.float32())])
    with replacing(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        for rows, columns, psi in _edges(graph):
            both = sides[0][rows].tolist(), sides[1][columns].tolist()
            names = [pa.array(side, pa.binary()).cast(kind) for side in both]
            writer.write_table(pa.table([*names, pa.array(psi, pa.float32())], schema=schema))


def write_hloc(labels: Labels, path: Path | str, *, least: float = POSITIVE, most: int | None = None) -> int:
    """Lines `query.jpg map.jpg` for ψ ≥ `least`, at most `most` per query, best first; returns how many."""
    graph = labels.graph.band(least, 1.0) if least > 0 else labels.graph
    for images in (labels.queries, labels.database):
        spaced = [n for n in images.names.tolist() if len(n.split()) != 1]
        if spaced:
            raise InputError(
                f"{os.fsdecode(spaced[0])!r} has a space in its name, which pair lists cannot hold; use csv"
            )
    written = 0
    with replacing(path) as partial, partial.open("wb") as file:
        for i in range(graph.shape[0]):
            ids, psi = graph.row(i)
            best = np.lexsort((ids, -psi))[:most]
            query = labels.queries.names[i]
            file.writelines(query + b" " + name + b"\n" for name in labels.database.names[ids[best]].tolist())
            written += len(best)
    return written


@foreign("labels")
def read_edges(path: Path | str, queries: ImageSet, database: ImageSet, kind: str | None = None) -> SimilarityGraph:
    """A graph from a .csv or .parquet with `query, database, similarity`, by image names; `kind` as in `write_edges`."""
    path = Path(path)
    if (kind or path.suffix.lower()) in ("parquet", ".parquet", ".pq"):
        names, psi = _parquet_edges(path)
    else:
        names, psi = _csv_edges(path)
    return _named(
        path, names, psi, queries, database, {"rule": "edges", "measure": "edges", "source": path.name}, first=2
    )


@foreign("a pair list")
def read_hloc(path: Path | str, queries: ImageSet, database: ImageSet) -> SimilarityGraph:
    """A graph of ψ = 1 from a pair list."""
    path = Path(path)
    lines = [line.split() for line in read_foreign(path).splitlines() if line.strip()]
    wrong = [k for k, line in enumerate(lines) if len(line) != 2]
    if wrong:
        raise InputError(f"{path}: line {wrong[0] + 1} has {len(lines[wrong[0]])} names; expected two")
    names = [line[0] for line in lines], [line[1] for line in lines]
    facts = {"rule": "hloc", "measure": "pairs", "source": path.name}
    return _named(path, names, np.ones(len(lines)), queries, database, facts, first=1)


def _edges(graph: SimilarityGraph) -> Iterator[ExactPairs]:
    """Stored pairs in row order, a band at a time."""
    for start in range(0, graph.pairs, _EDGES_A_BAND):
        part = slice(start, min(start + _EDGES_A_BAND, graph.pairs))
        rows = np.searchsorted(graph.indptr, np.arange(part.start, part.stop), side="right") - 1
        yield rows, np.asarray(graph.indices[part]), _psi(graph, part)


def _psi(graph: SimilarityGraph, part: slice) -> NDArray[np.float32]:
    steps = np.float32(255 if graph.values.dtype == np.uint8 else 1)
    return np.asarray(graph.values[part], np.float32) / steps


def _is_text(names: NDArray[np.bytes_]) -> bool:
    try:
        b"".join(names.tolist()).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _csv_edges(path: Path) -> tuple[Names, NDArray[np.float64]]:
    check_regular(path)
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        head = [cell.strip() for cell in next(reader, [])]
        if not set(_COLUMNS) <= set(head):
            raise InputError(f"{path} has the columns {head}; expected {', '.join(_COLUMNS)}")
        at = [head.index(name) for name in _COLUMNS]
        queries, database, psi = [], [], []
        for number, row in enumerate(reader, start=2):
            try:
                queries.append(os.fsencode(row[at[0]]))
                database.append(os.fsencode(row[at[1]]))
                psi.append(float(row[at[2]]))
            except (IndexError, ValueError):
                raise InputError(f"{path}: row {number} is {row}; expected {', '.join(_COLUMNS)}") from None
    return (queries, database), np.array(psi, np.float64)


def _parquet_edges(path: Path) -> tuple[Names, NDArray[np.float64]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}); check the file") from None
    if not set(_COLUMNS) <= set(table.column_names):
        raise InputError(f"{path} has the columns {table.column_names}; expected {', '.join(_COLUMNS)}")
    queries, database = (table[name].cast(pa.binary()).to_pylist() for name in _COLUMNS[:2])
    return (queries, database), np.asarray(table["similarity"].to_numpy(), np.float64)


def _named(
    path: Path,
    names: Names,
    psi: NDArray[np.float64],
    queries: ImageSet,
    database: ImageSet,
    facts: Mapping[str, Any],
    first: int,
) -> SimilarityGraph:
    """Edges between names as a graph; `first` is the number of the file's first row."""
    ids = []
    for side, wanted, images in zip(("query", "database"), names, (queries, database), strict=True):
        place = {name: k for k, name in enumerate(images.names.tolist())}
        rows = np.array([place.get(name, -1) for name in wanted], np.int64)
        if (rows < 0).any():
            k = int(np.flatnonzero(rows < 0)[0])
            raise InputError(
                f"{path}: row {k + first} names {side} {os.fsdecode(wanted[k])!r}, which is not among the images"
            )
        ids.append(rows)
    sides = {"one_set": queries is database, "queries": queries.fingerprint(), "database": database.fingerprint()}
    return SimilarityGraph.from_edges(ids[0], ids[1], psi, (len(queries), len(database)), {**facts, **sides})


RELEASED_SUFFIX = "_gt.h5"
_VALUES_A_BAND = 1 << 22
"""Matrix entries held at a time: 32 MB."""


class _Block(NamedTuple):
    """Which images a released file is of: their ids, their lines in the file, and how many lines it has."""

    file: Path
    queries: _Lines
    database: _Lines


class _Lines(NamedTuple):
    ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    total: int


def write_released(labels: Labels, path: Path | str, *, full: bool = False) -> list[Path]:
    """Labels as the method's authors released theirs; returns the files.

    Images that are numbered within a list (MSLS) keep their line, with empty rows and columns for those left out; with
    several groups `path` is a folder of `<group>_gt.h5`. Other labels are written as `write_h5` does.
    """
    path = Path(path)
    if not _numbered(labels.queries, labels.database):
        write_h5(labels.graph, path, full=full)
        return [path]
    blocks = _blocks(path, labels.queries, labels.database, making=True)
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
    matrix, step = graph.to_scipy(), _rows_a_band(graph.shape[1])
    for start in range(0, graph.shape[0], step):
        yield start, matrix[start : start + step].toarray()


def _rows_a_band(columns: int) -> int:
    return max(1, min(256, _VALUES_A_BAND // max(1, columns)))


def _condensed(i: NDArray[np.int64] | int, n: int) -> Any:
    """Where row i of the upper triangle begins in a condensed vector."""
    return i * (2 * n - i - 1) // 2


@foreign("labels")
def read_h5(path: Path | str, key: str = "fov", *, one_set: bool = False) -> SimilarityGraph:
    """A matrix (queries × map) or a condensed vector (one set with itself): `fov` is graded, `sim` binary.

    A vector is always condensed; a row (1, n(n−1)/2) is taken as condensed if `one_set`.
    """
    with _dataset(Path(path), key) as data:
        return _read_condensed(Path(path), data, key) if _is_condensed(data, one_set) else _read(Path(path), data, key)


@foreign("labels")
def read_released(path: Path | str, queries: ImageSet, database: ImageSet, key: str = "fov") -> SimilarityGraph:
    """The labels that the method's authors released for these images; shapes are compared before anything is read.

    `path` is a file, or for images of several cities the folder with `<city>_gt.h5` (also below `train_val`). Rows and
    columns are the lines of the dataset's lists, images that are left out (panoramas) included.
    """
    path, one_set = Path(path), queries is database
    by_group = path.is_dir() or _numbered(queries, database)
    if by_group:
        parts = [_read_block(block, key) for block in _blocks(path, queries, database)]
        rows, columns, psi = (np.concatenate(values) for values in zip(*parts, strict=True))
        graph = SimilarityGraph.from_edges(rows, columns, psi, (len(queries), len(database)))
    else:
        with _dataset(path, key) as data:
            condensed = _is_condensed(data, one_set)
            shape = (_side_of(path, data, key),) * 2 if condensed else tuple(data.shape)
            if shape != (len(queries), len(database)):
                dimensions = " × ".join(map(str, shape))
                raise InputError(f"{path} is of {dimensions} images; these are {len(queries)} × {len(database)}")
            graph = _read_condensed(path, data, key) if condensed else _read(path, data, key)
    sides = {"queries": queries.fingerprint(), "database": database.fingerprint()}
    facts = {"rule": "released", "measure": f"released-{key}", "source": path.name, "one_set": one_set, **sides}
    facts |= {"within_group": True} if by_group else {}  # pairs of two cities were never compared
    graph = replace(graph, facts=facts)
    return graph.keep(graph.rows != graph.indices) if one_set else graph


def _numbered(queries: ImageSet, database: ImageSet) -> bool:
    """Whether released labels count more lines than there are images."""
    return all(name in side.columns for side in (queries, database) for name in NUMBERS)


def _blocks(path: Path, queries: ImageSet, database: ImageSet, making: bool = False) -> list[_Block]:
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
        blocks.append(_Block(file, _lines(queries, group), _lines(database, group)))
    return blocks


def _lines(images: ImageSet, group: str) -> _Lines:
    ids = np.flatnonzero(images.group == images.group_names.index(group))
    if not all(name in images.columns for name in NUMBERS):
        return _Lines(ids, np.arange(len(ids)), len(ids))
    rows = np.asarray(images.columns["row"][ids], np.int64)
    return _Lines(ids, rows, int(images.columns["rows"][ids].max(initial=0)))


def _read_block(block: _Block, key: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Pairs of one file as ids of its images."""
    with _dataset(block.file, key) as data:
        expected = (block.queries.total, block.database.total)
        if tuple(data.shape) != expected:
            dimensions = " × ".join(map(str, data.shape))
            raise InputError(
                f"{block.file} is of {dimensions} images; the lists have {expected[0]} × {expected[1]} lines, panoramas "
                "included: take labels and lists of one release"
            )
        rows, columns, psi = _edges_of(block.file, data)
    inside = [np.full(count, -1) for count in expected]
    for place, lines in zip(inside, (block.queries, block.database), strict=True):
        place[lines.rows] = lines.ids
    i, j = inside[0][rows], inside[1][columns]
    kept = (i >= 0) & (j >= 0)
    return i[kept], j[kept], psi[kept]


@contextlib.contextmanager
def _dataset(path: Path, key: str) -> Iterator[Any]:
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


def _is_condensed(data: Any, one_set: bool) -> bool:
    return bool(data.ndim == 1 or (one_set and data.shape[0] == 1 and data.shape[1] != 1))


def _read(path: Path, data: Any, key: str) -> SimilarityGraph:
    facts = {"rule": "released", "measure": f"released-{key}", "one_set": False}
    return SimilarityGraph.from_edges(*_edges_of(path, data), tuple(data.shape), facts)


def _edges_of(path: Path, data: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Rows, columns and ψ of a matrix's entries above 0, a band at a time."""
    rows, columns, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    step = _rows_a_band(data.shape[1])
    for start in range(0, data.shape[0], step):
        band = _valid(path, np.asarray(data[start : start + step], np.float64), start)
        r, c = np.nonzero(band)
        rows.append(r + start)
        columns.append(c)
        values.append(band[r, c])
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


def _side_of(path: Path, data: Any, key: str) -> int:
    """How many images a condensed vector is of."""
    n = round((1 + np.sqrt(1 + 8 * data.size)) / 2)
    if n * (n - 1) // 2 != data.size:
        raise InputError(f"{path}: {key!r} has {data.size} values, which is not n(n−1)/2 for any n")
    return int(n)


def _read_condensed(path: Path, data: Any, key: str) -> SimilarityGraph:
    n = _side_of(path, data, key)
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
