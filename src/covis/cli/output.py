"""Results on stdout: JSON for programs, text for people, then the next command on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from covis.core.errors import visible
from covis.core.progress import say
from covis.core.tables import size_text
from covis.core.tables import text_table as table

__all__ = ["Line", "emit", "size_text", "table"]

COLOURS = {"": "", "good": "32", "doubtful": "33", "dim": "2", "bold": "1"}
"""Tone of a line → its code on a terminal."""
Line = tuple[str, str]
"""Text, and its tone."""


def emit(data: Any, as_json: bool, text: str | Sequence[Line] = "", then: str = "") -> None:
    """Prints the result: JSON for programs, `text` for people, followed by the next command, `then`."""
    if as_json:
        sys.stdout.write(_json_text(data) + "\n")
        return
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line, tone in [(line, "") for line in text.splitlines()] if isinstance(text, str) else text:
        code = COLOURS[tone] if colours else ""
        print(f"\x1b[{code}m{visible(line)}\x1b[0m" if code else visible(line))
    if then:
        sys.stdout.flush()
        say(f"next: {visible(then)}")


def _json_text(data: Any) -> str:
    """JSON that every parser takes: characters that stdout cannot hold are escaped, numbers that are none are null."""
    plain = json.dumps(data, default=_json_value)
    if "NaN" in plain or "Infinity" in plain:
        data = json.loads(plain, parse_constant=lambda _: None)
    text = json.dumps(data, indent=2, ensure_ascii=False, default=_json_value)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2, default=_json_value)
    return text


def _json_value(value: Any) -> Any:
    """numpy scalars and arrays, and paths, as values for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
