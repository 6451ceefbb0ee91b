"""Names that cross a process boundary (command line, recipe, manifest), each bound to one object."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from covis.core.errors import unknown_name
from covis.core.plugins import load_installed_plugins

_T = TypeVar("_T")


def first_doc_line(entry: Any) -> str:
    """The first line of a function's or class's docstring."""
    function = getattr(entry, "func", entry)
    return (function.__doc__ or "").strip().split("\n")[0]


class Registry(Mapping[str, _T]):
    """A mapping filled by decorator; a duplicate raises, an unknown name suggests the nearest.

    A name that is missing is looked for in installed plugins first. `describe` says in a line what an entry is.

    >>> measures = Registry("measure")
    >>> @measures.register("overlap")
    ... def overlap():
    ...     "Shared part of two views."
    >>> list(measures), "iou" in measures, measures.about("overlap")
    (['overlap'], False, 'Shared part of two views.')
    """

    def __init__(self, kind: str, describe: Callable[[_T], str] = first_doc_line) -> None:
        self.kind = kind
        self._describe = describe
        self._entries: dict[str, _T] = {}

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

    def about(self, name: str) -> str:
        """What the entry is, in a line."""
        return self._describe(self[name])

    def __getitem__(self, name: str) -> _T:
        if name not in self:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or (load_installed_plugins() and name in self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


def import_modules(package: str, path: Iterable[str], without: Collection[str] = ()) -> None:
    """Imports the modules of a package, so that what they register is there: a new file is found by itself."""
    for module in pkgutil.iter_modules(path):
        if module.name not in without:
            importlib.import_module(f"{package}.{module.name}")
