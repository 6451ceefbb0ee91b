"""An index, and the photos of a map, in Milvus: for maps that one machine cannot hold. Needs the extra `covis[milvus]`.

`uri` is a cluster's address (`http://host:19530`), or a file name ending in `.db`, which opens Milvus Lite inside this
process. For an index the engine proposes candidates with their vectors; exact distances and the order of ties are
computed here, so that answers mean the same as those of every other index. The photos of a map come with the engine's
own distances.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import Meter, warn
from covis.descriptors import DescriptorStore, Matrix
from covis.ranking import Ranking, ordered
from covis.search.area import Area
from covis.search.engines.photos import Engine, Pointer, Proposals, Rows
from covis.search.exact import as_queries, distances
from covis.search.index import Index, check_ids, check_places, check_vectors

MAX_RESULTS = 16384
"""Most results per query that the engine gives."""
_MODEL = "covis.model"
_BATCH_BYTES = 8 << 20
_QUERIES = 64
_INDEX_IDS = 4096
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
            self.client.upsert(self.collection, _index_rows(new, descriptors, places, start, stop))

    def load(self, store: DescriptorStore, xy: ArrayLike | None = None, first_id: int = 0) -> None:
        """Loads a whole store under the ids first_id, first_id + 1, …; after an interruption the same call resumes."""
        self._same_model(store)
        ids = np.arange(first_id, first_id + len(store))
        places = check_places(xy, len(store))
        with Meter(f"load {self.collection}", len(store), "descriptors") as meter:
            for start, stop in _batches(len(store), self.dim):
                if not self._present(ids[stop - 1 : stop]):
                    self.client.upsert(self.collection, _index_rows(ids, store, places, start, stop))
                meter.advance(stop - start)

    def remove(self, ids: ArrayLike) -> int:
        """Removes ids and returns how many existed."""
        wanted = np.unique(np.asarray(ids, np.int64))
        there = [
            i for start in range(0, len(wanted), _INDEX_IDS) for i in self._present(wanted[start : start + _INDEX_IDS])
        ]
        for start in range(0, len(there), _INDEX_IDS):
            self.client.delete(self.collection, ids=there[start : start + _INDEX_IDS])
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
            answers = [_scored(query, neighbours, area) for query, neighbours in zip(queries, hits, strict=True)]
            more = any(len(a[0]) < k and len(neighbours) == limit for a, neighbours in zip(answers, hits, strict=True))
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
        pages = self.client.query_iterator(self.collection, batch_size=_INDEX_IDS, output_fields=["id"])
        while page := pages.next():
            yield from (row["id"] for row in page)
        pages.close()

    def _present(self, ids: Ids) -> list[int]:
        return [row["id"] for row in self._query(f"id in {ids.tolist()}", ["id"])]

    def _query(self, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        rows = self.client.query(self.collection, filter=expression, output_fields=fields, consistency_level="Strong")
        return list(rows)

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


def _index_rows(ids: Ids, descriptors: Matrix, xy: NDArray[np.float64], start: int, stop: int) -> list[dict[str, Any]]:
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
    """Ids and exact distances of the engine's hits that lie inside the area."""
    ids = np.array([hit["id"] for hit in hits], np.int64)
    if not len(ids):
        return ids, np.zeros(0, np.float32)
    vectors = np.array([hit["entity"]["vector"] for hit in hits], np.float32)
    distance = distances(query, vectors)
    if area is None:
        return ids, distance
    inside = area.contains([(hit["entity"]["x"], hit["entity"]["y"]) for hit in hits])
    return ids[inside], distance[inside]


def _padded(array: NDArray[Any], width: int, value: float) -> NDArray[Any]:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=value)


# Photos of a map
#
# Milvus has no transactions over several calls. Each row therefore stores the version from which it counts and the one
# from which it no longer does, and a search asks for the rows of the version that the pointer names: moving the
# pointer, one small write, is the change. What a writer that died left behind is cleared by the next.


_FOREVER = 2**62
_UNKNOWN = -1e9
_FACTS = ["id", "name", "file", "x", "y", "heading", "height", "grp", "since", "until"]
_VIEW = "view"
"""A field that collections of older versions lack: those keep no rotations and no cameras."""
_IDS = 1000
_QUERIES_ASKED = 64
_SEALED = 5000
"""Number of photos from which Milvus has to seal them: rows of growing segments are searched one by one."""


