"""Photos of a map in Milvus, for maps that one machine cannot hold. Needs the extra `covis[milvus]`.

The address is that of a cluster (`http://host:19530`), or a file name ending in `.db`, which opens Milvus Lite inside
this process. Milvus has no transactions over several calls. Each row therefore stores the version from which it counts
and the one from which it no longer does, and a search asks for the rows of the version that the pointer names: moving
the pointer, one small write, is the change. What a writer that died left behind is cleared by the next.

Nor has it a compare-and-set, so that two writers could both move the pointer. A writer first announces itself by a row
of its own and then looks for others: with reads that see every earlier write (consistency level Strong), at least the
later of two sees the other and gives up.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from covis.core.addresses import printed
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.maps.storage.engine import Engine, Hits, Pointer, Rows, Unavailable, aligned
from covis.search.area import Area

_FOREVER = 2**62
_COLUMNS = ["id", "name", "x", "y", "facts", "since", "until"]
_LONGEST = 65535
"""Most bytes of a text."""
_IDS = 1000
_QUERIES_AT_ONCE = 64
_SEALED = 5000
"""Number of photos from which Milvus has to seal them: rows of growing segments are searched one by one."""
_CONNECT_S, _CALL_S = 10, 60
"""After which an answer is not awaited any more."""
_NO_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}
"""Calls have time limits of their own, and Milvus Lite ends a connection whose client pings as often as pymilvus does."""
_TIMED = ("has_collection", "query", "search", "insert", "upsert", "delete")
_LEASE_S = 120
"""A writer on another machine that has not renewed its row for this long is taken for dead."""


class Milvus(Engine):
    """A collection of photos, and one of the pointer (row 0) and of the writers at work (other rows)."""

    kind = "milvus"

    def __init__(self, uri: str, table: str, dim: int) -> None:
        self.uri, self.table, self.dim = uri, table, dim
        self._pointers = f"{table}_pointer"
        self.client = _connect(uri)
        if self.client.has_collection(self._pointers):
            self._load()

    def create(self) -> None:
        """Makes both collections, where they do not exist."""
        if not self.client.has_collection(self.table):
            self._create(self.table, self.dim, texts=("name", "facts"), floats=("x", "y"), integers=("since", "until"))
        if not self.client.has_collection(self._pointers):
            self._create(self._pointers, 2, texts=("holder",), integers=(*Pointer._fields, "renewed"))
            self._upsert_pointer(Pointer(0, 0, 0))
        self._load()

    def _create(
        self,
        name: str,
        dim: int,
        *,
        texts: Sequence[str] = (),
        floats: Sequence[str] = (),
        integers: Sequence[str] = (),
    ) -> None:
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        for field in texts:
            schema.add_field(field, DataType.VARCHAR, max_length=_LONGEST)
        for field in floats:
            schema.add_field(field, DataType.DOUBLE)
        for field in integers:
            schema.add_field(field, DataType.INT64)
        index = self.client.prepare_index_params()
        index.add_index("vector", index_type="AUTOINDEX", metric_type="L2")
        self.client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")

    def _load(self) -> None:
        self.client.load_collection(self.table)
        self.client.load_collection(self._pointers)

    def pointer(self) -> Pointer:
        """The current state."""
        if not self.client.has_collection(self._pointers):
            raise InputError(
                f"Milvus at {printed('milvus:' + self.uri)} has no collection {self.table}; index the photos again"
            )
        rows = self._query(self._pointers, "id == 0", list(Pointer._fields))
        return Pointer(*(int(rows[0][name]) for name in Pointer._fields)) if rows else Pointer(0, 0, 0)

    def _upsert_pointer(self, pointer: Pointer) -> None:
        row = {"id": 0, "vector": [0.0, 0.0], "holder": "", "renewed": 0, **pointer._asdict()}
        self.client.upsert(self._pointers, [row])

    def change(self, now: Pointer, rows: Rows | None, gone: Ids) -> Pointer:
        """Writes new rows and the ends of old ones, then the pointer: until it moves, readers see the state before."""
        with self._lease() as renew:
            held = self.pointer()
            if held != now:
                raise InputError(f"another process changed the map (version {held.version}); run the command again")
            self._clear(now.version)
            for part in () if rows is None else rows.batches():
                self.client.insert(self.table, _entities(part, now.version + 1))  # ids are new: leftovers are cleared
                renew()
            for start in range(0, len(gone), _IDS):
                self._end(f"id in {gone[start : start + _IDS].tolist()}", now.version + 1)
                renew()
            count = 0 if rows is None else len(rows)
            after = Pointer(now.version + 1, now.photos - len(gone) + count, now.next_id + count)
            renew()
            self._upsert_pointer(after)
        return after

    @contextlib.contextmanager
    def _lease(self) -> Iterator[Any]:
        """Makes this the only writer, or raises `InputError`; what it gives is called to say that it is still at work."""
        own, holder = secrets.randbelow(2**60) + 1, f"{socket.gethostname()}:{os.getpid()}"

        def announce() -> None:
            facts = dict.fromkeys(Pointer._fields, 0)
            row = {"id": own, "vector": [0.0, 0.0], "holder": holder, "renewed": int(time.time()), **facts}
            self.client.upsert(self._pointers, [row])

        def renew() -> None:
            if not self._query(self._pointers, f"id == {own}", ["id"]):  # this process slept too long
                raise InputError("another process took over changing the map; run the command again")
            announce()

        announce()
        try:
            for other in self._query(self._pointers, f"id > 0 and id != {own}", ["id", "holder", "renewed"]):
                if _is_alive(other["holder"], int(other["renewed"])):
                    raise InputError(f"another process ({other['holder']}) changes the map; run the command again")
                self.client.delete(self._pointers, ids=[other["id"]])
            yield renew
        finally:
            self.client.delete(self._pointers, ids=[own])

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
                {key: row[key] for key in (*_COLUMNS, "vector")} | {"until": until}
                for row in rows[start : start + _IDS]
            ]
            self.client.upsert(self.table, part)

    def named(self, names: Sequence[bytes]) -> dict[bytes, tuple[int, str]]:
        """Id and facts of those names that exist."""
        latest: dict[bytes, tuple[int, str]] = {}
        counting = _counting(self.pointer().version)
        for start in range(0, len(names), _IDS):
            quoted = ", ".join(f"'{_quoted(name)}'" for name in names[start : start + _IDS])
            for row in self._query(self.table, f"{counting} and name in [{quoted}]", ["id", "name", "facts"]):
                latest[unquote_to_bytes(row["name"])] = (int(row["id"]), row["facts"])
        return latest

    def page(self, after: int, limit: int, *, vectors: bool = False) -> Rows:
        """Rows with ids above `after`, ascending."""
        now, low = self.pointer(), after
        rows: list[dict[str, Any]] = []
        while len(rows) < limit and low < now.next_id - 1:
            some = f"{_counting(now.version)} and id > {low} and id <= {low + _IDS}"
            rows += self._query(self.table, some, [*_COLUMNS, *(["vector"] if vectors else [])])
            low += _IDS
        return _rows_of(sorted(rows, key=lambda row: int(row["id"]))[:limit], self.dim if vectors else None)

    def vectors(self, ids: Ids) -> NDArray[np.float32]:
        """Descriptors of the rows with these ids."""
        rows: list[dict[str, Any]] = []
        for start in range(0, len(ids), _IDS):
            rows += self._query(self.table, f"id in {ids[start : start + _IDS].tolist()}", ["id", "vector"])
        return aligned(ids, [(int(row["id"]), row["vector"]) for row in rows], self.dim)

    def candidates(self, queries: NDArray[np.float32], limit: int, area: Area | None) -> tuple[Rows, Hits]:
        """The engine's nearest rows of the current version.

        Nearly all rows count, and a filter costs the engine more than the search itself. The first search therefore has
        no filter; a second one with a filter follows only where a row that does not count took the place of another.
        """
        version, box = self.pointer().version, []
        if area is not None:
            left, low, right, high = map(float, area.box)
            box = [f"x >= {left!r} and x <= {right!r} and y >= {low!r} and y <= {high!r}"]
        found = self._nearest(queries, limit, box)
        if any(len(hits) == limit and not all(_counts(hit, version) for hit in hits) for hits in found):
            found = self._nearest(queries, limit, [_counting(version), *box])
        found = [[hit for hit in hits if _counts(hit, version)] for hits in found]
        unique = {int(hit["id"]): hit["entity"] | {"id": hit["id"]} for hits in found for hit in hits}
        distances = [[(int(hit["id"]), max(hit["distance"], 0.0) ** 0.5) for hit in hits] for hits in found]
        return _rows_of(list(unique.values()), None), distances

    def _nearest(self, queries: NDArray[np.float32], limit: int, terms: list[str]) -> list[list[dict[str, Any]]]:
        hits: list[Any] = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            hits += self.client.search(
                self.table, data=list(queries[start : start + _QUERIES_AT_ONCE]), limit=limit, filter=" and ".join(terms),
                output_fields=_COLUMNS, search_params={"metric_type": "L2", "params": {}}, consistency_level="Strong",
            )  # fmt: skip
        return hits

    def _query(self, table: str, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        rows = self.client.query(table, filter=expression, output_fields=fields, consistency_level="Strong")
        return list(rows)

    def drop(self) -> None:
        """Deletes both collections."""
        for name in (self.table, self._pointers):
            for left in (2, 1, 0):
                try:
                    self.client.drop_collection(name)
                    break
                except Unavailable:  # Milvus Lite may still be indexing what it is to delete
                    if not left:
                        raise
                    time.sleep(0.5)

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()


def _connect(uri: str) -> Any:
    """A client of the engine at `uri`; COVIS_MILVUS_TOKEN is USER:PASSWORD or an API key."""
    try:
        from pymilvus import MilvusClient, MilvusException
    except ImportError:
        raise InputError("Milvus needs its client; install it with: pip install 'covis[milvus]'") from None
    try:
        token = os.environ.get("COVIS_MILVUS_TOKEN", "")
        return _Client(MilvusClient(uri, token=token, timeout=_CONNECT_S, grpc_options=_NO_PINGS), uri)
    except (MilvusException, ValueError, OSError) as error:
        raise _away(uri, error) from None


def _away(uri: str, error: Exception) -> Unavailable:
    place = printed(f"milvus:{uri}")
    reason = " ".join(str(error).replace(uri, place).split())[:200]
    return Unavailable(f"Milvus at {place} does not answer ({reason}); check the address")


class _Client:
    """Milvus' client, whose calls end after some time, and with an error that says where."""

    def __init__(self, client: Any, uri: str) -> None:
        self._client, self._uri = client, uri

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._client, name)
        limits = {"timeout": _CALL_S} if name in _TIMED else {}
        return partial(self._call, function, **limits) if callable(function) else function

    def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        from pymilvus import MilvusException

        try:
            return function(*arguments, **options)
        except MilvusException as error:
            raise _away(self._uri, error) from None


