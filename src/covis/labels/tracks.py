"""Overlap by the tracks of a sparse model: which of its points two images both see. No depth is needed, nor metres."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core.artifacts import fingerprint
from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.assembly import Advance

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_QUERIES_A_CHUNK = 512


@dataclass(frozen=True, eq=False)
class Tracks:
    """Which points each image of a model sees."""

    names: NDArray[np.bytes_]
    """(N,) names as the model has them."""
    seen: csr_matrix
    """(N, P) 1 where an image sees a point."""
    source: str = ""

    def describe(self) -> dict[str, Any]:
        """What a manifest says of it."""
        digest = fingerprint(self.names.astype(bytes), self.seen.indptr, self.seen.indices)
        return {"source": self.source, "points": int(self.seen.shape[1]), "fingerprint": digest}

    def of(self, images: ImageSet) -> csr_matrix:
        """(len(images), P) for images by name, or by the last part of it where that is unique; others are an error."""
        place = {name: i for i, name in enumerate(self.names.tolist())}
        ends = Counter(name.rpartition(b"/")[2] for name in place)
        alone = {end: i for name, i in place.items() if ends[end := name.rpartition(b"/")[2]] == 1}
        rows = [place.get(name, alone.get(name.rpartition(b"/")[2], -1)) for name in images.names.tolist()]
        lost = [i for i, row in enumerate(rows) if row < 0]
        if lost:
            raise InputError(
                f"{len(lost)} of {len(images)} images are not in the model {self.source} (first: {images.name(lost[0])}); "
                "label its own images, or register those first"
            )
        return self.seen[rows]


def read_tracks(path: Path | str) -> Tracks:
    """The tracks of a COLMAP model."""
    from covis.images import encode_names
    from covis.reading.formats.colmap import read_reconstruction

    model = read_reconstruction(path)
    return Tracks(encode_names(model.names), model.incidence(), str(path))


def track_edges(
    queries: csr_matrix, database: csr_matrix, measure: str, *, one_set: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(rows, columns, ψ) of all pairs that share a point; in one set without the diagonal."""
    own, other = (np.asarray(side.sum(axis=1)).ravel().astype(np.float64) for side in (queries, database))
    rows, columns, psi = [], [], []
    turned = database.T.tocsr()
    for start in range(0, queries.shape[0], _QUERIES_A_CHUNK):
        shared = (queries[start : start + _QUERIES_A_CHUNK].astype(np.int64) @ turned).tocoo()
        i, j, both = shared.row + start, shared.col.astype(np.int64), shared.data.astype(np.float64)
        if one_set:
            i, j, both = (part[i != j] for part in (i, j, both))
        whole = np.minimum(own[i], other[j]) if measure == "overlap" else own[i] + other[j] - both
        rows.append(i.astype(np.int64))
        columns.append(j)
        psi.append(both / whole)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(psi)


def track_graph(
    tracks: Tracks,
    queries: ImageSet,
    database: ImageSet,
    *,
    measure: str,
    within_group: bool,
    facts: dict[str, Any],
    advance: Advance = None,
) -> SimilarityGraph:
    """ψ = shared points ÷ points, by measure."""
    one_set = queries is database
    seen = tracks.of(queries)
    i, j, psi = track_edges(seen, seen if one_set else tracks.of(database), measure, one_set=one_set)
    if advance is not None:
        advance(len(queries))
    if within_group:
        names = np.array(queries.group_names)[queries.group], np.array(database.group_names)[database.group]
        same = names[0][i] == names[1][j]
        i, j, psi = i[same], j[same], psi[same]
    shape = (len(queries), len(database))
    return SimilarityGraph.from_edges(i, j, psi, shape, {**facts, "tracks": tracks.describe()})
