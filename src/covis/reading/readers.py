"""Foreign formats of images with poses: each registers a reader, as a plugin may.

>>> from covis.reading.readers import READERS, Reader
>>> def holds(path): return path.suffix == ".mine"
>>> READERS.register("mine")(Reader(holds, read_mine))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covis.core.registry import Registry, first_doc_line
from covis.images import ImageSet


@dataclass(frozen=True)
class Reader:
    """How a format is recognised and read."""

    holds: Callable[[Path], bool]
    """Whether a path, file or folder, is of this format."""
    read: Callable[[Path], ImageSet]


READERS: Registry[Reader] = Registry("reader", lambda reader: first_doc_line(reader.read))
"""Where several recognise a path, the first by name reads it."""
