"""Photos of a map in PostgreSQL with pgvector. Needs the extra `covis[postgres]`.

A change is one transaction. Up to `EXACT_UP_TO` rows are compared one by one; above that, an HNSW index proposes
candidates whose distances are then computed in full. Passwords come from PGPASSWORD or ~/.pgpass, as for every client.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.addresses import printed
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import say
from covis.maps.storage.engine import Engine, Hits, Pointer, Rows, Unavailable, aligned
from covis.search.area import Area
from covis.search.kinds import EXACT_UP_TO

_POINTERS = "covis_maps"
_COLUMNS = "id, name, x, y, facts"
_PLAIN, _HALF = 2000, 4000
"""Most dimensions of a descriptor that pgvector indexes as they are, and in half precision."""
_TIMEOUTS: dict[str, Any] = {
    "connect_timeout": 20,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
}
"""Seconds, and milliseconds for the second: a host that vanished is noticed."""
_POINTER_S, _READ_S = 10.0, 60.0
"""After which an answer to a question is not awaited any more: a frozen server keeps its connections alive."""


class Postgres(Engine):
    """One table; connections are one per thread. Only `create` and `settle` run DDL, so that a reader needs SELECT alone."""

    kind = "postgresql"

    def __init__(self, url: str, table: str, dim: int) -> None:
        self.url, self.table, self.dim = url, table, dim
        self._local = threading.local()
        self._open: list[Any] = []

    def create(self) -> None:
        """Makes the extension, the table of pointers and the map's table, where they do not exist."""
        with self._cursor(vectors=False) as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(7265)")  # two processes at once would both try to create
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {_POINTERS} (name text PRIMARY KEY, dim int, version bigint, photos bigint, "
                "next_id bigint)"
            )
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} (id bigint PRIMARY KEY, name bytea NOT NULL UNIQUE, x float8, "
                f"y float8, facts text, descriptor vector({self.dim}) NOT NULL)"
            )
            cursor.execute(f"CREATE INDEX IF NOT EXISTS {self.table}_xy ON {self.table} (x, y)")
            cursor.execute(
                f"INSERT INTO {_POINTERS} VALUES (%s, %s, 0, 0, 0) ON CONFLICT (name) DO NOTHING",
                (self.table, self.dim),
            )

    @contextmanager
    def _cursor(self, *, vectors: bool = True, longest_s: float | None = None) -> Iterator[Any]:
        """A cursor in a transaction, which takes effect as a whole or not at all.

        vectors: it knows pgvector's type. longest_s: for a reader, after which the connection is cut.
        """
        timer: threading.Timer | None = None
        try:
            import psycopg
            from pgvector.psycopg import register_vector
        except ImportError:
            raise InputError("PostgreSQL needs its client; install it with: pip install 'covis[postgres]'") from None
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None or connection.closed:
                connection = self._local.connection = psycopg.connect(self.url, **_TIMEOUTS)
                self._open.append(connection)
                self._local.knows_vectors = False
            if longest_s is not None:
                timer = threading.Timer(longest_s, _cut, (connection,))
                timer.daemon = True
                timer.start()
            if vectors and not self._local.knows_vectors:
                register_vector(connection)
                connection.commit()
                self._local.knows_vectors = True
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            reason = " ".join(str(error).replace(self.url, printed(self.url)).split())[:200]
            raise Unavailable(
                f"PostgreSQL at {printed(self.url)} does not answer ({reason}); check the address"
            ) from None
        except psycopg.Error as error:
            reason = " ".join(str(error).replace(self.url, printed(self.url)).split())[:200]
            raise InputError(f"PostgreSQL at {printed(self.url)}: {reason}; check the rights") from None
        finally:
            if timer is not None:
                timer.cancel()

    def pointer(self) -> Pointer:
        """The current state."""
        with self._cursor(vectors=False, longest_s=_POINTER_S) as cursor:
            return self._pointer(cursor, "")

    def _pointer(self, cursor: Any, locking: str) -> Pointer:
        statement = f"SELECT dim, version, photos, next_id FROM {_POINTERS} WHERE name = %s {locking}"
        row = cursor.execute(statement, (self.table,)).fetchone()
        if row is None or row[0] != self.dim:
            raise InputError(
                f"PostgreSQL at {printed(self.url)} has no table {self.table} of {self.dim} dimensions; index the photos again"
            )
        return Pointer(*row[1:])

    def change(self, now: Pointer, rows: Rows | None, gone: Ids) -> Pointer:
        """One transaction: all of it or nothing."""
        with self._cursor() as cursor:
            held = self._pointer(cursor, "FOR UPDATE")
            if held != now:
                raise InputError(f"another process changed the map (version {held.version}); run the command again")
            if len(gone):
                cursor.execute(f"DELETE FROM {self.table} WHERE id = ANY(%s)", (gone.tolist(),))
            count = 0 if rows is None else len(rows)
            if rows is not None:
                self._copy(cursor, rows)
            after = Pointer(now.version + 1, now.photos - len(gone) + count, now.next_id + count)
            cursor.execute(
                f"UPDATE {_POINTERS} SET version = %s, photos = %s, next_id = %s WHERE name = %s", (*after, self.table)
            )
        return after

    def _copy(self, cursor: Any, rows: Rows) -> None:
        """Rows in PostgreSQL's own binary form; descriptors are turned into pgvector's bytes a batch at a time."""
        head = np.array([self.dim, 0], ">u2").tobytes()
        with cursor.copy(f"COPY {self.table} ({_COLUMNS}, descriptor) FROM STDIN WITH (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "bytea", "float8", "float8", "text", "bytea"])
            for part in rows.batches():
                assert part.vectors is not None
                vectors = (head + vector.tobytes() for vector in part.vectors.astype(">f4"))
                columns = part.ids.tolist(), part.names, *part.xy.T.tolist(), part.facts, vectors
                for row in zip(*columns, strict=True):
                    copy.write_row(row)

    def settle(self) -> None:
        """Builds an HNSW index once there are too many rows to compare each; it grows with later changes."""
        photos = self.pointer().photos
        if photos <= EXACT_UP_TO or self.dim > _HALF:
            return
        with self._cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_indexes WHERE indexname = %s", (f"{self.table}_near",))
            if cursor.fetchone():
                return
            say(f"PostgreSQL builds an index over {photos} descriptors")
            kind = "vector" if self.dim <= _PLAIN else "halfvec"
            cursor.execute("SET LOCAL maintenance_work_mem = '1GB'")
            cursor.execute(f"CREATE INDEX {self.table}_near ON {self.table} USING hnsw (({self._key}) {kind}_l2_ops)")

    @property
    def _key(self) -> str:
        """The expression that is indexed."""
        return "descriptor" if self.dim <= _PLAIN or self.dim > _HALF else f"descriptor::halfvec({self.dim})"

    def named(self, names: Sequence[bytes]) -> dict[bytes, tuple[int, str]]:
        """Id and facts of those names that exist."""
        with self._cursor(longest_s=_READ_S) as cursor:
            cursor.execute(f"SELECT name, id, facts FROM {self.table} WHERE name = ANY(%s)", (list(names),))
            return {bytes(name): (int(i), facts) for name, i, facts in cursor.fetchall()}

    def page(self, after: int, limit: int, *, vectors: bool = False) -> Rows:
        """Rows with ids above `after`, ascending."""
        more = ", descriptor" if vectors else ""
        with self._cursor(longest_s=_READ_S) as cursor:
            cursor.execute(
                f"SELECT {_COLUMNS}{more} FROM {self.table} WHERE id > %s ORDER BY id LIMIT %s", (after, limit)
            )
            return _read_rows(cursor.fetchall(), self.dim if vectors else None)

    def vectors(self, ids: Ids) -> NDArray[np.float32]:
        """Descriptors of the rows with these ids."""
        with self._cursor(longest_s=_READ_S) as cursor:
            cursor.execute(f"SELECT id, descriptor FROM {self.table} WHERE id = ANY(%s)", (ids.tolist(),))
            return aligned(ids, [(row[0], _array(row[1])) for row in cursor.fetchall()], self.dim)

    def candidates(self, queries: NDArray[np.float32], limit: int, area: Area | None) -> tuple[Rows, Hits]:
        """One statement per query: the index or a scan proposes, the full distance decides."""
        from pgvector import Vector

        where = "" if area is None else "WHERE x BETWEEN %s AND %s AND y BETWEEN %s AND %s"
        left, low, right, high = (0.0,) * 4 if area is None else map(float, area.box)
        box = () if area is None else (left, right, low, high)
        cast = "::vector" if self._key == "descriptor" else f"::halfvec({self.dim})"
        statement = (
            f"SELECT {_COLUMNS}, descriptor <-> %s::vector AS distance FROM (SELECT * FROM {self.table} {where} "
            f"ORDER BY ({self._key}) <-> %s{cast} LIMIT %s) AS near ORDER BY distance, id"
        )
        results: list[list[tuple[Any, ...]]] = []
        with self._cursor(longest_s=_READ_S) as cursor:
            cursor.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(100, 2 * limit))}")
            cursor.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            for query in queries:
                cursor.execute(statement, (Vector(query), *box, Vector(query), limit))
                results.append(cursor.fetchall())
        unique = {row[0]: row[:-1] for hits in results for row in hits}
        hits = [[(row[0], row[-1]) for row in rows] for rows in results]
        return _read_rows(list(unique.values()), None), hits

    def drop(self) -> None:
        """Deletes the table and its pointer."""
        with self._cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {self.table}")
            cursor.execute(f"DELETE FROM {_POINTERS} WHERE name = %s", (self.table,))

    def close(self) -> None:
        """Ends the connections."""
        while self._open:
            self._open.pop().close()


def _cut(connection: Any) -> None:
    """Ends a connection from another thread, so that who waits for an answer gets an error."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _array(vector: Any) -> NDArray[np.float32]:
    """What pgvector gives, which depends on its version."""
    return np.asarray(vector.to_numpy() if hasattr(vector, "to_numpy") else vector, np.float32)


def _read_rows(rows: list[tuple[Any, ...]], dim: int | None) -> Rows:
    vectors = None
    if dim is not None:
        vectors = np.array([_array(row[5]) for row in rows], np.float32).reshape(-1, dim)
    ids, xy = np.array([row[0] for row in rows], np.int64), np.array([row[2:4] for row in rows], np.float64)
    return Rows(ids, [bytes(row[1]) for row in rows], xy.reshape(-1, 2), [row[4] for row in rows], vectors)
