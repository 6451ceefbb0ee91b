"""Labels in and out: a graph's folder with its images, and edge lists (CSV, Parquet, hloc)."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.files import load_array, replacing
from covis.core.foreign import foreign, read_foreign
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.columns import header, read_columns

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
    queries = _open_side(path, "queries", graph.shape[0])
    one_set = not (path / "database_names.npy").exists()
    return Labels(graph, queries, queries if one_set else _open_side(path, "database", graph.shape[1]))


def _open_side(path: Path, side: str, n: int) -> ImageSet:
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


def read_saved(path: Path | str, queries: ImageSet, database: ImageSet) -> SimilarityGraph:
    """The labels of `save_labels` for these images, found by name: all must be in it, in any order."""
    labels = open_labels(path)
    graph, one_set = labels.graph, queries is database
    if bool(graph.facts.get("one_set")) != one_set:
        words = {True: "one set with itself", False: "queries and a map"}
        raise InputError(f"{path} labels {words[not one_set]}, these images are {words[one_set]}; label them again")
    ids = []
    for side, own, images in (("queries", labels.queries, queries), ("database", labels.database, database)):
        ids.append(_places(own.names.tolist(), images.names.tolist()))
        lost = np.flatnonzero(ids[-1] < 0)
        if len(lost):
            raise InputError(
                f"{path} does not label {len(lost)} of {len(images)} {side} (first: {images.name(int(lost[0]))}); "
                "give labels of these images"
            )
    if all(np.array_equal(at, np.arange(n)) for at, n in zip(ids, graph.shape, strict=True)):
        return graph  # which may be on disk
    part = graph.to_scipy()[ids[0]][:, ids[1]].tocoo()
    return SimilarityGraph.from_edges(part.row, part.col, part.data, (len(queries), len(database)), graph.facts)


def _places(names: Sequence[bytes], wanted: Sequence[bytes]) -> Ids:
    """(N,) where each wanted name stands; −1 where it does not."""
    place = {name: k for k, name in enumerate(names)}
    return np.array([place.get(name, -1) for name in wanted], np.int64)


_COLUMNS = ("query", "database", "similarity")
_EDGES_A_BAND = 1 << 20


def write_edges(labels: Labels, path: Path | str, kind: str | None = None, *, least: float = 0.0) -> int:
    """`query, database, similarity` of every stored pair with ψ ≥ `least`; returns how many.

    `kind` is csv or parquet; without it the file's ending decides.
    """
    path = Path(path)
    graph = labels.graph if least <= 0 else labels.graph.band(least, 1.0)
    parquet = (kind or path.suffix.lower()) in ("parquet", ".parquet", ".pq")
    with replacing(path) as partial:
        (_write_parquet if parquet else _write_csv)(graph, labels, partial)
    return graph.pairs


def _write_csv(graph: SimilarityGraph, labels: Labels, path: Path) -> None:
    texts = [[os.fsdecode(n) for n in images.names.tolist()] for images in (labels.queries, labels.database)]
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for rows, columns, psi in _edges(graph):
            pairs = zip(rows.tolist(), columns.tolist(), psi.tolist(), strict=True)
            writer.writerows((texts[0][i], texts[1][j], f"{v:.9g}") for i, j, v in pairs)


def _write_parquet(graph: SimilarityGraph, labels: Labels, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sides = labels.queries.names, labels.database.names
    kind = pa.string() if all(_is_text(names) for names in sides) else pa.binary()
    schema = pa.schema([("query", kind), ("database", kind), ("similarity", pa.float32())])
    with pq.ParquetWriter(path, schema) as writer:
        for rows, columns, psi in _edges(graph):
            both = sides[0][rows].tolist(), sides[1][columns].tolist()
            names = [pa.array(side, pa.binary()).cast(kind) for side in both]
            writer.write_table(pa.table([*names, pa.array(psi, pa.float32())], schema=schema))


def _is_text(names: NDArray[np.bytes_]) -> bool:
    try:
        b"".join(names.tolist()).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _edges(graph: SimilarityGraph) -> Iterator[tuple[Ids, NDArray[np.int32], NDArray[np.float32]]]:
    """Stored pairs in row order, a band at a time."""
    psi = graph.psi
    for start in range(0, graph.pairs, _EDGES_A_BAND):
        part = slice(start, min(start + _EDGES_A_BAND, graph.pairs))
        rows = np.searchsorted(graph.indptr, np.arange(part.start, part.stop), side="right") - 1
        yield rows, np.asarray(graph.indices[part]), psi[part]


def write_hloc(labels: Labels, path: Path | str, *, least: float = POSITIVE, most: int | None = None) -> int:
    """Lines `query.jpg map.jpg` for ψ ≥ `least`, at most `most` per query, best first; returns how many."""
    graph = labels.graph.band(least, 1.0) if least > 0 else labels.graph
    for images in (labels.queries, labels.database):
        spaced = [n for n in images.names.tolist() if len(n.split()) != 1]
        if spaced:
            name = os.fsdecode(spaced[0])
            raise InputError(f"{name!r} has a space in its name, which pair lists cannot hold; use csv")
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
def read_edges(path: Path | str, queries: ImageSet, database: ImageSet) -> SimilarityGraph:
    """A graph from a .csv or .parquet with `query, database, similarity`, by image names."""
    path = Path(path)
    if not set(_COLUMNS) <= set(header(path)):
        raise InputError(f"{path} has the columns {header(path)}; expected {', '.join(_COLUMNS)}")
    cells = read_columns(path, {"query": "name", "database": "name", "similarity": "number"}, others=False)
    names = cells["query"].tolist(), cells["database"].tolist()
    facts = {"rule": "edges", "measure": "edges", "source": path.name}
    return _graph_by_names(path, names, cells["similarity"], queries, database, facts, first=2)


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
    return _graph_by_names(path, names, np.ones(len(lines)), queries, database, facts, first=1)


def _graph_by_names(
    path: Path,
    names: tuple[Sequence[bytes], Sequence[bytes]],
    psi: NDArray[np.float64],
    queries: ImageSet,
    database: ImageSet,
    facts: Mapping[str, Any],
    first: int,
) -> SimilarityGraph:
    """Edges between names as a graph; `first` is the number of the file's first row."""
    ids = []
    for side, wanted, images in zip(("query", "database"), names, (queries, database), strict=True):
        ids.append(_places(images.names.tolist(), wanted))
        if (ids[-1] < 0).any():
            k = int(np.flatnonzero(ids[-1] < 0)[0])
            name = os.fsdecode(wanted[k])
            raise InputError(f"{path}: row {k + first} names {side} {name!r}, which is not among the images")
    sides = {"one_set": queries is database, "queries": queries.fingerprint(), "database": database.fingerprint()}
    return SimilarityGraph.from_edges(ids[0], ids[1], psi, (len(queries), len(database)), {**facts, **sides})
