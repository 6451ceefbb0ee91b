"""Verbs that are registered beside their function, in any module of this package or in a plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from covis.core.registry import Registry

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verb:
    """A function of the command line and the heading that `covis --help` lists it under."""

    function: Callable[..., Any]
    section: str


REGISTERED: Registry[Verb] = Registry("verb")


def verb(name: str, section: str) -> Callable[[_Function], _Function]:
    """Decorator: the function is run by `covis NAME` and listed under `section`, a new heading or one that is there."""

    def bind(function: _Function) -> _Function:
        REGISTERED.register(name)(Verb(function, section))
        return function

    return bind
