"""Engines that others run: photos with positions and descriptors in PostgreSQL or Milvus, for maps past one machine."""

from covis.search.engines.photos import Engine, Hits, Pointer, Rows, Unavailable, open_engine

__all__ = ["Engine", "Hits", "Pointer", "Rows", "Unavailable", "open_engine"]
