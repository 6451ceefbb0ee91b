"""Nested frozen dataclasses as JSON and as FIELD=VALUE settings, so that a run can be stated, compared and varied."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from covis.errors import InputError, unknown_name

T = TypeVar("T")


def describe(value: Any) -> Any:
    """A JSON-able form; nested dataclasses carry their class name, so that a loss or rule can be told apart."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **named}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    return value


def restore(told: Any, kinds: Mapping[str, type]) -> Any:
    """Back from `describe`, with the classes of `kinds` by name."""
    if isinstance(told, dict) and "type" in told:
        if told["type"] not in kinds:
            raise unknown_name("class", told["type"], kinds)
        return kinds[told["type"]](**{k: restore(v, kinds) for k, v in told.items() if k != "type"})
    if isinstance(told, list):
        return tuple(restore(v, kinds) for v in told)
    return told


def apply(value: T, settings: Iterable[str], choices: Mapping[str, Mapping[str, Any]]) -> T:
    """`value` with each `FIELD=VALUE` applied; FIELD may be dotted, VALUE is JSON or plain text.

    `choices` names objects that may stand for a whole field, such as {"loss": {"Contrastive": Contrastive()}}.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"setting {setting!r} has no '='; write FIELD=VALUE, such as loss.margin=0.5")
        value = _put(value, path.strip().split("."), text.strip(), choices, path.strip())
    return value


def _put(value: T, path: list[str], text: str, choices: Mapping[str, Mapping[str, Any]], full: str) -> T:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise InputError(f"setting {full!r} goes into a plain value; shorten the field name")
    known = [f.name for f in dataclasses.fields(value)]
    if path[0] not in known:
        raise unknown_name("recipe field", full, [full.removesuffix(".".join(path)) + k for k in known])
    current = getattr(value, path[0])
    if len(path) > 1:
        new = _put(current, path[1:], text, choices, full)
    elif path[0] in choices:
        if text not in choices[path[0]]:
            raise unknown_name(path[0], text, choices[path[0]])
        new = choices[path[0]][text]
    else:
        new = _parse(text, current, full)
    return dataclasses.replace(value, **{path[0]: new})


def _parse(text: str, current: Any, name: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(current, bool) != isinstance(value, bool) and current is not None and value is not None:
        raise InputError(f"setting {name}={text}: expected {type(current).__name__}, got {type(value).__name__}")
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    fits = current is None or value is None or isinstance(value, type(current))
    if not fits and not (isinstance(current, int) and isinstance(value, int)):
        raise InputError(f"setting {name}={text}: expected {type(current).__name__}, got {type(value).__name__}")
    return value
