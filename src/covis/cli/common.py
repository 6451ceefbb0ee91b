"""What every verb shares: the --json switch, data on stdout, and how errors become one line and an exit code."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from covis.errors import visible
from covis.tables import text_table as table

__all__ = ["MODEL_HELP", "WORKERS_HELP", "Data", "Json", "emit", "table"]
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


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, and paths, as JSON knows them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
