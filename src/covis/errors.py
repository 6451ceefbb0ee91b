"""Errors that a user can mend: one line with cause, place and next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input or usage. The command line prints it in one line and exits with 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names[:12]) or 'none'}"
    return InputError(f"unknown {kind} {name!r}; {hint}")
