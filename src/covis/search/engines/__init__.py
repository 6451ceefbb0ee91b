"""External engines: photos with positions and descriptors in PostgreSQL or Milvus, for maps beyond one machine."""

from __future__ import annotations

import re

from covis.core.errors import InputError
from covis.search.engines.photos import FORMS, Engine, Hits, Pointer, Rows, Unavailable

__all__ = ["Engine", "Hits", "Pointer", "Rows", "Unavailable", "open_engine"]


def open_engine(url: str, table: str, dim: int) -> Engine:
    """The engine at `url` with its table `table`, which is created where it does not exist."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,50}", table):
        raise InputError(f"{table!r} is not a valid table name")
    kind, _, rest = url.partition(":")
    if kind == "milvus" and rest:
        from covis.search.engines.milvus import MilvusPhotos

        return MilvusPhotos(rest, table, dim)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        from covis.search.engines.postgres import PostgresPhotos

        return PostgresPhotos(url, table, dim)
    raise InputError(f"--engine is {FORMS}, not {url!r}")