def _is_alive(holder: str, renewed: int) -> bool:
    """Whether a writer may still be at work: its process, if it is of this machine, else by the age of its row."""
    host, _, process = holder.rpartition(":")
    if host == socket.gethostname() and process.isdigit():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return int(process) != os.getpid() or time.time() - renewed < _LEASE_S
    return time.time() - renewed < _LEASE_S


def _counting(version: int) -> str:
    return f"since <= {version} and until > {version}"


def _counts(hit: dict[str, Any], version: int) -> bool:
    return bool(hit["entity"]["since"] <= version < hit["entity"]["until"])


def _quoted(name: bytes) -> str:
    """Any bytes as readable text that can be decoded again."""
    return quote_from_bytes(name, safe="/ ")


def _entities(rows: Rows, since: int) -> list[dict[str, Any]]:
    assert rows.vectors is not None
    names, counts = map(_quoted, rows.names), {"since": since, "until": _FOREVER}
    columns = rows.ids.tolist(), names, *rows.xy.T.tolist(), rows.facts, rows.vectors.tolist()
    keys = "id", "name", "x", "y", "facts", "vector"
    return [dict(zip(keys, row, strict=True)) | counts for row in zip(*columns, strict=True)]


def _rows_of(entities: list[dict[str, Any]], dim: int | None) -> Rows:
    return Rows(
        np.array([row["id"] for row in entities], np.int64),
        [unquote_to_bytes(row["name"]) for row in entities],
        np.array([(row["x"], row["y"]) for row in entities], np.float64).reshape(-1, 2),
        [row["facts"] for row in entities],
        None if dim is None else np.array([row["vector"] for row in entities], np.float32).reshape(-1, dim),
    )
