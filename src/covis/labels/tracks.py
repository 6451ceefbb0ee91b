"""Overlap by the tracks of a sparse model: which of its points two images both see. No depth is needed, nor metres."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.core.artifacts import fingerprint
from covis.core.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet, encode_names, find_names
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
        rows = find_names(self.names, images.names.tolist())
        lost = np.flatnonzero(rows < 0)
        if len(lost):
            raise InputError(
                f"{len(lost)} of {len(images)} images are not in the model {self.source} (first: {images.name(int(lost[0]))}); "
                "label its own images, or register those first"
            )
        return self.seen[rows]


def read_tracks(path: Path | str) -> Tracks:
    """The tracks of a COLMAP model."""
    from covis.reading.formats.colmap import read_reconstruction

    model = read_reconstruction(path)
    return Tracks(encode_names(model.names), model.incidence(), str(path))


def track_graph(
    tracks: Tracks, queries: ImageSet, database: ImageSet, facts: dict[str, Any], advance: Advance = None
) -> SimilarityGraph:
    """ψ = shared points ÷ points, by the facts' measure; in one set without the diagonal."""
    one_set = queries is database
    seen = tracks.of(queries)
    other = seen if one_set else tracks.of(database)
    number, other_number = (np.asarray(side.sum(axis=1)).ravel().astype(np.float64) for side in (seen, other))
    names, other_names = (np.array(side.group_names)[side.group] for side in (queries, database))
    rows, columns, psi = [], [], []
    for start in range(0, len(queries), _QUERIES_A_CHUNK):
        shared = (seen[start : start + _QUERIES_A_CHUNK].astype(np.int64) @ other.T).tocoo()
        i, j, both = shared.row.astype(np.int64) + start, shared.col.astype(np.int64), shared.data.astype(np.float64)
        kept = (i != j) | (not one_set)
        if facts["within_group"]:
            kept &= names[i] == other_names[j]
        i, j, both = i[kept], j[kept], both[kept]
        overlap = facts["measure"] == "overlap"
        rows.append(i)
        columns.append(j)
        psi.append(both / (np.minimum(number[i], other_number[j]) if overlap else number[i] + other_number[j] - both))
    if advance is not None:
        advance(len(queries))
    i, j, graded = np.concatenate(rows), np.concatenate(columns), np.concatenate(psi)
    return SimilarityGraph.from_edges(i, j, graded, (len(queries), len(database)), facts)