class MilvusPhotos(Engine):
    """A collection of photos, and one of a single row: the pointer."""

    kind = "milvus"

    def __init__(self, uri: str, table: str, dim: int) -> None:
        self.url, self.table, self.dim = uri, table, dim
        self.client = connect(uri, os.environ.get("COVIS_MILVUS_TOKEN", ""))
        self._create()
        self.client.load_collection(table)
        self.client.load_collection(self._pointers)

    @property
    def _pointers(self) -> str:
        return f"{self.table}_pointer"

    def _create(self) -> None:
        from pymilvus import DataType, MilvusClient

        if not self.client.has_collection(self.table):
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.dim)
            for name in ("name", "file", "grp", _VIEW):
                schema.add_field(name, DataType.VARCHAR, max_length=16384)
            for name in ("x", "y", "heading", "height"):
                schema.add_field(name, DataType.DOUBLE)
            for name in ("since", "until"):
                schema.add_field(name, DataType.INT64)
            index = self.client.prepare_index_params()
            index.add_index("vector", index_type="AUTOINDEX", metric_type="L2")
            self.client.create_collection(self.table, schema=schema, index_params=index, consistency_level="Strong")
        facts = self.client.describe_collection(self.table)
        self._facts = [*_FACTS, *(f["name"] for f in facts["fields"] if f["name"] == _VIEW)]
        held = [int(f["params"]["dim"]) for f in facts["fields"] if f["name"] == "vector"]
        if held != [self.dim]:
            raise InputError(f"{self.table} holds descriptors of {held} numbers, not {self.dim}; use another map")
        if not self.client.has_collection(self._pointers):
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
            for name in Pointer._fields:
                schema.add_field(name, DataType.INT64)
            index = self.client.prepare_index_params()
            index.add_index("vector", index_type="AUTOINDEX", metric_type="L2")
            self.client.create_collection(self._pointers, schema=schema, index_params=index, consistency_level="Strong")

    def pointer(self) -> Pointer:
        """The current state."""
        rows = self._query(self._pointers, "id == 0", list(Pointer._fields))
        return Pointer(*(int(rows[0][name]) for name in Pointer._fields)) if rows else Pointer(0, 0, 0)

    def change(self, now: Pointer, rows: Rows | None, gone: Ids) -> Pointer:
        """Writes new rows and the ends of old ones, then the pointer: until it moves, readers see the state before."""
        held = self.pointer()
        if held != now:
            raise InputError(f"another process changed the map (version {held.version}); run the command again")
        self._clear(now.version)
        count = 0 if rows is None else len(rows)
        for part in () if rows is None else rows.batches():
            entities = _entities(part, now.version + 1, views=_VIEW in self._facts)
            self.client.insert(self.table, entities)  # ids are new: `_clear` removed leftovers
        for start in range(0, len(gone), _IDS):
            self._end(f"id in {gone[start : start + _IDS].tolist()}", now.version + 1)
        after = Pointer(now.version + 1, now.photos - len(gone) + count, now.next_id + count)
        self.client.upsert(self._pointers, [{"id": 0, "vector": [0.0, 0.0], **after._asdict()}])
        return after

    def settle(self) -> None:
        """Has Milvus seal growing segments where there are many photos: sealed rows are searched by an index."""
        if self.pointer().photos >= _SEALED:
            self.client.flush(self.table)

    def _clear(self, version: int) -> None:
        """Undoes what a writer that died left, and deletes rows that no reader of this or the last version needs."""
        self.client.delete(self.table, filter=f"since > {version}")
        self._end(f"until == {version + 1}", _FOREVER)
        self.client.delete(self.table, filter=f"until < {version}")

    def _end(self, expression: str, until: int) -> None:
        """Sets `until` of rows; Milvus can only replace whole rows."""
        rows = self._query(self.table, expression, ["*"])
        for start in range(0, len(rows), _IDS):
            part = [
                {key: row[key] for key in (*self._facts, "vector")} | {"until": until}
                for row in rows[start : start + _IDS]
            ]
            self.client.upsert(self.table, part)

    def named(self, names: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        """Id and file of those names that exist."""
        latest: dict[bytes, tuple[int, bytes]] = {}
        counts = self._counting(self.pointer().version)
        for start in range(0, len(names), _IDS):
            quoted = ", ".join(f"'{_quoted(name)}'" for name in names[start : start + _IDS])
            for row in self._query(self.table, f"{counts} and name in [{quoted}]", ["id", "name", "file"]):
                latest[_bytes(row["name"])] = (int(row["id"]), _bytes(row["file"]))
        return latest

    def page(self, after: int, limit: int, *, vectors: bool = False) -> Rows:
        """Rows with ids above `after`, ascending."""
        now, low = self.pointer(), after
        rows: list[dict[str, Any]] = []
        while len(rows) < limit and low < now.next_id - 1:
            some = f"{self._counting(now.version)} and id > {low} and id <= {low + _IDS}"
            rows += self._query(self.table, some, [*self._facts, *(["vector"] if vectors else [])])
            low += _IDS
        return _rows(sorted(rows, key=lambda row: int(row["id"]))[:limit], self.dim if vectors else None)

    def candidates(self, queries: NDArray[np.float32], limit: int, area: Area | None) -> Proposals:
        """The engine's nearest rows of the current version.

        Nearly all rows count, and a filter costs the engine more than the search itself. The first search therefore has
        no filter; a second one with a filter follows only where a row that does not count took the place of another.
        """
        version, box = self.pointer().version, []
        if area is not None:
            left, low, right, high = map(float, area.box)
            box = [f"x >= {left!r} and x <= {right!r} and y >= {low!r} and y <= {high!r}"]
        hits = self._nearest(queries, limit, box)
        if any(
            len(neighbours) == limit and not all(_counts(hit, version) for hit in neighbours) for neighbours in hits
        ):
            hits = self._nearest(queries, limit, [self._counting(version), *box])
        hits = [[hit for hit in neighbours if _counts(hit, version)] for neighbours in hits]
        unique = {int(hit["id"]): hit["entity"] | {"id": hit["id"]} for neighbours in hits for hit in neighbours}
        place = {key: at for at, key in enumerate(unique)}
        width = max((len(neighbours) for neighbours in hits), default=0)
        places = np.full((len(queries), width), -1, np.int64)
        distances = np.full((len(queries), width), np.inf, np.float32)
        for q, neighbours in enumerate(hits):
            places[q, : len(neighbours)] = [place[int(hit["id"])] for hit in neighbours]
            distances[q, : len(neighbours)] = np.sqrt(np.maximum([hit["distance"] for hit in neighbours], 0.0))
        return Proposals(_rows(list(unique.values()), None), places, distances)

    def _nearest(self, queries: NDArray[np.float32], limit: int, terms: list[str]) -> list[list[dict[str, Any]]]:
        hits: list[Any] = []
        for start in range(0, len(queries), _QUERIES_ASKED):
            hits += self.client.search(
                self.table, data=list(queries[start : start + _QUERIES_ASKED]), limit=limit, filter=" and ".join(terms),
                output_fields=self._facts, search_params={"metric_type": "L2", "params": {}}, consistency_level="Strong",
            )  # fmt: skip
        return hits

    def _counting(self, version: int) -> str:
        return f"since <= {version} and until > {version}"

    def _query(self, table: str, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        rows = self.client.query(table, filter=expression, output_fields=fields, consistency_level="Strong")
        return list(rows)

    def drop(self) -> None:
        """Deletes both collections."""
        from pymilvus import MilvusException

        for name in (self.table, self._pointers):
            for left in (2, 1, 0):
                try:
                    self.client.drop_collection(name)
                    break
                except MilvusException:  # Milvus Lite may still be indexing what it is to delete
                    if not left:
                        raise
                    time.sleep(0.5)

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()


def _quoted(name: bytes) -> str:
    """Any bytes as readable text that can be decoded again."""
    return quote_from_bytes(name, safe="/ ")


def _bytes(text: str) -> bytes:
    return unquote_to_bytes(text)


def _counts(hit: dict[str, Any], version: int) -> bool:
    return bool(hit["entity"]["since"] <= version < hit["entity"]["until"])


def _entities(rows: Rows, since: int, *, views: bool) -> list[dict[str, Any]]:
    assert rows.vectors is not None
    if not views and any(rows.views):
        warn("this collection was made by an older version and keeps no rotations and cameras; index the photos again")
    numbers = np.nan_to_num(np.column_stack([rows.xy, rows.heading, rows.height]), nan=_UNKNOWN)
    return [
        {
            "id": int(rows.ids[i]), "vector": rows.vectors[i].tolist(), "name": _quoted(rows.names[i]), "file": _quoted(rows.files[i]),
            "grp": _quoted(os.fsencode(rows.group[i])), "x": float(numbers[i, 0]), "y": float(numbers[i, 1]),
            "heading": float(numbers[i, 2]), "height": float(numbers[i, 3]), "since": since, "until": _FOREVER,
            **({_VIEW: rows.views[i]} if views else {}),
        }
        for i in range(len(rows))
    ]  # fmt: skip


def _rows(rows: list[dict[str, Any]], dim: int | None) -> Rows:
    numbers = np.array([[row[k] for k in ("x", "y", "heading", "height")] for row in rows], np.float64).reshape(-1, 4)
    numbers[numbers == _UNKNOWN] = np.nan
    return Rows(
        np.array([row["id"] for row in rows], np.int64), [_bytes(row["name"]) for row in rows],
        [_bytes(row["file"]) for row in rows], numbers[:, :2], numbers[:, 2], numbers[:, 3],
        [os.fsdecode(_bytes(row["grp"])) for row in rows], [row.get(_VIEW) or "" for row in rows],
        None if dim is None else np.array([row["vector"] for row in rows], np.float32).reshape(-1, dim),
    )  # fmt: skip
