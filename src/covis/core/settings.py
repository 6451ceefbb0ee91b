"""Frozen values with named fields: checked against their types, stated as JSON, varied by FIELD=VALUE, read back.

A value is a frozen dataclass whose fields are numbers, texts, tuples, None or nested values. All changes of one call
are made before anything is checked, so that fields that depend on each other can change together.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from covis.core.errors import InputError, unknown_name

_T = TypeVar("_T")
Kinds = Mapping[str, type]
"""Name → class of a value."""


class JsonValues(Mapping[str, Any]):
    """Values that a file holds and `--json` prints, as a mapping; subclasses give them types."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"


def describe(value: Any) -> Any:
    """A JSON-able form; nested values carry their class name, so that a loss or rule can be told apart."""
    if _is_value(value):
        named = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **named}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    return value


def restore(described: Mapping[str, Any], kinds: Kinds) -> Any:
    """The inverse of `describe`, with the classes of `kinds` by name; missing fields take their default."""
    return _merged(None, described, kinds, "").close("")


def merge(value: _T, changes: Mapping[str, Any], kinds: Kinds) -> _T:
    """`value` with the fields in `changes`; a nested value with a `type` is made anew, one without is updated."""
    changed: _T = _merged(_draft(value), changes, kinds, "").close("")
    return changed


def apply(value: _T, settings: Iterable[str], choices: Mapping[str, Kinds]) -> _T:
    """`value` with each `FIELD=VALUE`; FIELD may be dotted, VALUE is JSON or plain text (`none`, `480,640`).

    `choices`: dotted field → classes that may replace its whole value, such as {"loss": {"contrastive": Contrastive}}.
    """
    changed: _T = _with_settings(_draft(value), settings, choices)
    return changed


def build_value(kind: type[_T], values: Mapping[str, Any], settings: Iterable[str] = ()) -> _T:
    """A value of `kind` from fields and FIELD=VALUE settings."""
    made: _T = _with_settings(_Draft(kind, dict(values)), settings, {})
    return made


