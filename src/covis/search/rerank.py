"""Looking twice at the best: patches of two images are matched, and matches that move together count.

A re-ranking is a function `Ranking -> Ranking`. This one needs no weights of its own: patches come from the map that
the model pools into its descriptor. Off unless asked for, because it costs far more than the search before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.progress import Meter
from covis.ranking import Ranking

PatchVectors = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""Image ids (n,) → unit vectors of their patches (n, P, D)."""

DEPTH = 50
REACH = 0.25
"""How far a match may stray from the common movement and still count, as a share of the image's diagonal."""


def reordered(
    ranking: Ranking,
    depth: int,
    scores: Callable[[int, NDArray[np.int64], NDArray[np.floating]], NDArray[np.float64]],
) -> Ranking:
    """The ranking with the first `depth` results of each query by falling score, equal ones as they were.

    scores: (query, ids (n,), distances (n,)) → (n,).
    """
    order = np.tile(np.arange(ranking.k), (len(ranking), 1))
    with Meter("re-rank", len(ranking), "queries") as meter:
        for q in range(len(ranking)):
            ids, distances = ranking.row(q)
            head = min(depth, len(ids))
            if head:
                order[q, :head] = np.argsort(-scores(q, ids[:head], distances[:head]), kind="stable")
            meter.advance()
    return ranking.reordered(order)


@dataclass(frozen=True, eq=False)
class SpatialRerank:
    """Orders the first `depth` results of each query by how well their patches match and agree on one movement."""

    query_patches: PatchVectors
    map_patches: PatchVectors
    places: NDArray[np.float32]
    """(P, 2) where each patch's middle lies, in any unit."""
    depth: int = DEPTH
    distance_weight: float = 0.5
    """How much the descriptors' own similarity counts beside the patches; 0 leaves it out."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head in a new order; distances stay those of the descriptors, so they may rise and fall."""
        return reordered(ranking, self.depth, self._combined)

    def _combined(self, query: int, ids: NDArray[np.int64], distances: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.scores(query, ids) - self.distance_weight * distances**2 / 2

    def scores(self, query: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) agreement of query `query` with each of the map images `ids`: 0 none, 1 with itself."""
        mine = np.asarray(self.query_patches(np.array([query]))[0], np.float32)
        theirs = np.asarray(self.map_patches(ids), np.float32)
        return agreement(mine, theirs, self.places)


def agreement(
    query: NDArray[np.float32], candidates: NDArray[np.float32], places: NDArray[np.float32], reach: float = REACH
) -> NDArray[np.float64]:
    """(n,) spatial agreement of patches (P, D) with the patches (n, P, D) of each candidate.

    Two patches match if each is the other's nearest. A match counts its cosine, less the farther its movement is from
    the median movement of all matches. Divided by P, so that an image has 1 with itself.
    """
    if candidates.ndim != 3 or candidates.shape[1:] != query.shape or places.shape != (len(query), 2):
        raise InputError(
            f"patches {query.shape}, {candidates.shape} and places {places.shape} do not fit together; use one model"
        )
    count, patches, dim = candidates.shape
    cosine = (candidates.reshape(-1, dim) @ query.T).reshape(count, patches, patches)
    limit = reach * float(np.linalg.norm(places.max(0) - places.min(0))) or 1.0
    return np.array([_agree(one.T, places, limit) for one in cosine])


def _agree(cosine: NDArray[np.float32], places: NDArray[np.float32], limit: float) -> float:
    """Agreement from the cosines (P, P) of the query's patches (rows) with the candidate's (columns)."""
    forward, backward = cosine.argmax(1), cosine.argmax(0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(forward)))
    movement = places[forward[mutual]] - places[mutual]
    stray = np.linalg.norm(movement - np.median(movement, axis=0), axis=1)
    weight = np.maximum(0, 1 - stray / limit)
    return float((np.maximum(cosine[mutual, forward[mutual]], 0) * weight).sum() / len(forward))


def windows(rows: int, columns: int, side: int) -> NDArray[np.float32]:
    """(P, 2) middles (column, row) of all windows of side × side cells, row by row."""
    y, x = np.mgrid[: rows - side + 1, : columns - side + 1]
    return (np.column_stack([x.ravel(), y.ravel()]) + (side - 1) / 2).astype(np.float32)
