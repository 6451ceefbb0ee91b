"""Names that cross a process boundary (command line, manifest), each bound to one object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TypeVar

from covis.core.errors import unknown_name

_T = TypeVar("_T")
NAMES_FILE = "names.json"
"""In the package: kind → {name: what it is}, of all that covis registers; written by `make names`."""
_made: dict[str, Registry[object]] = {}


@cache
def _listed() -> dict[str, dict[str, str]]:
    listed: dict[str, dict[str, str]] = json.loads(resources.files("covis").joinpath(NAMES_FILE).read_text("utf-8"))
    return listed


def known_names(kind: str) -> dict[str, str]:
    """Name → what it is, for a kind of registered things, without importing them; includes those of this process."""
    live = _made.get(kind, ())
    return {**_listed().get(kind, {}), **{name: "" for name in live if name not in _listed().get(kind, {})}}


def is_loaded(kind: str) -> bool:
    """Whether the things of a kind are imported, so that their registry can be used."""
    return kind in _made


def check_name(kind: str, name: str) -> str:
    """The name, if a thing of that kind has it; else an error with the nearest. Imports none of them."""
    known = known_names(kind)
    if name not in known:
        raise unknown_name(kind, name, known)
    return name


class Registry(Mapping[str, _T]):
    """A mapping filled by decorator; a duplicate raises, an unknown name suggests the nearest.

    >>> measures = Registry("measure")
    >>> @measures.register("overlap")
    ... def overlap(): ...
    >>> list(measures), "iou" in measures
    (['overlap'], False)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, _T] = {}
        _made[kind] = self  # type: ignore[assignment]

    def register(self, name: str) -> Callable[[_T], _T]:
        """Decorator that binds `name`."""

        def bind(entry: _T) -> _T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return bind

    def update(self, table: Mapping[str, _T]) -> None:
        """Binds every name of a table."""
        for name, entry in table.items():
            self.register(name)(entry)

    def __getitem__(self, name: str) -> _T:
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