def _with_settings(draft: _Draft, settings: Iterable[str], choices: Mapping[str, Kinds]) -> Any:
    """The value of `draft` after each FIELD=VALUE."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"setting {setting!r} has no '='; write FIELD=VALUE, such as loss.margin=0.5")
        draft.put(path.strip().split("."), text.strip(), choices, path.strip())
    return draft.close("")


def check_types(value: Any, path: str = "") -> None:
    """An error that names the first field, however deep, whose value is not of its type."""
    _check(type(value), {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, path)
    for f in dataclasses.fields(value):
        inner = getattr(value, f.name)
        if _is_value(inner):
            check_types(inner, _joined(path, f.name))


def above(low: float, **values: float) -> None:
    """Refuses named numbers that are not above `low`."""
    for name, value in values.items():
        if not (_is_number(value) and value > low):
            raise InputError(f"{name} is {value}; it must be above {low:g}")


def at_least(low: float, **values: float) -> None:
    """Refuses named numbers that are not `low` or more."""
    for name, value in values.items():
        if not (_is_number(value) and value >= low):
            raise InputError(f"{name} is {value}; it must be at least {low:g}")


def one_of(known: Iterable[str], **values: str) -> None:
    """Refuses named texts that are not among the known ones."""
    names = tuple(known)
    for name, value in values.items():
        if value not in names:
            raise unknown_name(name.replace("_", " "), str(value), names)


class _Draft:
    """A value that is being changed."""

    def __init__(self, kind: type[Any], values: dict[str, Any]) -> None:
        self.kind, self.values = kind, values

    def put(self, path: list[str], text: str, choices: Mapping[str, Kinds], full: str) -> None:
        """Changes the field at `path` to what `text` says."""
        name, before = path[0], full.removesuffix(".".join(path))
        self._require(name, before, full)
        kinds = choices.get(before + name)
        if len(path) > 1:
            inner = self.value(name)
            if not isinstance(inner, _Draft):
                hint = f"set {before}{name}={next(iter(kinds))} first" if kinds else "shorten the name"
                raise InputError(f"setting {full!r} goes into a plain value; {hint}")
            inner.put(path[1:], text, choices, full)
        elif kinds and text.lower() not in _NOTHING:
            if text not in kinds:
                raise unknown_name(before + name, text, kinds)
            self.values[name] = _Draft(kinds[text], {})
        else:
            self.values[name] = _parse(text, _hints(self.kind)[name], full)

    def value(self, name: str) -> Any:
        """The field as it stands; a default becomes part of the draft."""
        current = self.values[name] if name in self.values else _default(self.kind, name)
        self.values[name] = _draft(current)
        return self.values[name]

    def close(self, path: str) -> Any:
        """The value, checked."""
        values = {k: v.close(_joined(path, k)) if isinstance(v, _Draft) else v for k, v in self.values.items()}
        values = {k: _widened(v, _hints(self.kind)[k]) for k, v in values.items()}
        for f in dataclasses.fields(self.kind):
            if f.init and f.name not in values and _default(self.kind, f.name) is dataclasses.MISSING:
                raise InputError(f"{_joined(path, f.name)} is not given; set it")
        _check(self.kind, values, path)
        return self.kind(**values)

    def _require(self, name: str, before: str, full: str) -> None:
        known = [f.name for f in dataclasses.fields(self.kind) if f.init]
        if name not in known:
            inner = [f"{k}.{f.name}" for k in known if (part := self.values.get(k)) for f in _fields(part)]
            raise unknown_name("field", full, [before + k for k in (*known, *inner)])


def _merged(draft: _Draft | None, values: Mapping[str, Any], kinds: Kinds, path: str) -> _Draft:
    """`draft` with the fields in `values`, or a new one where `values` names its type."""
    name = values.get("type")
    if name is not None:
        if name not in kinds:
            raise unknown_name("class", str(name), kinds)
        draft = _Draft(kinds[name], {})
    if draft is None:
        raise InputError(f"{path or 'the value'} has no type; write type = NAME")
    for field, value in values.items():
        if field == "type":
            continue
        draft._require(field, f"{path}." if path else "", _joined(path, field))
        if isinstance(value, Mapping):
            current = draft.value(field) if "type" not in value else None
            there = current if isinstance(current, _Draft) else None
            draft.values[field] = _merged(there, value, kinds, _joined(path, field))
        else:
            draft.values[field] = _tupled(value)
    return draft


def _draft(value: Any) -> Any:
    if not _is_value(value):
        return value
    return _Draft(type(value), {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init})


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a value or a draft of one; none of anything else."""
    kind = value.kind if isinstance(value, _Draft) else type(value)
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _is_value(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _default(kind: type[Any], name: str) -> Any:
    field = next(f for f in dataclasses.fields(kind) if f.name == name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _hints(kind: type) -> dict[str, Any]:
    return _remembered_hints(kind)


_remembered_hints = functools.cache(typing.get_type_hints)


def _check(kind: type, values: Mapping[str, Any], path: str) -> None:
    for name, value in values.items():
        hint = _hints(kind)[name]
        if not _fits(value, hint):
            if get_origin(hint) is Literal and isinstance(value, str):
                raise unknown_name(_joined(path, name), value, map(str, get_args(hint)))
            shown = "null" if value is None else repr(value)
            raise InputError(f"{_joined(path, name)} is {shown}; expected {_words(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; numbers must be finite, booleans are not numbers."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(_fits(value, kind) for kind in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inner[1:] == (...,):
            return all(_fits(v, inner[0]) for v in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if hint is float:
        return _is_number(value)
    if hint is int:
        return _is_number(value) and value == int(value) and not isinstance(value, float)
    if hint in (None, type(None)):
        return value is None
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, (bool, str, bytes)) and math.isfinite(value)
    except TypeError:
        return False


def _words(hint: Any) -> str:
    """A type in words, for messages."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, inner[:-1])) + f" or {inner[-1]}" if len(inner) > 1 else str(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_words(kind) for kind in inner)
    if origin is tuple:
        return "a list of " + (_words(inner[0]) if inner[1:] == (...,) else ", ".join(map(_words, inner)))
    if hint in (None, type(None)):
        return "none"
    return {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


_NOTHING = ("none", "null")


def _parse(text: str, hint: Any, full: str) -> Any:
    """What `text` means for a field of that type: JSON, none, a list without brackets, or plain text."""
    readings = [_json(text)]
    if text.lower() in _NOTHING:
        readings.append(None)
    if text in ("True", "False"):
        readings.append(text == "True")
    if "," in text:
        readings.append(tuple(_json(part.strip()) for part in text.split(",") if part.strip()))
    readings.append(text)
    for reading in readings:
        if _fits(reading, hint):
            return reading
    raise InputError(f"setting {full}={text}: expected {_words(hint)}")


def _json(text: str) -> Any:
    try:
        return _tupled(json.loads(text))
    except ValueError:
        return text


def _tupled(value: Any) -> Any:
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value


def _widened(value: Any, hint: Any) -> Any:
    """Whole numbers as floats where the field is one, `none` as None, for files that have no other way to write it."""
    if value == "none" and _fits(None, hint):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and not _fits_whole(hint):
        return float(value)
    return value


def _fits_whole(hint: Any) -> bool:
    """Whether a whole number may stay one."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return int in kinds or float not in kinds
    return hint is not float


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
