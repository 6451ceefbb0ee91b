"""Names that cross a process boundary (command line, manifest), each bound to one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from covis.errors import unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping filled by decorator; a duplicate raises, an unknown name suggests the nearest.

    >>> measures = Registry("measure")
    >>> @measures.register("overlap")
    ... def overlap(): ...
    >>> list(measures), "iou" in measures
    (['overlap'], False)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that binds `name`."""

        def bind(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return bind

    def update(self, table: Mapping[str, T]) -> None:
        """Binds every name of a table."""
        for name, entry in table.items():
            self.register(name)(entry)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
