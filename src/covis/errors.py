"""Errors that a user can fix: one line with cause, place and next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from unicodedata import category


class InputError(ValueError):
    """Bad input or usage. The command line prints it in one line and exits with 2."""


class Damaged(InputError):  # noqa: N818 - a state of affairs, read as one
    """A file that is not what was written: a lost bit, a cut, another hand."""


class WeightsMissing(InputError):  # noqa: N818 - a state of affairs, read as one
    """Pretrained weights that cannot be had; what remains is to give a file, by the option of the verb in use."""

    PYTHON = "ModelConfig(weights='FILE.safetensors')"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(self.told(self.PYTHON))

    def told(self, option: str) -> str:
        """The error with the option that takes the file."""
        return f"{self.reason}: {option}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for a name that does not exist, with the nearest one that is.

    >>> str(unknown_name("recipe", "town_quik", ["town_quick", "town_gcl"]))
    "unknown recipe 'town_quik'; did you mean 'town_quick'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names[:12]) or 'none'}"
    return InputError(f"unknown {kind} {name!r}; {hint}")


def visible(text: str) -> str:
    """Text for a terminal: control characters and bytes that are no UTF-8 are spelt out, so that none takes effect."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if category(c) in _UNSEEN else c for c in text)


_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control and format characters, halves of pairs, and line ends."""


def near_path(path: Path) -> str:
    """` (did you mean PATH?)` where something of a similar name lies beside a path that does not exist."""
    if path.exists() or not path.parent.is_dir():
        return ""
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1, cutoff=0.6)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""
