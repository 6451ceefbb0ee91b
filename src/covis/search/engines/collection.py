"""Photos of a map in Milvus. Needs the extra `covis[milvus]`.

Milvus has no transactions over several calls. Each row therefore says from which version on it counts and from which on
it does not, and a search asks for the rows of the version that the pointer names: moving the pointer, one small write,
is the change. What a writer that died left behind is cleared by the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Ids
from covis.errors import InputError
from covis.search.area import Area
from covis.search.engines.milvus import connect
from covis.search.engines.photos import Candidates, Engine, Pointer, Rows

_FOREVER = 2**62
_UNKNOWN = -1e9
_FACTS = ["id", "name", "file", "x", "y", "heading", "height", "grp", "since", "until"]
_IDS = 1000
_QUERIES = 64
_SEALED = 5000
"""Photos from which on Milvus is told to seal them: rows that still grow are searched one by one."""


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
            for name in ("name", "file", "grp"):
                schema.add_field(name, DataType.VARCHAR, max_length=16384)
            for name in ("x", "y", "heading", "height"):
                schema.add_field(name, DataType.DOUBLE)
            for name in ("since", "until"):
                schema.add_field(name, DataType.INT64)
            index = self.client.prepare_index_params()
            index.add_index("vector", index_type="AUTOINDEX", metric_type="L2")
            self.client.create_collection(self.table, schema=schema, index_params=index, consistency_level="Strong")
        facts = self.client.describe_collection(self.table)
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
        """The state that counts."""
        rows = self._query(self._pointers, "id == 0", list(Pointer._fields))
        return Pointer(*(int(rows[0][name]) for name in Pointer._fields)) if rows else Pointer(0, 0, 0)

    def change(self, now: Pointer, rows: Rows | None, gone: Ids) -> Pointer:
        """New rows and ends of old ones first, then the pointer: readers see the state before until it moves."""
        held = self.pointer()
        if held != now:
            raise InputError(f"another process changed the map (version {held.version}); run the command again")
        self._clear(now.version)
        count = 0 if rows is None else len(rows)
        for part in () if rows is None else rows.batches():
            self.client.insert(self.table, _entities(part, now.version + 1))  # ids are new: `_clear` took leftovers
        for start in range(0, len(gone), _IDS):
            self._end(f"id in {gone[start : start + _IDS].tolist()}", now.version + 1)
        after = Pointer(now.version + 1, now.photos - len(gone) + count, now.next_id + count)
        self.client.upsert(self._pointers, [{"id": 0, "vector": [0.0, 0.0], **after._asdict()}])
        return after

    def settle(self) -> None:
        """Has Milvus seal what is still growing, where that is much: sealed rows are searched by an index."""
        if self.pointer().photos >= _SEALED:
            self.client.flush(self.table)

    def _clear(self, version: int) -> None:
        """Takes back what a writer that died left, and deletes rows that no reader of this or the last version needs."""
        self.client.delete(self.table, filter=f"since > {version}")
        self._end(f"until == {version + 1}", _FOREVER)
        self.client.delete(self.table, filter=f"until < {version}")

    def _end(self, expression: str, until: int) -> None:
        """Sets `until` of rows; Milvus changes rows as a whole."""
        rows = self._query(self.table, expression, ["*"])
        for start in range(0, len(rows), _IDS):
            part = [
                {key: row[key] for key in (*_FACTS, "vector")} | {"until": until} for row in rows[start : start + _IDS]
            ]
            self.client.upsert(self.table, part)

    def named(self, names: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        """Id and file of those names that are there."""
        found: dict[bytes, tuple[int, bytes]] = {}
        counts = self._counting(self.pointer().version)
        for start in range(0, len(names), _IDS):
            quoted = ", ".join(f"'{_quoted(name)}'" for name in names[start : start + _IDS])
            for row in self._query(self.table, f"{counts} and name in [{quoted}]", ["id", "name", "file"]):
                found[_bytes(row["name"])] = (int(row["id"]), _bytes(row["file"]))
        return found

    def page(self, after: int, limit: int, *, vectors: bool = False) -> Rows:
        """Rows with ids above `after`, ascending."""
        now, low = self.pointer(), after
        found: list[dict[str, Any]] = []
        while len(found) < limit and low < now.next_id - 1:
            some = f"{self._counting(now.version)} and id > {low} and id <= {low + _IDS}"
            found += self._query(self.table, some, [*_FACTS, *(["vector"] if vectors else [])])
            low += _IDS
        return _rows(sorted(found, key=lambda row: int(row["id"]))[:limit], self.dim if vectors else None)

    def candidates(self, queries: NDArray[np.float32], limit: int, area: Area | None) -> Candidates:
        """The engine's nearest of the version that counts.

        Nearly all rows count, and a filter costs the engine more than the search itself: so it is asked without one first,
        and with one only where a row that does not count took the place of another.
        """
        version, box = self.pointer().version, []
        if area is not None:
            left, low, right, high = map(float, area.box)
            box = [f"x >= {left!r} and x <= {right!r} and y >= {low!r} and y <= {high!r}"]
        hits = self._nearest(queries, limit, box)
        if any(len(found) == limit and not all(_counts(hit, version) for hit in found) for found in hits):
            hits = self._nearest(queries, limit, [self._counting(version), *box])
        hits = [[hit for hit in found if _counts(hit, version)] for found in hits]
        unique = {int(hit["id"]): hit["entity"] | {"id": hit["id"]} for found in hits for hit in found}
        place = {key: at for at, key in enumerate(unique)}
        width = max((len(found) for found in hits), default=0)
        places = np.full((len(queries), width), -1, np.int64)
        distances = np.full((len(queries), width), np.inf, np.float32)
        for q, found in enumerate(hits):
            places[q, : len(found)] = [place[int(hit["id"])] for hit in found]
            distances[q, : len(found)] = np.sqrt(np.maximum([hit["distance"] for hit in found], 0.0))
        return Candidates(_rows(list(unique.values()), None), places, distances)

    def _nearest(self, queries: NDArray[np.float32], limit: int, terms: list[str]) -> list[list[dict[str, Any]]]:
        hits: list[Any] = []
        for start in range(0, len(queries), _QUERIES):
            hits += self.client.search(
                self.table, data=list(queries[start : start + _QUERIES]), limit=limit, filter=" and ".join(terms),
                output_fields=_FACTS, search_params={"metric_type": "L2", "params": {}}, consistency_level="Strong",
            )  # fmt: skip
        return hits

    def _counting(self, version: int) -> str:
        return f"since <= {version} and until > {version}"

    def _query(self, table: str, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        found = self.client.query(table, filter=expression, output_fields=fields, consistency_level="Strong")
        return list(found)

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
    """Any bytes as plain text that can be read, and read back."""
    return quote_from_bytes(name, safe="/ ")


def _bytes(text: str) -> bytes:
    return unquote_to_bytes(text)


def _counts(hit: dict[str, Any], version: int) -> bool:
    return bool(hit["entity"]["since"] <= version < hit["entity"]["until"])


def _entities(rows: Rows, since: int) -> list[dict[str, Any]]:
    assert rows.vectors is not None
    numbers = np.nan_to_num(np.column_stack([rows.xy, rows.heading, rows.height]), nan=_UNKNOWN)
    return [
        {
            "id": int(rows.ids[i]), "vector": rows.vectors[i].tolist(), "name": _quoted(rows.names[i]), "file": _quoted(rows.files[i]),
            "grp": _quoted(os.fsencode(rows.group[i])), "x": float(numbers[i, 0]), "y": float(numbers[i, 1]),
            "heading": float(numbers[i, 2]), "height": float(numbers[i, 3]), "since": since, "until": _FOREVER,
        }
        for i in range(len(rows))
    ]  # fmt: skip


def _rows(found: list[dict[str, Any]], dim: int | None) -> Rows:
    numbers = np.array([[row[k] for k in ("x", "y", "heading", "height")] for row in found], np.float64).reshape(-1, 4)
    numbers[numbers == _UNKNOWN] = np.nan
    return Rows(
        np.array([row["id"] for row in found], np.int64), [_bytes(row["name"]) for row in found],
        [_bytes(row["file"]) for row in found], numbers[:, :2], numbers[:, 2], numbers[:, 3],
        [os.fsdecode(_bytes(row["grp"])) for row in found],
        None if dim is None else np.array([row["vector"] for row in found], np.float32).reshape(-1, dim),
    )  # fmt: skip
