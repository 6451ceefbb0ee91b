"""Verbs of the command line: each is registered beside its function, in a module of this package or in a plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from covis.core.registry import Registry

LOCALISE, TRAIN, STEPS = "Localise photos", "Train and evaluate", "Single steps"
INSTALLATION = "This installation"
_HEADINGS = (LOCALISE, TRAIN, STEPS, INSTALLATION)
"""In the order of `covis --help`; other headings follow."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verb:
    """A function of the command line. Those with the least `order` are listed first under their heading."""

    function: Callable[..., Any]
    section: str
    order: int


@dataclass(frozen=True)
class Group:
    """Verbs that share a first word which does nothing alone, such as `covis map check`."""

    help: str
    section: str
    order: int


VERBS: Registry[Verb] = Registry("verb")
"""Verb, such as `locate` or `map check` → its function."""
GROUPS: Registry[Group] = Registry("group of verbs")


def verb(name: str, section: str = "", order: int = 100) -> Callable[[_Function], _Function]:
    """Decorator: `covis NAME` runs the function. `section` is its heading, new or one that is there; none in a group."""

    def bind(function: _Function) -> _Function:
        VERBS.register(name)(Verb(function, section, order))
        return function

    return bind


def group(name: str, help: str, section: str, order: int = 100) -> None:
    """Makes `name` the first word of verbs, such as `verb("NAME check")`."""
    GROUPS.register(name)(Group(help, section, order))


def first_words() -> list[str]:
    """What may follow `covis`: verbs and groups."""
    return sorted({name.partition(" ")[0] for name in (*VERBS, *GROUPS)})


def headings() -> dict[str, list[str]]:
    """Heading → its verbs and groups, as `covis --help` shows them."""
    entries: dict[str, Verb | Group] = {name: verb for name, verb in VERBS.items() if " " not in name}
    entries.update(GROUPS)
    names = sorted(entries, key=lambda name: (entries[name].order, name))
    sections = dict.fromkeys((*_HEADINGS, *sorted({entries[name].section for name in names})))
    return {section: found for section in sections if (found := [n for n in names if entries[n].section == section])}
