"""What an engine holds of a map: one row per photo, and a pointer to the current state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.ranking import Ranking
from covis.search.area import Area

_MOST = 16384
"""Most candidates that Milvus gives per query."""
_BATCH_BYTES = 8 << 20


class Unavailable(InputError):  # noqa: N818 - a state of the engine, not a defect
    """The engine does not answer now."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Photos of a map as aligned columns."""

    ids: Ids
    names: list[bytes]
    files: list[bytes]
    xy: Floats
    """(n, 2) metres in the map's frame."""
    heading: Floats
    height: Floats
    group: list[str]
    views: list[str]
    """Full rotation and camera as text; empty where unknown."""
    vectors: NDArray[np.float32] | None = None
    """(n, dim) descriptors; None where they were not asked for."""

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, at: Ids) -> Rows:
        """The rows at these places."""
        columns = (self.names, self.files, self.group, self.views)
        names, files, group, views = ([column[i] for i in at] for column in columns)
        vectors = None if self.vectors is None else self.vectors[at]
        return Rows(self.ids[at], names, files, self.xy[at], self.heading[at], self.height[at], group, views, vectors)

    def batches(self) -> Iterator[Rows]:
        """The rows, a bounded number at a time."""
        width = 1 if self.vectors is None else self.vectors.shape[1]
        step = max(1, _BATCH_BYTES // (4 * width))
        for start in range(0, len(self), step):
            yield self.subset(np.arange(start, min(start + step, len(self))))

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """Rows one after the other."""
        vectors = [p.vectors for p in parts if p.vectors is not None]
        return cls(
            np.concatenate([p.ids for p in parts]),
            [name for p in parts for name in p.names],
            [file for p in parts for file in p.files],
            np.concatenate([p.xy for p in parts]),
            np.concatenate([p.heading for p in parts]),
            np.concatenate([p.height for p in parts]),
            [group for p in parts for group in p.group],
            [view for p in parts for view in p.views],
            np.concatenate(vectors) if len(vectors) == len(parts) else None,
        )


class Pointer(NamedTuple):
    """The current state of a map."""

    version: int
    photos: int
    next_id: int
    """Ids from this one on were never used."""


class Candidates(NamedTuple):
    """What an engine proposes for each query: each row once, and (Q, C) places in them with distances; −1 for none."""

    rows: Rows
    places: Ids
    distances: NDArray[np.float32]

    @classmethod
    def of(cls, hits: Sequence[Sequence[tuple[int, float]]], rows: Rows) -> Candidates:
        """From the ids and distances of each query's hits, and their rows."""
        place = {int(key): at for at, key in enumerate(rows.ids)}
        width = max((len(found) for found in hits), default=0)
        places, distances = np.full((len(hits), width), -1, np.int64), np.full((len(hits), width), np.inf, np.float32)
        for q, found in enumerate(hits):
            places[q, : len(found)] = [place[key] for key, _ in found]
            distances[q, : len(found)] = [distance for _, distance in found]
        return cls(rows, places, distances)


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
    def named(self, names: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        """Id and file of those names that exist."""

    @abstractmethod
    def page(self, after: int, limit: int, *, vectors: bool = False) -> Rows:
        """Rows with ids above `after`, ascending."""

    @abstractmethod
    def candidates(self, queries: NDArray[np.float32], limit: int, area: Area | None) -> Candidates:
        """The nearest rows of each query; filtering by the box of an area is enough."""

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
            proposed = self.candidates(queries, limit, area)
            places = proposed.places
            if area is not None and len(proposed.rows):
                inside = area.contains(proposed.rows.xy)
                places = np.where((places >= 0) & inside[np.maximum(places, 0)], places, -1)
            short = (places >= 0).sum(axis=1) < k
            full = (proposed.places >= 0).sum(axis=1) >= limit
            if not (short & full).any() or limit == _MOST:
                return proposed.rows, _ranked(proposed.rows.ids, places, proposed.distances, k)
            limit = min(_MOST, 4 * limit)

    def all_rows(self, *, vectors: bool = False, step: int = 4096) -> Rows:
        """Every row, by id."""
        pages = [self.page(-1, step, vectors=vectors)]
        while len(pages[-1]) == step:
            pages.append(self.page(int(pages[-1].ids[-1]), step, vectors=vectors))
        return Rows.concatenate(pages)


def _ranked(ids: Ids, places: Ids, distances: NDArray[np.float32], k: int) -> Ranking:
    """Best first, ties by id."""
    distance = np.where(places >= 0, distances, np.inf).astype(np.float32)
    key = np.where(places >= 0, ids[np.maximum(places, 0)] if len(ids) else places, np.iinfo(np.int64).max)
    order = np.lexsort((key, distance), axis=-1)[:, :k]
    return Ranking(np.take_along_axis(places, order, 1), np.take_along_axis(distance, order, 1))
