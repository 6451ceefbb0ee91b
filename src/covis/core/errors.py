"""Errors that a user can fix: one line with cause, place and next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from unicodedata import category


class InputError(ValueError):
    """Bad input or usage. The command line prints it in one line and exits with 2."""


class Damaged(InputError):  # noqa: N818 - a state of affairs, read as one
    """A file that is not what was written: corrupted, cut short or edited."""


class WeightsMissing(InputError):  # noqa: N818 - a state of affairs, read as one
    """Pretrained weights are not available; the user can give a file instead, by an option that the command names."""

    PYTHON = "ModelConfig(weights='FILE.safetensors')"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(self.told(self.PYTHON))

    def told(self, option: str) -> str:
        """The message with the option that takes the file."""
        return f"{self.reason}: {option}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for an unknown name that suggests the nearest known one.

    >>> str(unknown_name("recipe", "town_quik", ["town_quick", "town_gcl"]))
    "unknown recipe 'town_quik'; did you mean 'town_quick'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names[:12]) or 'none'}"
    return InputError(f"unknown {kind} {name!r}; {hint}")


def visible(text: str) -> str:
    """Text for a terminal: control characters and bytes that are not UTF-8 are spelt out, so that none takes effect."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if category(c) in _UNSEEN else c for c in text)


_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control and format characters, surrogates, and line ends."""


def near_path(path: Path) -> str:
    """` (did you mean PATH?)` where something of a similar name lies beside a path that does not exist."""
    if path.exists() or not path.parent.is_dir():
        return ""
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1, cutoff=0.6)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""
