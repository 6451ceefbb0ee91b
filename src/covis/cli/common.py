"""What every verb shares: the --json switch, data on stdout, and how errors become one line and an exit code."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from covis.errors import visible

MODEL_HELP = "A model or run folder, an ONNX file, a descriptor store, or another tool's FILE.npy with FILE.txt."
WORKERS_HELP = "Decoding processes (default: one per core, at most 8)."
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data", help="DATASET=PATH, repeatable; PATH alone where one dataset is asked for. The town needs none."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print data as JSON on stdout.")]


def emit(data: Any, as_json: bool, text: str = "") -> None:
    """Prints the result: JSON for programs, `text` for people."""
    if as_json:
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False, default=_plain)
        sys.stdout.write("\n")
    elif text:
        print("\n".join(map(visible, text.split("\n"))))


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned text."""
    if not rows:
        return "(none)"
    head = list(rows[0])
    cells = [[str(row.get(key, "")) for key in head] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in cells)) for i, key in enumerate(head)]
    lines = [head, ["─" * width for width in widths], *cells]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, and paths, as JSON knows them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
