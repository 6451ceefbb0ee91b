"""The same index over Milvus, for maps that one machine cannot hold. Needs the extra `covis[milvus]`.

`uri` is a cluster's address (`http://host:19530`), or a file name ending in `.db`, which opens Milvus Lite inside this
process. The engine proposes candidates with their vectors; exact distances and the order of ties are settled here, so
that answers mean the same as those of every other index.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.arrays import Ids
from covis.descriptors import DescriptorStore, Matrix
from covis.errors import InputError
from covis.progress import Meter
from covis.ranking import Ranking, ordered
from covis.search.area import Area
from covis.search.exact import as_queries
from covis.search.index import Index, check_ids, check_places, check_vectors

MAX_RESULTS = 16384
"""Results a query that the engine gives at most."""
_MODEL = "covis.model"
_BATCH_BYTES = 8 << 20
_QUERIES = 64
_IDS = 4096
_SPARE = 16


class MilvusIndex(Index):
    """A collection of an engine. Every change is visible to the next search (consistency level Strong)."""

    kind = "milvus"

    def __init__(
        self,
        uri: str | Path,
        collection: str,
        dim: int,
        model: str | None = None,
        *,
        token: str = "",
        structure: str = "AUTOINDEX",
        effort: dict[str, Any] | None = None,
    ) -> None:
        """Opens the collection, or makes it.

        model: fingerprint of the model of its descriptors; kept with the collection, another one is refused.
        structure: the engine's kind of index, such as FLAT, HNSW, IVF_RABITQ or DISKANN; `effort` its search parameters.
        """
        self.dim, self.collection, self.effort = dim, collection, effort or {}
        self.client = connect(str(uri), token)
        if not self.client.has_collection(collection):
            self._create(structure, model)
        self.client.load_collection(collection)
        self.model = self._check(model)

    def _create(self, structure: str, model: str | None) -> None:
        from pymilvus import DataType, MilvusClient, MilvusException

        note = json.dumps({_MODEL: model})
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=note)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.dim)
        schema.add_field("x", DataType.DOUBLE)
        schema.add_field("y", DataType.DOUBLE)
        schema.add_field("placed", DataType.BOOL)
        index = self.client.prepare_index_params()
        index.add_index("vector", index_type=structure, metric_type="L2")
        self.client.create_collection(self.collection, schema=schema, index_params=index, consistency_level="Strong")
        if model:  # a cluster keeps the description, Milvus Lite only properties
            with contextlib.suppress(MilvusException):
                self.client.alter_collection_properties(self.collection, properties={_MODEL: model})

    def _check(self, model: str | None) -> str | None:
        """The collection's model, after checking it and the dimension."""
        facts = self.client.describe_collection(self.collection)
        dims = [f["params"].get("dim") for f in facts["fields"] if f["name"] == "vector"]
        if not dims or int(dims[0]) != self.dim:
            raise InputError(
                f"collection {self.collection} holds vectors of {dims} numbers, not {self.dim}; use another name"
            )
        held = _noted_model(facts)
        if held and model and held != model:
            raise InputError(f"collection {self.collection} is of model {held}, not of {model}; use another name")
        return held or model

    def add(self, ids: ArrayLike, descriptors: Matrix, xy: ArrayLike | None = None) -> None:
        """Adds or replaces descriptors, a bounded number at a time."""
        new = check_ids(ids, descriptors, self.dim)
        places = check_places(xy, len(new))
        self._same_model(descriptors)
        check_vectors(descriptors)
        for start, stop in _batches(len(new), self.dim):
            self.client.upsert(self.collection, _rows(new, descriptors, places, start, stop))

    def load(self, store: DescriptorStore, xy: ArrayLike | None = None, first_id: int = 0) -> None:
        """Loads a whole store under the ids first_id, first_id + 1, …; after an interruption the same call goes on."""
        self._same_model(store)
        ids = np.arange(first_id, first_id + len(store))
        places = check_places(xy, len(store))
        with Meter(f"load {self.collection}", len(store), "descriptors") as meter:
            for start, stop in _batches(len(store), self.dim):
                if not self._present(ids[stop - 1 : stop]):
                    self.client.upsert(self.collection, _rows(ids, store, places, start, stop))
                meter.advance(stop - start)

    def remove(self, ids: ArrayLike) -> int:
        """Removes ids, and says how many were there."""
        wanted = np.unique(np.asarray(ids, np.int64))
        there = [i for start in range(0, len(wanted), _IDS) for i in self._present(wanted[start : start + _IDS])]
        for start in range(0, len(there), _IDS):
            self.client.delete(self.collection, ids=there[start : start + _IDS])
        return len(there)

    def search(self, queries: Matrix, k: int, *, area: Area | None = None) -> Ranking:
        """The k nearest of each query, by exact distance among what the engine proposes."""
        self._same_model(queries, "queries")
        matrix = as_queries(queries, np.empty((0, self.dim), np.float32), k)
        if k > MAX_RESULTS:
            raise InputError(f"Milvus gives at most {MAX_RESULTS} results per query, not {k}")
        parts = [self._some(matrix[s : s + _QUERIES], k, area) for s in range(0, len(matrix), _QUERIES)]
        width = max((p.k for p in parts), default=0)
        return Ranking(
            np.concatenate([_padded(p.ids, width, -1) for p in parts] or [np.zeros((0, 0), np.int64)]),
            np.concatenate([_padded(p.distances, width, np.inf) for p in parts] or [np.zeros((0, 0), np.float32)]),
        )

    def _some(self, queries: NDArray[np.float32], k: int, area: Area | None) -> Ranking:
        """Asks the engine; with an area it asks for more until k lie inside, since it only knows the area's box."""
        limit = min(MAX_RESULTS, (k if area is None else 2 * k) + _SPARE)
        while True:
            hits = self.client.search(
                self.collection, data=list(queries), limit=limit, filter=_box(area), output_fields=["vector", "x", "y"],
                search_params={"metric_type": "L2", "params": self.effort}, consistency_level="Strong",
            )  # fmt: skip
            answers = [_scored(query, found, area) for query, found in zip(queries, hits, strict=True)]
            more = any(len(a[0]) < k and len(found) == limit for a, found in zip(answers, hits, strict=True))
            if not more or limit == MAX_RESULTS:
                break
            limit = min(MAX_RESULTS, 4 * limit)
        width = max(len(ids) for ids, _ in answers)
        ids = np.stack([_padded(ids[None], width, -1)[0] for ids, _ in answers])
        return ordered(ids, np.stack([_padded(d[None], width, np.inf)[0] for _, d in answers]), k)

    def __len__(self) -> int:
        return int(self._query("", ["count(*)"])[0]["count(*)"])

    @property
    def ids(self) -> Ids:
        """Ids that can be found, ascending."""
        return np.sort(np.fromiter(self._all_ids(), np.int64))

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()

    def drop(self) -> None:
        """Deletes the collection with all that it holds."""
        self.client.drop_collection(self.collection)

    def _all_ids(self) -> Iterator[int]:
        pages = self.client.query_iterator(self.collection, batch_size=_IDS, output_fields=["id"])
        while page := pages.next():
            yield from (row["id"] for row in page)
        pages.close()

    def _present(self, ids: Ids) -> list[int]:
        return [row["id"] for row in self._query(f"id in {ids.tolist()}", ["id"])]

    def _query(self, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        found = self.client.query(self.collection, filter=expression, output_fields=fields, consistency_level="Strong")
        return list(found)

    def _same_model(self, descriptors: Matrix, says: str = "these") -> None:
        if isinstance(descriptors, DescriptorStore) and self.model and descriptors.model != self.model:
            raise InputError(
                f"collection {self.collection} is of model {self.model}, {says} are of model {descriptors.model}; use one model"
            )


def _noted_model(facts: dict[str, Any]) -> str | None:
    """The model that was noted when a collection was made."""
    noted = (facts.get("properties") or {}).get(_MODEL)
    if noted is None:
        with contextlib.suppress(ValueError, AttributeError):
            noted = json.loads(facts.get("description") or "{}").get(_MODEL)
    return noted if noted is None else str(noted)


def connect(uri: str, token: str) -> Any:
    """A client of the engine at `uri`."""
    try:
        from pymilvus import MilvusClient, MilvusException
    except ImportError:
        raise InputError("Milvus needs its client; install it with: pip install 'covis[milvus]'") from None
    try:
        return MilvusClient(uri, token=token)
    except (MilvusException, ValueError, OSError) as error:
        raise InputError(f"Milvus at {uri} cannot be reached ({error}); check the address") from None


def _batches(count: int, dim: int) -> Iterator[tuple[int, int]]:
    step = max(1, _BATCH_BYTES // (4 * dim))
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _rows(ids: Ids, descriptors: Matrix, xy: NDArray[np.float64], start: int, stop: int) -> list[dict[str, Any]]:
    vectors = np.asarray(descriptors[start:stop], np.float32)
    placed = np.asarray(np.isfinite(xy[start:stop]).all(axis=1, keepdims=True))
    places = np.where(placed, xy[start:stop], 0.0)
    return [
        {"id": int(i), "vector": vector, "x": float(x), "y": float(y), "placed": bool(known)}
        for i, vector, (x, y), known in zip(ids[start:stop], vectors, places, placed[:, 0], strict=True)
    ]


def _box(area: Area | None) -> str:
    if area is None:
        return ""
    left, low, right, high = map(float, area.box)
    return f"placed == true and x >= {left!r} and x <= {right!r} and y >= {low!r} and y <= {high!r}"


def _scored(query: NDArray[np.float32], hits: Any, area: Area | None) -> tuple[Ids, NDArray[np.float32]]:
    """Ids and exact distances of what the engine found, those inside the area."""
    from covis.search import kernel

    ids = np.array([hit["id"] for hit in hits], np.int64)
    if not len(ids):
        return ids, np.zeros(0, np.float32)
    vectors = np.array([hit["entity"]["vector"] for hit in hits], np.float32)
    distance = np.empty((1, len(ids)), np.float32)
    kernel.pairs(query[None], vectors[None], distance)
    if area is None:
        return ids, distance[0]
    inside = area.contains([(hit["entity"]["x"], hit["entity"]["y"]) for hit in hits])
    return ids[inside], distance[0, inside]


def _padded(array: NDArray[Any], width: int, value: float) -> NDArray[Any]:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=value)
