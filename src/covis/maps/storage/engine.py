"""What an engine holds of a map: one row per photo, and a pointer to the current state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.ranking import Ranking, ordered
from covis.search.area import Area

_MOST = 16384
"""Most candidates that Milvus gives per query."""
_BATCH_BYTES = 8 << 20


class Unavailable(InputError):  # noqa: N818 - a state of the engine, not a defect
    """The engine does not answer now."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Photos of a map as aligned columns: what is searched by, and all else as text."""

    ids: Ids
    names: list[bytes]
    xy: Floats
    """(n, 2) metres in the map's frame."""
    facts: list[str]
    """Everything else that is known of a photo (`covis.maps.photos.facts_of`)."""
    vectors: NDArray[np.float32] | None = None
    """(n, dim) descriptors; None where they were not asked for."""

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self) -> Iterator[Rows]:
        """The rows, a bounded number at a time."""
        width = 1 if self.vectors is None else self.vectors.shape[1]
        step = max(1, _BATCH_BYTES // (4 * width))
        for part in (slice(start, start + step) for start in range(0, len(self), step)):
            vectors = None if self.vectors is None else self.vectors[part]
            yield Rows(self.ids[part], self.names[part], self.xy[part], self.facts[part], vectors)

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """Rows one after the other."""
        vectors = [p.vectors for p in parts if p.vectors is not None]
        return cls(
            np.concatenate([p.ids for p in parts]),
            [name for p in parts for name in p.names],
            np.concatenate([p.xy for p in parts]),
            [facts for p in parts for facts in p.facts],
            np.concatenate(vectors) if len(vectors) == len(parts) else None,
        )


class Pointer(NamedTuple):
    """The current state of a map."""

    version: int
    photos: int
    next_id: int
    """Ids from this one on were never used."""


Hits = Sequence[Sequence[tuple[int, float]]]
"""Ids and distances of what an engine proposes, for each query."""


class Engine(ABC):
    """The photos of one map in a database."""

    kind: str
    dim: int

    @abstractmethod
    def create(self) -> None:
        """Makes what the map needs in the database, where it does not exist; opening never does."""

    @abstractmethod
    def pointer(self) -> Pointer:
        """The current state."""

    @abstractmethod
    def change(self, now: Pointer, rows: Rows | None, gone: Ids) -> Pointer:
        """Adds rows and removes those with the ids `gone`, at once; an error where the state is not `now` any more."""

    @abstractmethod
    def settle(self) -> None:
        """Builds what makes searches fast after many rows were added; without it they are slow, not wrong."""

    @abstractmethod
    def named(self, names: Sequence[bytes]) -> dict[bytes, tuple[int, str]]:
        """Id and facts of those names that exist."""

    @abstractmethod
    def page(self, after: int, limit: int, *, vectors: bool = False) -> Rows:
        """Rows with ids above `after`, ascending."""

    @abstractmethod
    def vectors(self, ids: Ids) -> NDArray[np.float32]:
        """(n, dim) descriptors of the rows with these ids."""

    @abstractmethod
    def candidates(self, queries: NDArray[np.float32], limit: int, area: Area | None) -> tuple[Rows, Hits]:
        """The nearest of each query, and their rows, each once; filtering by the box of an area is enough."""

    @abstractmethod
    def drop(self) -> None:
        """Deletes all that the engine holds of this map."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection."""

    def search(self, queries: NDArray[np.float32], k: int, area: Area | None = None) -> tuple[Rows, Ranking]:
        """The k nearest of each query inside `area`, as places in rows; asks for more candidates until k lie inside."""
        limit = min(_MOST, (k if area is None else 2 * k) + 16)
        while True:
            rows, hits = self.candidates(queries, limit, area)
            inside = np.ones(len(rows), bool) if area is None else area.contains(rows.xy)
            usable = set(rows.ids[inside].tolist())
            found = [[hit for hit in proposed if hit[0] in usable] for proposed in hits]
            if limit == _MOST or all(len(f) >= k or len(h) < limit for f, h in zip(found, hits, strict=True)):
                return rows, _ranked(found, rows.ids, k)
            limit = min(_MOST, 4 * limit)

    def all_rows(self, *, vectors: bool = False, step: int = 4096) -> Rows:
        """Every row, by id."""
        pages = [self.page(-1, step, vectors=vectors)]
        while len(pages[-1]) == step:
            pages.append(self.page(int(pages[-1].ids[-1]), step, vectors=vectors))
        return Rows.concatenate(pages)


def aligned(ids: Ids, found: Iterable[tuple[int, Any]], dim: int) -> NDArray[np.float32]:
    """(n, dim) descriptors in the order of ids (n,); 0 for a row that was removed meanwhile."""
    known, vectors = dict(found), np.zeros((len(ids), dim), np.float32)
    for at, key in enumerate(ids.tolist()):
        if key in known:
            vectors[at] = known[key]
    return vectors


def _ranked(hits: Hits, ids: Ids, k: int) -> Ranking:
    """The k best of each query, ties by id, as places among `ids`."""
    shape = len(hits), max(map(len, hits), default=0)
    found, distances = np.full(shape, -1, np.int64), np.full(shape, np.inf, np.float32)
    for q, proposed in enumerate(hits):
        found[q, : len(proposed)] = [key for key, _ in proposed]
        distances[q, : len(proposed)] = [distance for _, distance in proposed]
    best = ordered(found, distances, k)
    place = {int(key): at for at, key in enumerate(ids)} | {-1: -1}
    places = np.array([[place[key] for key in row] for row in best.ids.tolist()], np.int64)
    return Ranking(places.reshape(best.ids.shape), best.distances)
